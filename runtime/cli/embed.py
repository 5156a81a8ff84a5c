"""`onnxlm embed` and `onnxlm rerank`: vectors of texts, and documents by how well they fit."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from ..ort.providers import CHOICES

_PATH = click.Path(path_type=Path)
_TOGETHER = 256  # texts that are handed over at once: a file need not fit in memory


@click.command()
@click.argument("bundle", type=_PATH)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--input", "source", type=_PATH, help="A file with a text per line, or .jsonl with a text or `text` each."
)
@click.option("--output", type=_PATH, help="Write an array [texts, dimensions] to this .npy file.")
@click.option("--prompt-name", metavar="NAME", help="Which of the model's prompts stands in front of each text.")
@click.option("--prompt", metavar="TEXT", help="A text to stand in front of each instead.")
@click.option("--dimensions", type=click.IntRange(min=1), help="Dimensions to keep of each vector (Matryoshka).")
@click.option("--truncate", is_flag=True, help="Leave out the end of texts that are too long.")
@click.option("--provider", default="auto", show_default=True, type=click.Choice(CHOICES))
@click.option("--threads", type=int, help="Threads; default: the number of cores.")
def embed(
    bundle: Path, texts: tuple[str, ...], source: Path | None, output: Path | None, provider: str,
    threads: int | None, prompt_name: str | None, prompt: str | None, dimensions: int | None, truncate: bool,
) -> None:  # fmt: skip
    """Print the vector of each TEXT as a JSON array, one a line; without TEXT and --input, of each line of stdin.

    BUNDLE is what `onnxlm export --task embed` wrote.

    \b
    Example:
      onnxlm embed embedder "What is the capital of China?" --prompt-name query
      onnxlm embed embedder --input documents.txt --output documents.npy
    """
    import numpy as np

    from ..embedder import Embedder
    from ..options import EngineOptions

    if texts and source:
        raise click.UsageError("Give texts or --input, one of them.")
    found = []
    with Embedder(bundle, provider, EngineOptions(threads=threads)) as embedder:
        for some in _in_parts(iter(texts) if texts else _lines(source)):
            vectors = embedder.embed(
                some, prompt_name=prompt_name, prompt=prompt, dimensions=dimensions, truncate=truncate
            )
            if output:
                found.append(vectors)
                continue
            for vector in vectors:
                click.echo(json.dumps([float(f"{number:.9g}") for number in vector]))
        width = dimensions or embedder.dimensions
    if output:
        array = np.concatenate(found) if found else np.zeros((0, width), np.float32)
        _save(output, array)
        click.echo(f"{array.shape[0]} vectors of {array.shape[1]} numbers in {output}", err=True)


@click.command()
@click.argument("bundle", type=_PATH)
@click.argument("query")
@click.argument("documents", nargs=-1, metavar="[DOCUMENT]...")
@click.option("--input", "source", type=_PATH, help="A file with a document per line, or .jsonl.")
@click.option("--instruction", metavar="TEXT", help="The task in words, where the model has a place for it.")
@click.option("--top-n", type=click.IntRange(min=1), help="Print only this number of documents.")
@click.option("--truncate", is_flag=True, help="Leave out the end of documents that are too long.")
@click.option("--provider", default="auto", show_default=True, type=click.Choice(CHOICES))
@click.option("--threads", type=int, help="Threads; default: the number of cores.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rerank(
    bundle: Path, query: str, documents: tuple[str, ...], source: Path | None, provider: str, threads: int | None,
    instruction: str | None, top_n: int | None, truncate: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print each DOCUMENT with its score, the one that fits QUERY best first.

    BUNDLE is what `onnxlm export --task score` wrote.

    \b
    Example:
      onnxlm rerank reranker "capital of China" "Beijing is the capital." "Gravity attracts."
    """
    from ..options import EngineOptions
    from ..reranker import Reranker

    if documents and source:
        raise click.UsageError("Give documents or --input, one of them.")
    listed = list(documents) if documents else list(_lines(source))
    with Reranker(bundle, provider, EngineOptions(threads=threads)) as reranker:
        ranked = reranker.rerank(query, listed, instruction=instruction, top_n=top_n, truncate=truncate)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in ranked], ensure_ascii=False))
        return
    for one in ranked:
        click.echo(f"{one.score:10.6f}  [{one.index}] {one.document}")


def _lines(source: Path | None) -> Iterator[str]:
    """The texts of a file, or of standard input; empty lines are left out."""
    if source is None:
        yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        return
    as_json = source.suffix == ".jsonl"
    try:
        with source.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _text(line, f"{source}, line {number}") if as_json else line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{source}: not UTF-8 text ({error}).") from error


def _text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise click.ClickException(f"{where}: not JSON ({error}).") from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise click.ClickException(f'{where}: a text, or an object with "text", is wanted.')
    return text


def _in_parts(texts: Iterator[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for text in texts:
        part.append(text)
        if len(part) == _TOGETHER:
            yield part
            part = []
    if part:
        yield part


def _save(path: Path, array: object) -> None:
    """Whole or not at all."""
    import numpy as np

    scratch = path.with_name(f".{path.name}.new.npy")
    try:
        np.save(scratch, array)  # type: ignore[arg-type]  # an array
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
