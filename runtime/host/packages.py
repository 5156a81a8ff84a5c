"""Which of the packages that onnxlm can use are installed, by what they are for."""

import functools
import re
from collections import Counter
from dataclasses import dataclass
from importlib import metadata

DISTRIBUTION = "onnxlm"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[^]]*\])?(?P<limits>[^;]*)(;\s*(?P<marker>.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Package:
    """One package: what it is for (an extra, or "base"), the version that is installed, the oldest that will do."""

    name: str
    extra: str
    installed: str | None
    minimum: str | None

    @property
    def usable(self) -> bool:
        """Whether it is installed and recent enough."""
        return self.installed is not None and (
            self.minimum is None or _numbers(self.installed) >= _numbers(self.minimum)
        )


def packages() -> tuple[Package, ...]:
    """Every package that onnxlm's own metadata names, in its order; none if onnxlm itself is not installed."""
    found = (_parse(line) for line in _requirements())
    return tuple(package for package in found if package.name != DISTRIBUTION)


@functools.cache  # it reads a file, and a server says it in every answer
def own_version() -> str:
    """Version of the installed onnxlm; "unknown" when it runs from a bare folder."""
    return _installed(DISTRIBUTION) or "unknown"


def onnxruntime_wheels() -> tuple[str, ...]:
    """Installed distributions that provide `import onnxruntime`. More than one overwrite each other's files."""
    claims = metadata.packages_distributions().get("onnxruntime", [])
    return tuple(sorted(f"{name} {_installed(name)}" for name in Counter(claims)))


def _requirements() -> list[str]:
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []


def _parse(requirement: str) -> Package:
    match = _REQUIREMENT.match(requirement)
    assert match is not None
    extra = _EXTRA.search(match["marker"] or "")
    limit = re.search(r"[>=]=\s*([\w.]+)", match["limits"])
    return Package(match["name"], extra[1] if extra else "base", _installed(match["name"]), limit[1] if limit else None)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
