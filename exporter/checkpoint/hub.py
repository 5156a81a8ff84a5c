"""Models by their hub id, "organisation/name" or "organisation/name/file.gguf", through huggingface_hub's cache."""

import contextlib
import functools
import re
from pathlib import Path

from runtime.errors import CheckpointError, MissingDependencyError

HUB_ID = re.compile(r"([\w.-]+/[\w.-]+?)(?:/([\w./-]+\.gguf))?")
TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md")
WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin",))  # the first kind that the repository has


def is_hub_id(source: str) -> bool:
    """Whether a source that is no path reads like a hub id."""
    return HUB_ID.fullmatch(source) is not None


def fetch(source: str, revision: str | None, *, offline_first: bool = False) -> tuple[Path, str]:
    """Download what an export needs, or find it in the cache.

    Args:
        source: a hub id.
        revision: branch, tag or commit; None is the main branch.
        offline_first: take what was fetched before, if anything was, without asking for a newer commit.

    Returns:
        The folder (or the GGUF file), and the commit that it is at.

    Raises:
        CheckpointError: no such model, no access, or no connection and not in the cache.
        MissingDependencyError: huggingface_hub is not installed.
    """
    match = HUB_ID.fullmatch(source)
    assert match is not None
    repository, file = match.groups()
    if file is not None:
        folder = _snapshot(repository, revision, (file,), offline_first)
        return folder / file, folder.name
    for weights in WEIGHTS:
        folder = _snapshot(repository, revision, (*TEXT_FILES, *weights), offline_first)
        if any(found for pattern in weights for found in folder.glob(pattern)):
            break
    return folder, folder.name


def _snapshot(repository: str, revision: str | None, patterns: tuple[str, ...], offline_first: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingDependencyError(
            f"{repository}: is no path here, and fetching it needs huggingface_hub: pip install 'onnxlm[hub]'."
        ) from error
    download = functools.partial(snapshot_download, repository, revision=revision, allow_patterns=list(patterns))
    if offline_first:
        with contextlib.suppress(Exception):  # not fetched yet: whatever is wrong shows below
            return _whole(Path(download(local_files_only=True)), patterns)
    try:
        folder = download()
    except Exception as error:  # the library and its transport raise many kinds
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        at = f" at {revision}" if revision else ""
        raise CheckpointError(
            f"{repository}: no such path here, and it cannot be fetched from the hub{at}: {first} "
            "Check the name and the connection (HF_TOKEN for gated models), or give a downloaded folder."
        ) from error
    return Path(folder)


def _whole(folder: Path, patterns: tuple[str, ...]) -> Path:
    """The folder, if it has files of the last pattern; an interrupted download has none."""
    if not any(folder.glob(patterns[-1])):
        raise FileNotFoundError(patterns[-1])
    return folder
