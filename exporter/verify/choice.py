"""How an export will be verified: decided before any weight is read, by what is installed and what memory is free."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

from models.targets.registry import PROVIDERS
from runtime.errors import VerificationError
from runtime.host.memory import available_memory

from .references import ModuleReference, Reference, TransformersReference

Method = Literal["auto", "transformers", "self-consistency", "none"]

_LIBRARIES = 270 << 20  # torch and transformers, loaded, with a few activations
_PEFT = 150 << 20


@dataclass(frozen=True)
class VerificationPlan:
    """What will be done.

    Args:
        runs: whether anything is.
        reference: None compares prefill with decode.
        memory: bytes that the reference takes, in a process of its own.
        warnings: what a user should know.
    """

    runs: bool
    reference: Reference | None = None
    memory: int = 0
    warnings: tuple[str, ...] = ()


def plan_verification(
    reference: Reference, method: Method, provider: str, parameters: int, beside: int = 0
) -> VerificationPlan:
    """Choose.

    Args:
        reference: of the source.
        method: what the user wants.
        provider: what the graphs are for; not all can be run here.
        parameters: of the model, tied ones once.
        beside: parameters that are in memory twice while the reference is built.

    Raises:
        VerificationError: the user wants the reference, and it cannot run here.
    """
    if method == "none" or not PROVIDERS[provider].runs_here:
        return VerificationPlan(False)
    if method == "self-consistency":
        return VerificationPlan(True)
    if isinstance(reference, ModuleReference):
        return VerificationPlan(True, reference)
    adapters = isinstance(reference, TransformersReference) and bool(reference.lora)
    needed = ("torch", "transformers", "peft") if adapters else ("torch", "transformers")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    memory = 4 * (parameters + beside) + _LIBRARIES + (_PEFT if adapters else 0)
    if missing:
        return _instead(
            method, f"an independent reference needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    if memory > available_memory():
        free = f"{available_memory() / 1e9:.2f} GB are free"
        return _instead(method, f"transformers as a reference needs about {memory / 1e9:.2f} GB of memory, and {free}")
    return VerificationPlan(True, reference, memory)


def _instead(method: Method, why: str) -> VerificationPlan:
    if method == "transformers":
        raise VerificationError(f"{why}. Pass --verify self-consistency to compare prefill with decode instead.")
    return VerificationPlan(
        True, warnings=(f"{why}. Prefill is compared with decode instead, which cannot see a wrongly read weight.",)
    )
