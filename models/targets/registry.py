"""The providers that graphs can be exported for: one file each."""

from collections.abc import Mapping

from . import cpu, cuda
from .provider import Provider

PROVIDERS: Mapping[str, Provider] = {module.PROVIDER.name: module.PROVIDER for module in (cpu, cuda)}
