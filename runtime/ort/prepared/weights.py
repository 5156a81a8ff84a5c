"""Weights in the form that this processor's kernels read, packed once, in a file that every process maps.

CACHE/prepared/KEY/  or  BUNDLE/prepared/KEY/
  prefill.onnx       the graph as ONNX Runtime has optimized it; says where in weights.data each weight lies
  weights.data       every weight twice: as in the bundle, and packed
  prepared.json      what KEY was made of, and the sizes and hashes of both files

ONNX Runtime packs each weight again at every start and looks for the result by its hash. So it reads what the bundle
holds, too, and what was packed elsewhere is not taken: a wrong file costs memory, not answers. After the start, what is
mapped is shared between processes and costs no anonymous memory; without it, each session has a packed copy of its own.
"""

import functools
import hashlib
import json
import logging
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...bundle.bundle import Bundle, new_bundle, sha256_of
from ...bundle.json_codec import StrictJsonError, decode, loads
from ...bundle.manifest import FileEntry
from ...bundle.onnx_outline import read_outline
from ...bundle.sequence_task import require_generation
from ...errors import BundleError, ExecutionError, IntegrityError, OptionError
from ...host.cache_folder import cache_folder
from ...host.machine import processor_flags, processor_name
from ..session import onnxruntime, open_session
from .mapped_pages import release

FOLDER = "prepared"
_GRAPH, _WEIGHTS, _ABOUT = "prefill.onnx", "weights.data", "prepared.json"
_LAYOUT = 2  # counted up when these files change
_SMALLEST = 1024  # bytes of a weight; smaller ones stay in the graph
_BLOCK, _BLOCKS = 1 << 9, 64  # what is read of weights.data at every start
_SETTINGS = {
    "session.save_external_prepacked_constant_initializers": "1",
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": str(_SMALLEST),
}
_log = logging.getLogger("onnxlm.prepared")


@dataclass(frozen=True)
class Key:
    """What packed weights depend on: the bundle's graph and weights by their hashes, ONNX Runtime, the processor."""

    bundle: str
    onnxruntime: str
    processor: str
    layout: int = _LAYOUT

    @property
    def name(self) -> str:
        """Sixteen hexadecimal digits."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class About:
    """The content of prepared.json.

    Attributes:
        key: what the files depend on.
        target: the processor in a word, as `package --prepared-for` takes it.
        source: the bundle's folder when they were made.
        files: sizes and hashes.
        sample: a hash of blocks all over weights.data.
        stored: (offset, bytes) in weights.data of what is read at the start only, to be packed.
    """

    key: Key
    target: str
    source: str
    files: dict[str, FileEntry]
    sample: str
    stored: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Prepared:
    """Prepared weights on disk."""

    folder: Path
    about: About

    @property
    def graph(self) -> Path:
        """The graph to load in place of the bundle's prefill graph."""
        return self.folder / _GRAPH

    def release_stored(self) -> int:
        """Let go of pages that only packing reads, after a session has loaded the graph; returns bytes."""
        ranges = [(offset, offset + size) for offset, size in self.about.stored]
        return release(self.folder / _WEIGHTS, ranges)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(entry.size for entry in self.about.files.values())


def key_of(bundle: Bundle) -> Key:
    """The key of a bundle on this machine."""
    manifest = bundle.manifest
    names = sorted({manifest.graphs.prefill.file, *(name for name in manifest.files if name.endswith(".bin"))})
    content = "\n".join(f"{name} {manifest.files[name].sha256}" for name in names)
    return Key(hashlib.sha256(content.encode()).hexdigest(), onnxruntime().__version__, _processor())


def find(bundle: Bundle) -> Prepared | None:
    """What was prepared for a bundle on this machine, beside the bundle or in the cache; None if nothing fits."""
    if bundle.manifest.target.provider != "cpu":
        return None
    for folder in folders_of(bundle):
        try:
            found = _open(folder)
        except BundleError as error:
            _log.warning("%s", error)
            continue
        if found is not None and found.about.key == key_of(bundle):
            return found
    return None


def make(bundle: Bundle, *, beside: bool = False, overwrite: bool = False) -> Prepared:
    """Pack a bundle's weights for this processor, and see that the graph over them gives the same logits.

    Args:
        bundle: of the CPU provider.
        beside: write into the bundle's folder, which then can be copied or packaged, instead of the cache.
        overwrite: make it anew where it is there already.

    Raises:
        OptionError: the bundle is not for CPUs.
        BundleError: it gives no text, was made already, or the folder cannot be written.
        ExecutionError: this ONNX Runtime cannot, or the logits differ.
    """
    require_generation(bundle, "preparing weights")
    if bundle.manifest.target.provider != "cpu":
        raise OptionError(f"{bundle.folder} was built for {bundle.manifest.target.provider}: only CPUs pack weights.")
    target = folders_of(bundle)[0 if beside else 1]
    _require_space(bundle, target)
    with new_bundle(target, overwrite=overwrite, marker=_ABOUT) as folder:
        graph = bundle.path(bundle.manifest.graphs.prefill.file)
        open_session(graph, settings=_SETTINGS, optimized=folder / _GRAPH)
        if not (folder / _WEIGHTS).is_file():
            raise ExecutionError(f"ONNX Runtime {onnxruntime().__version__} wrote no packed weights of {graph}.")
        paths = [folder / name for name in (_GRAPH, _WEIGHTS)]
        files = {path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in paths}
        source, sample = str(bundle.folder.resolve()), _sample(folder / _WEIGHTS)
        about = About(key_of(bundle), processor_name(), source, files, sample, _stored(folder / _GRAPH))
        (folder / _ABOUT).write_text(json.dumps(asdict(about), indent=1), encoding="utf-8")
        _require_same_logits(bundle, folder / _GRAPH)
    return Prepared(target, about)


def packed_bytes(prepared: Prepared) -> int:
    """Bytes of all weights as kernels read them: what a decode step reads, but for embedding rows and norms."""
    return sum(tensor.packed for tensor in read_outline(prepared.graph).initializers)


def _stored(graph: Path) -> tuple[tuple[int, ...], ...]:
    """Where the weights lie that kernels have packed: no step reads them again, but for rows of a tied embedding."""
    outline = read_outline(graph)
    packed = {tensor.name for tensor in outline.initializers if tensor.packed}
    packing = [node for node in outline.nodes if packed & set(node.inputs)]
    names = {name for node in packing for name in node.inputs}
    return tuple((one.offset, one.nbytes) for one in outline.initializers if one.location and one.name in names)


def verify(prepared: Prepared) -> None:
    """Read both files whole; IntegrityError if one was altered."""
    for name, entry in prepared.about.files.items():
        if sha256_of(prepared.folder / name) != entry.sha256:
            raise IntegrityError(f"{prepared.folder}: {name} was altered. Make it anew: onnxlm prepare --overwrite.")


def remove(bundle: Bundle) -> list[Prepared]:
    """Remove what was prepared for a bundle, also for other versions and processors; returns what was removed."""
    chosen = list_prepared_of(bundle)
    for found in chosen:
        shutil.rmtree(found.folder)
    return chosen


def list_prepared_of(bundle: Bundle) -> list[Prepared]:
    """What there is for a bundle, beside it and in the cache, for this and other processors and versions."""
    beside = [found for folder in _subfolders(bundle.folder / FOLDER) if (found := _readable(folder))]
    return [one for one in (*beside, *list_prepared()) if one.about.key.bundle == key_of(bundle).bundle]


def remove_outdated(bundle: Bundle) -> list[Prepared]:
    """Remove from the cache what another ONNX Runtime or layout left of a bundle for this processor."""
    key = key_of(bundle)
    same = (one for one in list_prepared() if one.about.key.bundle == key.bundle)
    old = [one for one in same if one.about.key.processor == key.processor and one.about.key != key]
    for one in old:
        shutil.rmtree(one.folder)
    return old


def list_prepared() -> list[Prepared]:
    """What the cache holds for this and other processors; what is not whole is left out."""
    return [found for folder in _subfolders(cache_folder() / FOLDER) if (found := _readable(folder))]


def folders_of(bundle: Bundle) -> tuple[Path, Path]:
    """Where a bundle's prepared weights are looked for: beside it, and in the cache."""
    name = key_of(bundle).name
    return bundle.folder / FOLDER / name, cache_folder() / FOLDER / name


def _subfolders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("[0-9a-f]*")) if path.is_dir())


def _readable(folder: Path) -> Prepared | None:
    try:
        return _open(folder)
    except BundleError:
        return None


def _open(folder: Path) -> Prepared | None:
    """Open a folder, checking sizes, the graph's hash and a sample of the weights; None if there is none."""
    try:
        text = (folder / _ABOUT).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read ({error.strerror}), and is not used.") from error
    try:
        about = decode(About, loads(text))
        _check(folder, about)
    except (OSError, StrictJsonError, IntegrityError) as error:
        raise IntegrityError(
            f"{folder}: prepared weights are damaged ({error}); they are not used. Make them anew: "
            "onnxlm prepare BUNDLE --overwrite."
        ) from error
    return Prepared(folder, about)


def _check(folder: Path, about: About) -> None:
    if about.files.keys() != {_GRAPH, _WEIGHTS}:
        raise IntegrityError(f"files are {', '.join(about.files)}")
    for name, entry in about.files.items():
        path = folder / name
        if path.is_symlink() or path.stat().st_size != entry.size:
            raise IntegrityError(f"{name} has not {entry.size} bytes")
    if sha256_of(folder / _GRAPH) != about.files[_GRAPH].sha256 or _sample(folder / _WEIGHTS) != about.sample:
        raise IntegrityError("a hash is not the recorded one")


def _sample(path: Path) -> str:
    """A hash of blocks at even distances, both ends included: a start need not read everything to see a half copy."""
    digest, last = hashlib.sha256(), max(0, path.stat().st_size - _BLOCK)
    with path.open("rb") as file:
        for number in range(_BLOCKS):
            file.seek(last * number // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def _require_space(bundle: Bundle, target: Path) -> None:
    weights = sum(entry.size for name, entry in bundle.manifest.files.items() if name.endswith(".bin"))
    existing = next(parent for parent in target.absolute().parents if parent.exists())
    free, needed = shutil.disk_usage(existing).free, 3 * weights
    if free < needed:
        raise BundleError(
            f"{existing}: {free / 1e6:,.0f} MB are free, and prepared weights may need {needed / 1e6:,.0f} MB. "
            "Free some space, or set ONNXLM_CACHE to another disk."
        )


def _require_same_logits(bundle: Bundle, graph: Path) -> None:
    """Run a prompt and a step on both graphs; ExecutionError unless every bit is the same."""
    from ..executor import OnnxExecutor

    found = []
    for path in (None, graph):
        executor = OnnxExecutor(bundle, slots=1, context=64, graph=path)
        try:
            ids = np.arange(8) % executor.vocab_size
            found.append((executor.prefill(0, 0, ids).copy(), executor.decode(ids[:1], np.array([8])).copy()))
        finally:
            executor.close()
    if not all(np.array_equal(one, other) for one, other in zip(*found, strict=True)):
        raise ExecutionError(f"{bundle.folder}: the logits over prepared weights are not those of the bundle.")


@functools.cache
def _processor() -> str:
    """What ONNX Runtime may choose kernels by."""
    return " ".join([platform.machine(), *processor_flags()])
