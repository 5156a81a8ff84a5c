"""Whether models can run here, on what, and what to expect: the facts behind `onnxlm doctor`."""

from dataclasses import dataclass
from typing import Any

from ..errors import OnnxlmError
from ..host.byte_units import format_bytes
from ..host.machine import Machine
from ..host.packages import Package, onnxruntime_wheels, packages
from ..ort.cuda_check import missing_for_cuda
from ..ort.providers import PROVIDERS
from ..ort.session import onnxruntime, operator_has_input

# An ONNX model of one Identity node: that it runs proves that the wheel fits this machine.
_IDENTITY = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)
_WEIGHTS_OF_A_BILLION = 1e9 * 5 / 8  # bytes of 10⁹ parameters at 5 bits each, scales included


@dataclass(frozen=True)
class Provider:
    """An execution provider: None as `problem` means that it is ready."""

    name: str
    problem: str | None


@dataclass(frozen=True)
class Diagnosis:
    """What was found. `problems` need doing something about; `advice` is what would be fast here."""

    providers: tuple[Provider, ...]
    features: dict[str, bool]
    problems: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def runs_on_cpu(self) -> bool:
        """Whether the CPU provider ran a graph."""
        return any(provider.name == "cpu" and provider.problem is None for provider in self.providers)


def diagnose(machine: Machine) -> Diagnosis:
    """Try each provider and look through the installation."""
    providers = tuple(Provider(name, _problem(name)) for name in PROVIDERS)
    cpu = next(provider for provider in providers if provider.name == "cpu")
    return Diagnosis(providers, _features(cpu), tuple(_problems(cpu)), tuple(_advice(machine)))


def _problem(provider: str) -> str | None:
    """Why a provider cannot run a graph here, or None; what it needs is looked for before it is tried."""
    try:
        module = onnxruntime()
        missing = missing_for_cuda(module) if provider == "cuda" else None
        return missing or _failure(module, PROVIDERS[provider])
    except OnnxlmError as error:
        return str(error)


def _failure(module: Any, provider: str) -> str | None:
    """Why a graph of one node does not run on a provider, or None."""
    try:
        import numpy as np

        options = module.SessionOptions()
        options.log_severity_level = 4  # what it says is in the exception, too
        session = module.InferenceSession(_IDENTITY, options, providers=[provider], enable_fallback=0)
        if session.get_providers()[0] != provider:
            return f"ONNX Runtime did not start {provider}, and says no reason."
        session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the diagnosis
        return f"ONNX Runtime is installed and does not run: {error}"
    return None


def _features(cpu: Provider) -> dict[str, bool]:
    if cpu.problem is not None:
        return {}
    return {"query_seqlens": operator_has_input("GroupQueryAttention", "query_seqlens")}


def _problems(cpu: Provider) -> list[str]:
    problems = [cpu.problem] if cpu.problem else []
    wheels = onnxruntime_wheels()
    if len(wheels) > 1:
        problems.append(
            f"{' and '.join(wheels)} are both installed and overwrite each other's files. "
            f"pip uninstall -y {' '.join(wheel.split()[0] for wheel in wheels)}, then install one of them again."
        )
    old = [package for package in packages() if package.installed and not package.usable]
    problems += [f"{p.name} {p.installed} is older than {p.minimum}: {_remedy(p)}" for p in old]
    return problems


def _remedy(package: Package) -> str:
    extra = "" if package.extra == "base" else f"[{package.extra}]"
    return f"pip install --upgrade 'onnxlm{extra}'"


def _advice(machine: Machine) -> list[str]:
    if machine.integer_dot:
        advice = [f"4- and 8-bit weights with 8-bit activations: {machine.integer_dot} makes their products fast."]
    else:
        advice = ["4- and 8-bit weights save memory; without VNNI (or ARM's dot product) they gain less speed."]
    if machine.read_bandwidth:
        most = machine.read_bandwidth / _WEIGHTS_OF_A_BILLION
        advice.append(
            f"{machine.read_bandwidth / 1e9:.0f} GB/s from memory: a step reads every weight once, whatever the batch, "
            f"so a model of 1 billion parameters at 5 bits decodes at most {most:.0f} steps a second."
        )
    free, largest = format_bytes(machine.available_memory), machine.available_memory / _WEIGHTS_OF_A_BILLION
    advice.append(
        f"{free} of memory are free: room for {largest:.0f} billion parameters at 5 bits, less what the KV cache needs "
        "(`onnxlm inspect` shows it per token)."
    )
    return advice
