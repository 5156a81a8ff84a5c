"""GGUF tensor names to Hugging Face names: by the gguf package's own table, and by rows for what that table lacks.

The package knows, for each architecture, which tensor a Hugging Face name belongs to; the family's table of weights
says which Hugging Face names there are. Rows by hand are the deviations:

- {} is the layer, and {e} stands for one tensor per entry of the first dimension.
- Names are without their ending: `.weight` and `.bias` are carried over. A row with an ending, or with a dot at its end
  where the tensor has none, is the whole name.
- Several names: the rows are q, k and v of attention.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Names = Mapping[str, str | tuple[str, ...]]

LAYER = "model.layers.{}."
SPLIT_QKV = {"blk.{}.attn_qkv": tuple(f"{LAYER}self_attn.{part}_proj" for part in "qkv")}


def in_layers(prefix: str, **names: str) -> dict[str, str]:
    """Rows `blk.{}.<key>` → `<prefix><value>`."""
    return {f"blk.{{}}.{key}": prefix + name for key, name in names.items()}


# Read by the configuration, not weights: rotary frequency factors.
NOT_WEIGHTS = re.compile(r"^(rope_freqs|rope_factors_(long|short))\.weight$|\.(attn_rot_embd|rope_freqs)\.weight$")


@dataclass(frozen=True)
class NameTable:
    """The names of one file.

    Args:
        rows: by hand; they win.
        derived: GGUF names without ending to the Hugging Face names, whole, that the package gives them.
    """

    rows: Names
    derived: Mapping[str, frozenset[str]]

    def find(self, stored: str) -> tuple[str, ...]:
        """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`; empty for a name that is not known."""
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?", stored)
        if match is None:
            return ()
        layer, stem, ending = match.groups()
        key = stem if layer is None else f"blk.{{}}.{stem}"
        whole, found = self.rows.get(f"{key}.{ending or ''}"), self.rows.get(key)
        if isinstance(whole, str):
            names = [whole]
        elif found is not None:
            names = [f"{name}.{ending}" for name in ((found,) if isinstance(found, str) else found)]
        else:
            names = _with_ending(self.derived.get(key, frozenset()), ending)
        return tuple(name.replace("{}", layer or "") for name in names)


def derive_names(architecture: str, weights: Iterable[str]) -> dict[str, frozenset[str]]:
    """What the gguf package calls each weight of a family, `{i}` in its names being the layer."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = get_tensor_name_map(kind, 1)
    found: dict[str, set[str]] = {}
    for name in weights:
        stem = re.sub(r"\.(weight|bias)$", "", name).replace("{i}", "0").replace(".{e}", "")
        options = (stem, stem.removeprefix("model."), stem.removeprefix("transformer."))
        stored = next((it for option in options if (it := known.get_name(option)) is not None), None)
        if stored is not None:
            found.setdefault(re.sub(r"^blk\.0\.", "blk.{}.", stored), set()).add(name.replace("{i}", "{}"))
    return {stored: frozenset(names) for stored, names in found.items()}


def _with_ending(names: Iterable[str], ending: str | None) -> list[str]:
    """The one name with this ending, or the one without any."""
    same = [name for name in names if ending and name.endswith(f".{ending}")]
    found = same or [name for name in names if not name.endswith((".weight", ".bias"))]
    return found if len(found) == 1 else []
