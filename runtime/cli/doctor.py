"""`onnxlm doctor`: what this machine can run, and what is missing."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..advice.doctor import Diagnosis
    from ..host.machine import Machine
    from ..host.packages import Package

_PURPOSES = {
    "base": "always",
    "cpu": "run on a CPU",
    "gpu": "run on a GPU",
    "export": "export and quantize",
    "serve": "serve",
    "report": "reports with plots",
}
_NOT_FOR_USERS = ("dev",)


@click.command()
@click.option("--quick", is_flag=True, help="Do not measure how fast memory is read.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(context: click.Context, quick: bool, as_json: bool) -> None:
    """Show what this machine can run, what is missing, and what would be fast here.

    Exits with 0 if models run on the CPU, with 1 if not.

    \b
    Example:
      onnxlm doctor
      onnxlm doctor --json
    """
    from ..advice.doctor import diagnose
    from ..host.machine import this_machine
    from ..host.packages import onnxruntime_wheels, own_version, packages

    machine = this_machine(measure=not quick)
    diagnosis = diagnose(machine)
    shown = [package for package in packages() if package.extra not in _NOT_FOR_USERS]
    if as_json:
        versions = {"onnxlm": own_version(), "python": _python(), "onnxruntime_wheels": onnxruntime_wheels()}
        click.echo(json.dumps(versions | _facts(machine, diagnosis, shown), indent=1))
    else:
        click.echo(f"onnxlm {own_version()}, Python {_python()}\n")
        click.echo("\n\n".join("\n".join(lines) for lines in _sections(machine, diagnosis, shown) if lines))
    context.exit(0 if diagnosis.runs_on_cpu else 1)


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _facts(machine: "Machine", diagnosis: "Diagnosis", shown: "list[Package]") -> dict[str, Any]:
    found = asdict(diagnosis) | {"runs_on_cpu": diagnosis.runs_on_cpu}
    return found | {"machine": asdict(machine), "packages": [asdict(p) | {"usable": p.usable} for p in shown]}


def _sections(machine: "Machine", diagnosis: "Diagnosis", shown: "list[Package]") -> list[list[str]]:
    from ..host.byte_units import format_bytes

    speed = f", read at {machine.read_bandwidth / 1e9:.1f} GB/s" if machine.read_bandwidth else ""
    sets = ", ".join(machine.features) or "no instruction set that matters here"
    hardware = [
        f"machine    {machine.system}, {machine.processor}",
        f"cores      {machine.cores} usable, with {sets}",
        f"memory     {format_bytes(machine.available_memory)} available{speed}",
    ]
    providers = [f"{p.name:10} {p.problem or 'ready: ran a graph'}" for p in diagnosis.providers]
    for name, there in diagnosis.features.items():
        providers.append(f"operators  {name}: {'available' if there else 'not in this version of ONNX Runtime'}")
    return [
        hardware,
        providers,
        _package_lines(shown),
        [f"fast here  {line}" if i == 0 else f"           {line}" for i, line in enumerate(diagnosis.advice)],
        [f"PROBLEM    {problem}" for problem in diagnosis.problems],
    ]


def _package_lines(shown: "list[Package]") -> list[str]:
    from ..host.packages import onnxruntime_wheels

    lines = []
    for extra, purpose in _PURPOSES.items():
        members = [package for package in shown if package.extra == extra]
        listed = ", ".join(f"{p.name} {p.installed or 'missing'}" for p in members)
        remedy = "" if all(p.usable for p in members) else f"  (pip install 'onnxlm[{extra}]')"
        if extra == "cpu" and onnxruntime_wheels():
            remedy = ""  # a wheel is there, and a second one would overwrite its files
        if members:
            lines.append(f"{purpose:20} {listed}{'' if extra in ('base', 'gpu') else remedy}")
    return lines
