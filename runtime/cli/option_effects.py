"""Options that change something only beside others, or in place of them: given without effect, they are an error."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource


@dataclass(frozen=True)
class Effects:
    """Of the options of one command, by parameter name.

    Args:
        needs: an option does nothing unless one of these is given.
        excludes: an option does nothing beside any of these.
    """

    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


EFFECTS: Mapping[str, Effects] = {
    "export": Effects({"method": ("quantize",)}),
    "compare": Effects({"tokens": ("text",)}),
    "run": Effects({"concurrency": ("source",)}, {"stats": ("source",), "system": ("raw",)}),
    "embed": Effects(excludes={"prompt_name": ("prompt",)}),
    "serve": Effects(excludes={"host": ("uds",), "port": ("uds",)}),
    "package": Effects(
        {"constraints": ("wheelhouse",), "extra": ("wheelhouse", "wheels")}, {"wheels": ("wheelhouse",)}
    ),
    "bench": Effects(
        {"output": ("kernels",)},
        {
            "prompt": ("compare", "kernels"),
            "batch": ("compare", "concurrency", "kernels"),
            "tokens": ("kernels",),
            "repeat": ("profile", "kernels"),
            "provider": ("kernels",),
            "no_cold": ("profile", "compare", "concurrency", "kernels"),
            "profile": ("kernels",),
            "compare": ("kernels",),
            "concurrency": ("kernels",),
        },
    ),
}


def refusing_idle_options(command: click.Command, effects: Effects) -> None:
    """Let a command look at what it is given before it begins."""
    begin: Callable[..., Any] | None = command.callback
    assert begin is not None

    @functools.wraps(begin)
    def checked(*args: Any, **options: Any) -> Any:
        _require_effect(click.get_current_context(), effects)
        return begin(*args, **options)

    command.callback = checked


def _require_effect(context: click.Context, effects: Effects) -> None:
    given = {
        name for name in context.params if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
    flags = {parameter.name: parameter.opts[-1] for parameter in context.command.params}
    for name, others in effects.needs.items():
        if name in given and not given & {*others}:
            wanted = " or ".join(flags[other] for other in others)
            raise click.UsageError(f"{flags[name]} has no effect without {wanted}. Leave it out, or add {wanted}.")
    for name, others in effects.excludes.items():
        if name in given and (found := [other for other in others if other in given]):
            raise click.UsageError(f"{flags[name]} has no effect beside {flags[found[0]]}: leave out one of the two.")
