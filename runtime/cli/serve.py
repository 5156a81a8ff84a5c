"""`onnxlm serve`: models behind an OpenAI-compatible HTTP server."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import MissingDependencyError, OptionError
from ..ort.providers import CHOICES
from .source import bundle_of, name_of

if TYPE_CHECKING:
    from ..client import Model
    from ..encoder.model import Encoder
    from ..options import EngineOptions
    from ..server.listener import Listener
    from ..server.options import ServerOptions


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    from ..host.byte_units import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="MODEL...")
@click.option("--verify", is_flag=True, help="Compare the hash of every file with the manifest first.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address; :: or 0.0.0.0 for all.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--uds", type=click.Path(path_type=Path), help="A unix socket to listen at, in place of host and port.")
@click.option("--root-path", default="", metavar="PATH", help="Path under which a proxy shows it, such as /llm.")
@click.option("--allowed-hosts", metavar="NAMES", help="Host names it answers for. [default: all; on loopback, local]")
@click.option("--trusted-proxies", default="", metavar="ADDRESSES", help="Whose X-Forwarded headers are believed.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve /metrics at this port too, without a key.")
@click.option("--metrics-key-file", type=click.Path(path_type=Path), help="Keys that open /metrics alone.")
@click.option("--send-timeout", default=60.0, show_default=True, metavar="SECONDS", help="For who does not read.")
@click.option("--provider", default="auto", show_default=True, type=click.Choice(CHOICES))
@click.option(
    "--lora", multiple=True, metavar="[MODEL:]NAME=DIR", help="A LoRA adapter, served as MODEL:NAME. Repeatable."
)
@click.option("--api-key-file", type=click.Path(path_type=Path), help="Keys, one a line; others are refused.")
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="A web origin that may use it. Repeatable.")
@click.option("--max-concurrency", default=16, show_default=True, type=int, help="Requests that decode together.")
@click.option("--max-queue", default=64, show_default=True, type=int, help="Requests that may wait; more get 429.")
@click.option("--max-body", default="4MiB", show_default=True, callback=_size, help="Largest body of a request.")
@click.option("--kv-memory", callback=_size, metavar="SIZE", help="For keys, values, states. [default: half of free]")
@click.option("--prefix-cache", callback=_size, metavar="SIZE", help="For beginnings that prompts share. [default: 0]")
@click.option(
    "--speculation", default=0, show_default=True, type=click.IntRange(0), help="Tokens drafted from the text."
)
@click.option("--draft", metavar="MODEL", help="A smaller model with the same tokenizer, to draft tokens.")
@click.option("--no-prepare", is_flag=True, help="Pack no weights in the background for the next start.")
@click.option("--response-store", default="64MiB", show_default=True, callback=_size, help="For stored /v1/responses.")
@click.option("--context", type=int, help="Most tokens of one request. [default: the model's context]")
@click.option("--threads", type=int, help="Threads of one model. [default: the number of cores]")
@click.option("--default-max-tokens", default=1024, show_default=True, type=int, help="For chats that set no limit.")
@click.option("--request-timeout", type=float, metavar="SECONDS", help="No request may take longer.")
@click.option("--drain-timeout", default=120.0, show_default=True, metavar="SECONDS", help="After the first SIGTERM.")
@click.option("--stall-timeout", default=60.0, show_default=True, metavar="SECONDS", help="Until /health notices.")
@click.option("--tool-fallback", is_flag=True, help="Describe tools in the prompt where a template has none.")
@click.option(
    "--chat-template", multiple=True, metavar="[NAME=]FILE", help="A template in place of a bundle's own. Repeatable."
)
@click.option(
    "--reasoning-format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "none"]),
    help="Thoughts apart from the text, or left in it.",
)
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
def serve(bundles: tuple[str, ...], log_format: str, **options: Any) -> None:
    """Serve each MODEL under its name, or another one given as NAME=MODEL, to OpenAI's clients.

    A MODEL is a bundle, or a checkpoint as `onnxlm run` takes it.

    \b
    /v1/chat/completions /v1/responses /v1/completions /v1/models
    /v1/embeddings /rerank /score /classify, of bundles exported with --task embed or score
    /tokenize /detokenize /health /ready /version /metrics /openapi.json
    and a page to chat at /

    One line per request is logged, without its text. The first SIGTERM or Ctrl-C lets requests finish, the second ends.

    \b
    Example:
      onnxlm serve SmolLM2-135M-Instruct.gguf
      onnxlm serve smol-int4
      onnxlm serve smol-int4 --host 0.0.0.0 --api-key-file keys.txt --max-concurrency 8 --kv-memory 2GiB
      onnxlm serve smol-int4 embedder reranker
      onnxlm serve smol-lora --lora support=./support-adapter --lora legal=./legal-adapter
      onnxlm serve small=smol-int4 large=qwen-int4 --port 8080 --log-format json
    """
    from ..chat.sandbox import start_early

    names = _named(bundles, verify=options["verify"])
    process = _process()
    process.set_up_logging(log_format)
    _require_bundles(names.values())
    templates = _templates(options["chat_template"], names)
    with _listener(options) as listener:
        server_options = _server_options(options, loopback=listener.loopback)
        start_early()  # while the models are loaded
        engine_options = _engine_options(options, names)
        with _models(names, options["provider"], engine_options, templates, _adapters(options["lora"], names)) as (
            models,
            encoders,
        ):
            from ..server.app import create_app

            app = create_app(models, server_options, encoders)
            if options["metrics_port"] is not None:
                app.state.service.metrics.listen(options["host"], options["metrics_port"])
            process.run_server(app, listener)


def _listener(options: dict[str, Any]) -> "Listener":
    from ..server.listener import Listener

    return Listener(options["host"], options["port"], options["uds"], send_seconds=options["send_timeout"])


def _require_bundles(folders: Iterable[Path]) -> None:
    """Open every bundle before the first one is loaded, which takes long."""
    from ..bundle.bundle import open_bundle

    for folder in folders:
        open_bundle(folder)


def _split(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _named(bundles: tuple[str, ...], *, verify: bool = False) -> dict[str, Path]:
    names: dict[str, Path] = {}
    for entry in bundles:
        name, equals, folder = entry.partition("=")
        source = folder if equals and name else entry
        name = name if equals and name else name_of(source)
        if name in names:
            raise OptionError(f"Two bundles are called {name!r}: give one another name, as in other={source}.")
        names[name] = bundle_of(source, verify=verify)
    return names


def _templates(given: tuple[str, ...], names: dict[str, Path]) -> dict[str, Path]:
    """The file of each model that is given one; a file without a name is for all."""
    found: dict[str, Path] = {}
    for entry in given:
        name, equals, file = entry.partition("=")
        if equals and name not in names:
            raise OptionError(f"--chat-template {entry}: there is no model {name!r}, only {', '.join(names)}.")
        path = Path(file if equals else entry)
        if not path.is_file():
            raise OptionError(f"--chat-template {entry}: there is no file {path}.")
        found |= {name: path} if equals else dict.fromkeys(names, path)
    return found


def _adapters(given: tuple[str, ...], names: dict[str, Path]) -> dict[str, dict[str, str | Path]]:
    """The folders of each model's adapters by their names."""
    found: dict[str, dict[str, str | Path]] = {}
    for entry in given:
        name, equals, folder = entry.partition("=")
        model, colon, adapter = name.rpartition(":")
        if not (equals and folder and adapter):
            raise OptionError(f"--lora {entry}: write NAME=DIR, or MODEL:NAME=DIR where several models are served.")
        if not colon and len(names) > 1:
            raise OptionError(f"--lora {entry}: say of which model, as in {next(iter(names))}:{entry}")
        model = model if colon else next(iter(names))
        if model not in names:
            raise OptionError(f"--lora {entry}: there is no model {model!r}, only {', '.join(names)}.")
        if adapter in found.setdefault(model, {}):
            raise OptionError(f"--lora {entry}: {model} has an adapter {adapter!r} already.")
        found[model][adapter] = Path(folder)
    return found


def _server_options(options: dict[str, Any], *, loopback: bool) -> "ServerOptions":
    from ..server.auth import read_keys
    from ..server.options import ServerOptions
    from ..server.origin import LOOPBACK_NAMES

    keys, metrics_keys = (read_keys(path) if path else () for path in _key_files(options))
    local = LOOPBACK_NAMES if loopback and not options["uds"] else ()
    return ServerOptions(
        api_keys=keys,
        metrics_keys=metrics_keys,
        allowed_hosts=_split(options["allowed_hosts"]) or local,
        trusted_proxies=_split(options["trusted_proxies"]),
        root_path=options["root_path"],
        send_seconds=options["send_timeout"],
        cors_origins=options["cors_origin"],
        max_queue=options["max_queue"],
        max_body=options["max_body"],
        stall_seconds=options["stall_timeout"],
        default_max_tokens=options["default_max_tokens"],
        request_seconds=options["request_timeout"],
        response_store=options["response_store"],
        drain_seconds=options["drain_timeout"],
        tool_fallback=options["tool_fallback"],
        reasoning_format=options["reasoning_format"],
    )


def _key_files(options: dict[str, Any]) -> tuple[Path | None, Path | None]:
    return options["api_key_file"], options["metrics_key_file"]


def _engine_options(options: dict[str, Any], names: dict[str, Path]) -> "EngineOptions":
    from ..host.memory import shared_kv_memory
    from ..options import EngineOptions

    kv_memory = options["kv_memory"]
    if kv_memory is None and len(names) > 1 and _all_on_cpu(names.values(), options["provider"]):
        kv_memory = shared_kv_memory(names.values())

    return EngineOptions(
        max_concurrency=options["max_concurrency"],
        # The engine's queue holds a new request until its next turn, even if a slot is free.
        max_queue=options["max_concurrency"] + options["max_queue"],
        context=options["context"],
        kv_memory=kv_memory,
        prefix_cache=options["prefix_cache"] or 0,
        speculation=options["speculation"],
        threads=options["threads"],
        draft=bundle_of(options["draft"]) if options["draft"] else None,
        prepare=not options["no_prepare"],
    )


def _all_on_cpu(folders: Iterable[Path], provider: str) -> bool:
    """Whether every model takes its memory from the system; on a GPU each looks at what is free there."""
    from ..bundle.bundle import open_bundle

    targets = (open_bundle(folder).manifest.target.provider for folder in folders)
    return all(provider == "cpu" or (provider == "auto" and target == "cpu") for target in targets)


def _process() -> Any:
    try:
        from ..server import process
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"`onnxlm serve` needs the package {error.name!r}: pip install 'onnxlm[serve]'"
        ) from error
    return process


@contextmanager
def _models(
    names: dict[str, Path],
    provider: str,
    options: "EngineOptions",
    templates: dict[str, Path],
    adapters: dict[str, dict[str, str | Path]],
) -> Iterator[tuple[dict[str, "Model"], dict[str, "Encoder"]]]:
    """Models that generate, and those that read whole texts."""
    from ..bundle.bundle import open_bundle
    from ..client import Model
    from ..encoder.model import Encoder

    with ExitStack() as stack:
        models, encoders = {}, {}
        for name, path in names.items():
            task = open_bundle(path).manifest.task
            if task is None:
                template, lora = templates.get(name), adapters.get(name)
                models[name] = Model(path, provider, options, chat_template=template, lora=lora)
                stack.callback(models[name].close)
                continue
            if adapters.get(name):
                raise OptionError(f"--lora: {name} does not generate text; merge its adapter into the checkpoint.")
            if templates.get(name):
                raise OptionError(f"--chat-template: {name} does not chat. Name the models that do: NAME=FILE.")
            encoders[name] = Encoder(path, task.kind, provider, options)
            stack.callback(encoders[name].close)
        yield models, encoders
