"""What an adapter's folder and settings name and the merge does not use: each is told by name, or refused."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from runtime.errors import UnsupportedError

from .settings import AdapterSettings

_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
              "tokenizer.model", "vocab.json", "merges.txt")  # fmt: skip
_TRAINING = re.compile(r"(training_args|optimizer|scheduler|rng_state.*|scaler|random_states.*)\.(bin|pt|pth|pkl)")
_ROWS = "new_embeddings.safetensors"


def unused_files(adapter: Path, weights: str) -> Iterator[str]:
    """Warnings of files that are not read; `weights` is the one that is.

    Raises:
        UnsupportedError: rows of new tokens in a file of their own, which PEFT does not read either.
    """
    names = {path.name for path in adapter.iterdir() if path.is_file()}
    if _ROWS in names:
        raise UnsupportedError(
            f"{adapter / _ROWS}: rows of new tokens beside the adapter are not read, by PEFT neither. Save the adapter "
            "with its embeddings (save_embedding_layers=True), or take the file out."
        )
    others = {name for name in names if name.endswith((".safetensors", ".bin", ".pt")) and not _TRAINING.match(name)}
    others = (others | (names & {"generation_config.json"})) - {weights}
    if "tokenizer.json" not in names:
        others |= names & {*_TOKENIZER}
    if others:
        why = "" if "tokenizer.json" in names else " A tokenizer counts with its tokenizer.json only."
        yield f"{adapter}: {', '.join(sorted(others))}: not used; the adapter is {weights}.{why}"


def untrained_modules(settings: AdapterSettings, modules: Collection[str], trained: Collection[str]) -> Iterator[str]:
    """A warning of modules that the settings target and the file has no factors of; PEFT leaves them as they are."""
    missing = [name for name in modules if _is_target(name, settings) and name not in trained]
    if missing:
        yield (
            f"{settings.where}: target_modules names {len(missing)} modules that the file has no factors of, such as "
            f"{missing[0]}: they stay those of the base model, as in PEFT. Is the file whole?"
        )


def _is_target(name: str, settings: AdapterSettings) -> bool:
    if not _matches(name, settings.values.get("target_modules")):
        return False
    if _matches(name, settings.values.get("exclude_modules")):
        return False
    layers = settings.values.get("layers_to_transform")
    if layers is None or settings.values.get("layers_pattern"):
        return layers is None  # whose layers a pattern of its own counts is PEFT's matter
    index = re.search(r"\.(\d+)\.", name)
    return index is not None and int(index.group(1)) in (layers if isinstance(layers, list) else [layers])


def _matches(name: str, targets: object) -> bool:
    """As PEFT does: a text is a regular expression of the whole name, a list holds names and their ends."""
    if isinstance(targets, str):
        try:
            return targets != "all-linear" and re.fullmatch(targets, name) is not None
        except re.error:
            return False
    return isinstance(targets, list) and any(name == end or name.endswith(f".{end}") for end in targets)
