"""How query and document of a reranker become one text, as a template with places for them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.bundle.sequence_task import check_pair_template
from runtime.errors import OptionError, UnsupportedError

# As in the model cards of Qwen3-Reranker, whose checkpoints do not hold it.
_QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
KNOWN: Mapping[str, tuple[str, str]] = {
    "qwen3-reranker": (_QWEN3, "Given a web search query, retrieve relevant passages that answer the query"),
}
_SECONDS = 5.0
_PROBE = {"{instruction}": "Find it.", "{query}": "What is 2+2?", "{document}": " 4\n"}
_MARKS = {"{instruction}": "\ue000Instruction\ue001", "{query}": "\ue000Query\ue001", "{document}": "\ue000Text\ue001"}

_Render = Callable[[Mapping[str, str]], str]


def chosen_template(value: str) -> tuple[str, str | None]:
    """The template and the default instruction of an option: a known name, a file, or the template itself.

    Raises:
        OptionError: it is none of these, or not a pair template.
    """
    if value in KNOWN:
        return KNOWN[value]
    try:
        text = Path(value).read_text(encoding="utf-8") if "{" not in value else value
        check_pair_template(text)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"pair_template: {value!r:.80} is not {', '.join(KNOWN)}, no file with a pair template, and none itself: "
            f"{error}"
        ) from error
    return text, None


def template_of_chat(
    files: Mapping[str, bytes], instruction: str | None, variables: Mapping[str, Any] | None = None
) -> str:
    """The text that the chat template makes of the roles `query` and `document`, with places for their contents.

    Raises:
        UnsupportedError: the template does more with them than to put them into a text.
    """
    template = files.get("chat_template.jinja")
    if template is None:
        raise UnsupportedError(
            "the checkpoint sends pairs through a chat template, and has none. Give the text by --pair-template."
        )
    names = {key: text for key, text in json.loads(files.get("tokenizer_config.json", b"{}")).items()
             if isinstance(text, str)}  # fmt: skip
    seen = {**names, "tools": None, "documents": None, "add_generation_prompt": False, **(variables or {})}
    render = _renderer(template.decode(), seen, with_instruction=instruction is not None)
    text = render(_MARKS)
    for place, mark in _MARKS.items():
        text = text.replace(mark, place)
    if not _fits(text, render):
        raise UnsupportedError(
            "the chat template does more with the roles query and document than to put their contents into a text. "
            "Write the text with {query} and {document} yourself: --pair-template FILE."
        )
    return text


def _renderer(template: str, seen: Mapping[str, Any], *, with_instruction: bool) -> _Render:
    """Renders the chat of a pair, given the contents by the names of their places."""
    from runtime.chat.sandbox import SandboxedTemplate

    sandboxed = SandboxedTemplate(template)
    roles = {"{query}": "query", "{document}": "document"}
    roles = {"{instruction}": "system", **roles} if with_instruction else roles

    def render(contents: Mapping[str, str]) -> str:
        messages = [{"role": role, "content": contents[place]} for place, role in roles.items()]
        return sandboxed.render({**seen, "messages": messages}, _SECONDS)

    return render


def _fits(text: str, render: _Render) -> bool:
    """Whether filling the places gives what the chat template makes of other contents."""
    try:
        check_pair_template(text)
    except ValueError:
        return False
    filled = text
    for place in sorted(_PROBE):
        filled = filled.replace(place, _PROBE[place])
    return filled == render(_PROBE)
