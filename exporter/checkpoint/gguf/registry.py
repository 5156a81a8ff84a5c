"""All GGUF architectures, and which family a file belongs to where one architecture stands for several."""

from collections.abc import Mapping
from dataclasses import replace

from runtime.errors import CheckpointError, UnsupportedError

from . import names
from .architectures.dense import DENSE
from .architectures.hybrid import GRANITE_DENSE, HYBRID
from .architectures.moe import EXPERTS, MIXTRAL
from .config import Keys
from .family import GgufFamily
from .file import GgufFile

FAMILIES: Mapping[str, GgufFamily] = {**DENSE, **EXPERTS, **HYBRID}
# What else an architecture may be, by what the file holds.
ALSO = {"mixtral": "llama", "olmo3": "olmo2", "granitemoeshared": "granitemoe", "deepseek_v3": "deepseek2"}


def architectures(model_type: str) -> tuple[str, ...]:
    """The GGUF architectures that hold this Hugging Face family."""
    own = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    return tuple(own + ([ALSO[model_type]] if model_type in ALSO else []))


def read_architecture(file: GgufFile) -> str:
    """`general.architecture`; raises UnsupportedError for one that is not known."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{file.path}: metadata general.architecture is missing; this is not a model.")
    if name not in FAMILIES:
        raise UnsupportedError(f"{file.path}: architecture {name!r}; supported are {', '.join(sorted(FAMILIES))}.")
    return name


def find_family(keys: Keys) -> GgufFamily:
    """The family of a file."""
    family = FAMILIES[keys.architecture]
    if keys.architecture == "llama" and keys.get("expert_count"):
        return MIXTRAL
    if keys.architecture == "granitemoe" and keys.get("expert_shared_feed_forward_length"):
        return replace(family, model_type="granitemoeshared")
    if keys.architecture == "granitehybrid" and not keys.get("expert_count"):
        return replace(family, joined=GRANITE_DENSE)
    if keys.architecture == "falcon" and keys.has("blk.0.attn_norm_2.weight"):
        return replace(family, names=names.FALCON_40B)
    if keys.architecture == "olmo2" and keys.get("attention.sliding_window"):
        return replace(family, model_type="olmo3")
    return family
