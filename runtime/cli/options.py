"""The options of a command that become SamplingParams."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--max-tokens", type=int, default=512, show_default=True, help="Most tokens of an answer."),
    click.option("--temperature", type=float, help="0 is greedy; default: the model's own."),
    click.option("--top-k", type=int, help="Keep the K likeliest tokens; 0 keeps all."),
    click.option("--top-p", type=float, help="Keep the likeliest tokens that together reach this probability."),
    click.option("--min-p", type=float, help="Keep tokens at least this share as likely as the likeliest."),
    click.option("--seed", type=int, help="Repeat an answer: the same seed, the same text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text. Repeatable."),
    click.option("--stop-token-id", type=int, multiple=True, metavar="ID", help="End at this token. Repeatable."),
    click.option("--min-tokens", type=int, default=0, help="No end before this many tokens."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the model's end-of-text token."),
    click.option("--repetition-penalty", type=float, help="Above 1: avoid tokens of prompt and answer."),
    click.option("--presence-penalty", type=float, default=0.0, help="Subtracted for tokens of the answer."),
    click.option("--frequency-penalty", type=float, default=0.0, help="Subtracted for each time they occurred."),
    click.option("--logit-bias", multiple=True, metavar="ID=BIAS", help="Add to the logit of a token. Repeatable."),
    click.option("--logprobs", type=int, metavar="N", help="With --json: N alternatives for each token."),
    click.option("-n", "n", type=int, default=1, help="How many answers."),
)


def sampling_options(command: Command) -> Command:
    """Decorate a command with all of them; `sampling_arguments` takes them out of its arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sampling_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Take the sampling options out of `options`, as arguments of SamplingParams.

    Raises:
        click.BadParameter: --logit-bias is not ID=BIAS.
    """
    names = (
        "max_tokens temperature top_k top_p min_p seed stop min_tokens ignore_eos repetition_penalty "
        "presence_penalty frequency_penalty logprobs n"
    )
    arguments = {name: options.pop(name) for name in names.split()}
    arguments["stop_token_ids"] = options.pop("stop_token_id")
    arguments["logit_bias"] = dict(_bias(entry) for entry in options.pop("logit_bias"))
    return arguments


def _bias(entry: str) -> tuple[int, float]:
    name, _, value = entry.partition("=")
    try:
        return int(name), float(value)
    except ValueError:
        raise click.BadParameter(f"{entry!r} is not ID=BIAS, such as 42=-100", param_hint="--logit-bias") from None
