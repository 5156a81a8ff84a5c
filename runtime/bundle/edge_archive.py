"""One archive for a machine without a network: a bundle, the wheels that serve it, a script that installs both.

NAME/
  bundle/        the model
  wheels/        onnxlm and everything that it needs there
  install.sh     checks SHA256SUMS, makes a virtual environment from the wheels alone, copies the bundle
  SHA256SUMS     of every other file, for `sha256sum -c`
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import OptionError
from ..host.packages import DISTRIBUTION, own_version
from .bundle import alone, naming, open_bundle

SCRIPT = """\
#!/bin/sh
# Installs {name} without a network. Each version has a folder of its own, and `current` is a link to one of them.
#
#     sh install.sh [FOLDER]               install and switch to it      (default: ./{name}-server)
#     sh install.sh --rollback [FOLDER]    switch back to the version before
#
# A server runs FOLDER/current/venv/bin/onnxlm serve FOLDER/current/{name}; restart it after a switch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rollback=no
if [ "${{1:-}}" = --rollback ]; then rollback=yes; shift; fi
target=${{1:-{name}-server}}
python=${{PYTHON:-python3}}

point() {{  # the link is replaced in one step: a server that starts meanwhile finds the old version or the new one
    ln -s "$1" "$target/.current.new"
    "$python" -c 'import os, sys; os.replace(sys.argv[1], sys.argv[2])' "$target/.current.new" "$target/current"
}}

if [ "$rollback" = yes ]; then
    [ -L "$target/previous" ] || {{ echo "$target has no version before this one" >&2; exit 1; }}
    before=$(readlink "$target/previous"); now=$(readlink "$target/current")
    point "$before"; rm "$target/previous"; ln -s "$now" "$target/previous"
    echo "$target/current is $before again; restart the server"
    exit 0
fi

(cd "$here" && sha256sum -c --quiet SHA256SUMS)
version=$(sha256sum "$here/SHA256SUMS" | cut -c1-12)
if [ -e "$target/$version" ]; then
    echo "$target/$version exists already: this very archive is installed there" >&2
    exit 1
fi
if [ -e "$target" ] && [ ! -L "$target/current" ]; then
    echo "$target exists and was not made by this script: give another folder, or remove it" >&2
    exit 1
fi
mkdir -p "$target"
target=$(cd "$target" && pwd)
trap 'rm -rf "$target/$version"' EXIT
mkdir "$target/$version"
"$python" -m venv "$target/$version/venv"
"$target/$version/venv/bin/python" -m pip install -q --disable-pip-version-check --no-index \\
    --find-links "$here/wheels" 'onnxlm[serve,{extra}]=={version}'
cp -R "$here/bundle" "$target/$version/{name}"
"$target/$version/venv/bin/onnxlm" inspect --verify "$target/$version/{name}" > "$target/$version/inspect.txt"
trap - EXIT
if [ -L "$target/current" ]; then
    rm -f "$target/previous"
    ln -s "$(readlink "$target/current")" "$target/previous"
fi
point "$version"
echo "installed. Start it with:"
echo "  $target/current/venv/bin/onnxlm serve $target/current/{name}"
"""
_CHUNK = 1 << 20
_SOURCES = ("exporter", "models", "quantizer", "runtime", "pyproject.toml", "README.md", "LICENSE")


def make_archive(bundle: Path, output: Path, wheels: Path | None, extra: str, beside: Sequence[Path] = ()) -> list[str]:
    """Write the archive.

    Args:
        bundle: a folder, checked before anything is written.
        output: the archive; its name without ".tar" is that of the folder inside. It appears when it is complete.
        wheels: a folder of wheels to include, or None for an archive without any.
        extra: "cpu" or "gpu".
        beside: folders of packed weights that the archive's bundle is to have, wherever they lie here.

    Returns:
        The names of its files.

    Raises:
        BundleError: the folder is not a bundle, or one of its files was altered.
        OptionError: there is no wheel of onnxlm.
    """
    opened = open_bundle(bundle, verify=True)
    name = output.name.removesuffix(".tar")
    files = {f"bundle/{path.relative_to(opened.folder).as_posix()}": path for path in _files(opened.folder)}
    for folder in beside:
        files |= {f"bundle/prepared/{folder.name}/{path.name}": path for path in _files(folder)}
    if wheels is not None:
        found = sorted(wheels.glob("*.whl"))
        if not any(path.name.startswith("onnxlm-") for path in found):
            raise OptionError(f"{wheels}: holds no wheel of onnxlm. Make one with `pip wheel`, or use --wheelhouse.")
        files |= {f"wheels/{path.name}": path for path in found}
    script = SCRIPT.format(name=bundle.resolve().name, version=own_version(), extra=extra).encode()
    temporary = output.with_name(f".{output.name}.partial")
    with alone(output, temporary), naming(output):
        _write(temporary, name, files, script if wheels is not None else None)
        temporary.replace(output)
    return sorted(files)


def collect_wheels(folder: Path, extra: str, constraints: Path | None = None) -> None:
    """Put the wheels of onnxlm with its server, for this machine's kind and Python, into a folder; needs a network.

    Raises:
        OptionError: pip could not; its words are in the message.
    """
    limits = ["--constraint", str(constraints)] if constraints else []
    with tempfile.TemporaryDirectory() as copy:
        wanted = requirement(extra, Path(copy))
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder), *limits, wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own words
    if done.returncode:
        words = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise OptionError(f"pip could not collect the wheels of {wanted}:\n{words}")


def requirement(extra: str, copy: Path) -> str:
    """What pip is asked for: the source that this onnxlm was installed from, or its version.

    The source is copied to `copy` first: building leaves files beside it, and takes old ones into the wheel.
    """
    extras = f"[serve,{extra}]"
    # In a source folder two are found: egg-info, which does not know where it is from, and what was installed.
    origins = [found.read_text("direct_url.json") for found in metadata.distributions(name=DISTRIBUTION)]
    origin = json.loads(next(filter(None, origins), "{}"))
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file" or "dir_info" not in origin:
        return f"{DISTRIBUTION}{extras}=={own_version()}"
    source = Path(url2pathname(url.path))
    for name in _SOURCES:
        if (source / name).is_dir():
            shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, copy)
    return f"{copy}{extras}"


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _write(target: Path, name: str, files: dict[str, Path], script: bytes | None) -> None:
    sums = []
    with tarfile.open(target, "w") as archive:
        for inside, path in files.items():
            archive.add(path, f"{name}/{inside}", recursive=False)
            sums.append(f"{_sha256(path)}  {inside}")
        if script is not None:
            _add(archive, f"{name}/install.sh", script, 0o755)
            sums.append(f"{hashlib.sha256(script).hexdigest()}  install.sh")
        _add(archive, f"{name}/SHA256SUMS", ("\n".join(sums) + "\n").encode(), 0o644)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
