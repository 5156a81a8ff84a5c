"""`onnxlm pull` and `onnxlm cache`: the bundles that `run` and `serve` make of checkpoints."""

import json

import click

from runtime.cli.terminal.progress import progress


@click.command(short_help="Fetch and prepare a model without running it.")
@click.argument("source")
def pull(source: str) -> None:
    """Make the bundle of SOURCE in the cache, so that `run` and `serve` start at once.

    SOURCE is hf:organisation/name, with /file.gguf or @revision behind it where wanted, a GGUF file, or a Hugging Face
    folder. For a hub id, a newer commit is fetched.

    \b
    Example:
      onnxlm pull hf:HuggingFaceTB/SmolLM2-135M-Instruct
      onnxlm pull SmolLM2-135M-Instruct.gguf
    """
    from .model_cache import cached_bundle

    with progress("preparing") as show:
        folder = cached_bundle(source, show, lambda line: click.echo(line, err=True), refresh=True)
    click.echo(folder)


@click.group(short_help="List or remove prepared models.")
def cache() -> None:
    """What onnxlm made for itself, in $ONNXLM_CACHE or ~/.cache/onnxlm, and makes again where it is missing.

    These are bundles of checkpoints, made by `run`, `serve` and `pull`, and weights packed for a processor, by
    `prepare` or after a first start.

    \b
    Example:
      onnxlm cache list
      onnxlm cache remove SmolLM2-135M-Instruct.Q4_1
    """


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_models(as_json: bool) -> None:
    """Print each bundle, and each bundle's packed weights, with its size and its source."""
    from runtime.host.cache_folder import cache_folder

    from .model_cache import list_cached, list_packed

    models = [*list_cached(), *list_packed()]
    if as_json:
        rows = [{"name": m.name, "folder": str(m.folder), "bytes": m.size, "source": m.source} for m in models]
        click.echo(json.dumps(rows, indent=1))
        return
    for model in models:
        click.echo(f"{model.size / 1e6:10.1f} MB  {model.name}  from {model.source}")
    click.echo(f"{len(models)} in {cache_folder()}", err=True)


@cache.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove bundles and packed weights by NAME; a bundle's with or without the hash at its end."""
    from .model_cache import remove_cached

    for name in names:
        for model in remove_cached(name):
            click.echo(f"removed {model.name}, {model.size / 1e6:.1f} MB")
