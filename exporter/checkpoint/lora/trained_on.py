"""Whether an adapter says that it was trained on another model; tensors of equal shapes would merge all the same."""

import re
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import CheckpointError

from ..checkpoint import Checkpoint
from .settings import AdapterSettings

_PRECISION = re.compile(
    r"([-_.](unsloth|bnb|[248]bit|int[48]|fp8|[bf]f?(16|32)|fp(16|32)|gptq|awq|gguf|i?q\d\w*|dynamic|mlx|onnx|hf))+$"
)
_TASKS = (None, "CAUSAL_LM", "FEATURE_EXTRACTION", "SEQ_CLS")


def other_base(settings: AdapterSettings, checkpoint: Checkpoint) -> Iterator[str]:
    """Warnings: the base's name, revision, class or task is not that of the checkpoint.

    A merge cannot tell: models of one family have the same names and shapes.

    Raises:
        CheckpointError: a name that is no text.
    """
    base, revision = _text(settings, "base_model_name_or_path"), _text(settings, "revision")
    names = _names(checkpoint)
    if base and not _is_folder(base, checkpoint) and _plain(base) not in names:
        yield (
            f"{settings.where}: was trained on {base!r}, and is merged into {checkpoint.name!r}"
            f"{_said(checkpoint)}. If these are not the same weights, the result is wrong: give that base."
        )
    if revision and revision not in ("main", checkpoint.revision):
        yield (
            f"{settings.where}: was trained on revision {revision!r} of its base, and "
            f"{checkpoint.revision or 'which one this is'} {'is given' if checkpoint.revision else 'is not known'}."
        )
    yield from _other_class(settings, checkpoint)


def _other_class(settings: AdapterSettings, checkpoint: Checkpoint) -> Iterator[str]:
    task, mapping = settings.values.get("task_type"), settings.values.get("auto_mapping")
    if task not in _TASKS:
        yield f"{settings.where}: adapter_config.json: task_type {task!r}: was trained for another kind of model."
    trained = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    classes = checkpoint.config.get("architectures")
    if trained and isinstance(classes, list) and classes and trained not in classes:
        yield f"{settings.where}: was trained on a {trained}, and is merged into a {', '.join(map(str, classes))}."


def _text(settings: AdapterSettings, key: str) -> str:
    value = settings.values.get(key)
    if not isinstance(value, str | None):
        raise CheckpointError(f"{settings.where}: adapter_config.json: {key} must be a text or null, got {value!r}.")
    return value or ""


def _is_folder(base: str, checkpoint: Checkpoint) -> bool:
    """The base is a path, and the checkpoint is there."""
    path = checkpoint.path
    return path is not None and Path(base).exists() and Path(base).resolve() == path.resolve()


def _names(checkpoint: Checkpoint) -> set[str]:
    """What the checkpoint may be called: in its config, by its folder or file, in a hub's cache."""
    names = [str(checkpoint.config.get("_name_or_path") or ""), *checkpoint.name.split(" + ")]
    if checkpoint.path is not None:
        for path in {checkpoint.path, checkpoint.path.resolve()}:
            names += [path.stem if path.suffix == ".gguf" else path.name]
            names += [part.replace("--", "/") for part in path.parts if part.startswith("models--")]
    return {_plain(name) for name in names if name}


def _plain(name: str) -> str:
    """A name without its organization and how its weights are stored."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower().removesuffix(".gguf")
    return re.sub(r"[^a-z0-9]", "", _PRECISION.sub("", last))


def _said(checkpoint: Checkpoint) -> str:
    stated = checkpoint.config.get("_name_or_path")
    return f", which calls itself {stated!r}" if stated and stated != checkpoint.name else ""
