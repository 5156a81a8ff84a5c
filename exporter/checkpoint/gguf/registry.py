"""All GGUF architectures: those of every file in `architectures`."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from runtime.errors import CheckpointError, UnsupportedError

from . import architectures as folder
from .config import Keys
from .family import GgufFamily
from .file import GgufFile


def _found() -> Iterator[tuple[str, GgufFamily]]:
    for module in iter_modules(folder.__path__):
        yield from getattr(import_module(f"{folder.__name__}.{module.name}"), "ARCHITECTURES", {}).items()


FAMILIES: Mapping[str, GgufFamily] = dict(_found())


def architectures(model_type: str) -> tuple[str, ...]:
    """The GGUF architectures that hold this Hugging Face family."""
    own = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    return tuple(own + [name for name, family in FAMILIES.items() if model_type in family.also])


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
    return family.variant(keys, family) if family.variant else family
