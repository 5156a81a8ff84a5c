"""The chat templates of a Hugging Face folder: the default one, and those with names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError

from .files import optional_json, read_text

TEMPLATE = "chat_template.jinja"
PROCESSOR_TEMPLATE = "chat_template.json"
DEFAULT = "default"


def read_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str], list[str]]:
    """The default template, the others by name, and what a user should know.

    A file of its own wins over tokenizer_config.json, and that over a processor's chat_template.json, as in
    transformers. A single template under another name is the default one.

    Raises:
        CheckpointError: a template that is neither text nor texts by name.
    """
    named = _stored(config.get("chat_template"), folder / "tokenizer_config.json")
    other = _stored(optional_json(folder / PROCESSOR_TEMPLATE).get("chat_template"), folder / PROCESSOR_TEMPLATE)
    told = []
    if named and other and other != named:
        told.append(f"{folder / PROCESSOR_TEMPLATE}: not used; tokenizer_config.json has another chat template.")
    named = named or other
    told += _read_files(folder, named)
    told += [f"{folder}: the chat template {name!r} is empty, and not used." for name in named if not named[name]]
    named = {name: text for name, text in named.items() if text}
    told += _broken(folder, named)
    default = named.pop(DEFAULT, None)
    if default is None and named:
        name = next(iter(named))
        default = named.pop(name)
        told.append(f"{folder}: no chat template is called default; {name!r} is used as the default one.")
    unused = [name for name in named if name != "tool_use"]
    if unused:
        told.append(f"{folder}: chat templates {', '.join(unused)} are kept, and never used by themselves.")
    return default, named, told


def _read_files(folder: Path, named: dict[str, str]) -> list[str]:
    """Add the templates that are files of their own, and return what a user should know."""
    extra = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {path.stem: path for path in extra} | (
        {DEFAULT: folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}
    )
    told = []
    for name, path in files.items():
        text = read_text(path)
        if named.get(name, text) != text:
            told.append(f"{folder}: {path.name} counts, and not the other chat template of that name in the JSON file.")
        named[name] = text
    if DEFAULT in files and any(path.stem == DEFAULT for path in extra):
        told.append(f"{folder}: {TEMPLATE} counts, and not additional_chat_templates/{DEFAULT}.jinja.")
    return told


def _broken(folder: Path, named: Mapping[str, str]) -> list[str]:
    from jinja2 import Environment, TemplateSyntaxError

    # Statements of transformers' environment, and of its assistant masks.
    environment, told = Environment(extensions=["jinja2.ext.loopcontrols"]), []  # noqa: S701  # parsed, never rendered
    for name, text in named.items():
        try:
            environment.parse(text.replace("{% generation", "{% if true").replace("{% endgeneration", "{% endif"))
        except TemplateSyntaxError as error:
            told.append(f"{folder}: the chat template {name!r} is broken in line {error.lineno}: {error.message}.")
    return told


def _stored(value: Any, where: Path) -> dict[str, str]:
    """Templates by name; one alone is called default."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list) and all(
        isinstance(item, dict) and {"name", "template"} <= item.keys() for item in value
    ):
        names = [item["name"] for item in value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise CheckpointError(
                f"{where}: chat_template has {twice[0]!r} twice, and only one can count. Take one out."
            )
        value = {item["name"]: item["template"] for item in value}
    if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise CheckpointError(
            f"{where}: chat_template must be a text, texts by name, or a list of names and templates. Correct it, or "
            "take it out."
        )
    return dict(value)
