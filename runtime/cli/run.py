"""`onnxlm run`: one answer, or a chat in the terminal."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..ort.providers import CHOICES
from .options import sampling_arguments, sampling_options
from .source import bundle_of

if TYPE_CHECKING:
    from ..llm import LLM
    from ..options import SamplingParams

_ADAPTER = "adapter"  # the name of the only one
_INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="The system message of the chat.")
@click.option("--raw", is_flag=True, help="Complete PROMPT as it is, without the model's chat template.")
@click.option("--provider", default="auto", show_default=True, type=click.Choice(CHOICES))
@click.option("--context", type=int, help="Most tokens of the conversation; default: the model's context.")
@click.option("--threads", type=int, help="Threads; default: the number of cores.")
@click.option(
    "--speculation",
    default=0,
    type=click.IntRange(0),
    help="Number of tokens to draft from the text: for copying and editing.",
)
@click.option("--draft", metavar="MODEL", help="A smaller model with the same tokenizer, to draft tokens.")
@click.option(
    "--lora",
    type=click.Path(path_type=Path),
    help="A LoRA adapter to answer with; MODEL is a bundle of `onnxlm export BUNDLE --lora-inputs`.",
)
@click.option("--no-prepare", is_flag=True, help="Pack no weights in the background for the next start.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON when it is complete.")
@click.option("--stats", is_flag=True, help="Print tokens per second to stderr.")
@click.option("--verify", is_flag=True, help="Compare the hash of every file with the manifest first.")
@click.option("--input", "source", type=click.Path(path_type=Path), help="A file of requests, one JSON object a line.")
@click.option("--output", "target", type=click.Path(path_type=Path), help="The file of answers; resumed if it exists.")
@click.option("--concurrency", type=int, default=16, show_default=True, help="With --input: answers at a time.")
@sampling_options
def run(
    model: str, prompt: str | None, as_json: bool, source: Path | None, target: Path | None, **options: Any
) -> None:
    """Answer PROMPT with MODEL, or chat if there is none. A PROMPT of - is read from standard input.

    MODEL is a bundle, or a checkpoint: a GGUF file, a Hugging Face folder, or hf:organisation/name. A checkpoint is
    made into a 4-bit bundle the first time, in a cache (`onnxlm cache`); the next start finds it there.

    Ctrl-C stops an answer; in a chat, twice at the prompt leaves.

    With --input and --output, answer a file: each line has a "prompt" or "messages", and may have an "id" and sampling
    parameters. Lines that fail are reported in the output; the same command again answers what is left.

    \b
    Example:
      onnxlm run SmolLM2-135M-Instruct.gguf "Why is the sky blue?"
      onnxlm run smol-int4 "Why is the sky blue?"
      onnxlm run smol-int4 "Once upon a time" --raw --temperature 0.8 --seed 7
      onnxlm run smol-int4 --system "Answer in one sentence." --stats
      onnxlm run smol-int4 --input prompts.jsonl --output answers.jsonl --max-tokens 100
    """
    from ..options import SamplingParams

    arguments = sampling_arguments(options)
    params = SamplingParams(**arguments)
    if source or target:
        checked = _checked_files(source, target, prompt, as_json)
        _answer_file(bundle_of(model, verify=options.pop("verify")), *checked, arguments, **options)
        return
    _check_choices(prompt, as_json, params, options)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a narrow terminal must not end the answer
    with _load(bundle_of(model, verify=options.pop("verify")), params.n, **options) as llm:
        if prompt is None:
            _chat(llm, params, options["system"], options["stats"])
        elif as_json or params.n > 1:
            _print_complete(llm, _text(prompt), params, as_json=as_json, **options)
        else:
            _print_streamed(llm, _text(prompt), params, **options)


def _check_choices(prompt: str | None, as_json: bool, params: "SamplingParams", options: dict[str, Any]) -> None:
    if prompt is None and (as_json or options["raw"] or params.n > 1):
        raise click.UsageError("--json, --raw and -n answer one PROMPT: give one.")
    if params.logprobs is not None and not as_json:
        raise click.UsageError("--logprobs needs --json.")


def _checked_files(source: Path | None, target: Path | None, prompt: str | None, as_json: bool) -> tuple[Path, Path]:
    if source is None or target is None:
        given, other = ("--input", "--output FILE") if source else ("--output", "--input FILE")
        raise click.UsageError(f"{given} needs {other}: answers go from one file into another.")
    if prompt is not None or as_json:
        raise click.UsageError("--input takes its prompts from the file: give no PROMPT, and no --json.")
    return source, target


def _answer_file(
    bundle: Path, source: Path, target: Path, arguments: dict[str, Any], concurrency: int, raw: bool,
    system: str | None, **options: Any,
) -> None:  # fmt: skip
    from ..batch_file import BatchFile
    from ..batch_lines import BatchDefaults
    from .batch import batch_progress

    with _load(bundle, concurrency, raw=raw, **options) as llm, batch_progress() as progress:
        batch = BatchFile(llm.model, source, target, BatchDefaults(arguments, raw, system))
        try:
            counts = batch.run(progress)
        except KeyboardInterrupt:
            click.echo(f"Stopped. {batch.counts.kept + batch.counts.answered} answers are in {target}.", err=True)
            sys.exit(_INTERRUPTED)
    click.echo(f"{counts.answered} answered, {counts.failed} failed, {counts.kept} were there.", err=True)
    if counts.failed:
        click.echo(f"The first that failed: {counts.first_error}", err=True)
        sys.exit(1)


def _text(prompt: str) -> str:
    return sys.stdin.read() if prompt == "-" else prompt


def _load(
    bundle: Path,
    rows: int,
    provider: str,
    context: int | None,
    threads: int | None,
    speculation: int,
    draft: str | None,
    no_prepare: bool,
    raw: bool,
    lora: Path | None = None,
    **_: Any,
) -> "LLM":
    from ..chat.sandbox import start_early
    from ..llm import LLM
    from ..options import EngineOptions

    if not raw:
        start_early()  # while the model is loaded
    options = EngineOptions(
        max_concurrency=rows,
        context=context,
        threads=threads,
        speculation=speculation,
        draft=bundle_of(draft) if draft else None,
        prepare=not no_prepare,
    )
    llm = LLM(bundle, provider, options, lora={_ADAPTER: lora} if lora else None)
    llm.model.default_adapter = _ADAPTER if lora else None
    return llm


def _chat(llm: "LLM", params: "SamplingParams", system: str | None, stats: bool) -> None:
    from .chat.command import TerminalChat
    from .chat.conversation import Conversation

    TerminalChat(Conversation(llm, params, system), stats).run()


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    start = [] if system is None else [{"role": "system", "content": system}]
    return [*start, {"role": "user", "content": prompt}]


def _print_streamed(
    llm: "LLM", prompt: str, params: "SamplingParams", raw: bool, system: str | None, stats: bool, **_: Any
) -> None:
    from .terminal.streaming import Pace, show

    deltas = (
        llm.stream(prompt, params)
        if raw
        else llm.stream_chat(_messages(prompt, system), params, reasoning_format="none")
    )
    pace = Pace()
    finished = show(deltas, pace)
    click.echo()
    if stats:
        click.echo(pace.line(), err=True)
    if not finished:
        sys.exit(_INTERRUPTED)


def _print_complete(
    llm: "LLM", prompt: str, params: "SamplingParams", *, as_json: bool, raw: bool, system: str | None, stats: bool,
    **_: Any,
) -> None:  # fmt: skip
    from ..outputs import completion_json
    from .terminal.streaming import printable

    try:
        answer = (
            llm.generate(prompt, params)
            if raw
            else llm.chat(_messages(prompt, system), params, reasoning_format="none")
        )
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    if as_json:
        click.echo(json.dumps(completion_json(answer), ensure_ascii=False))
    else:
        for place, one in enumerate([answer, *answer.alternatives], 1):
            click.echo(f"[{place}] {printable(one.text)}")
    if stats:
        click.echo(f"{len(answer.token_ids)} tokens in {answer.timings.total or 0:.2f} s", err=True)
