"""How query and document of a reranker become one text, as a template with places for them."""

import json
from collections.abc import Mapping
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
_MARKS = {"{instruction}": "\ue000Instruction\ue001", "{query}": "\ue000Query\ue001", "{document}": "\ue000Text\ue001"}


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
    from runtime.chat.sandbox import SandboxedTemplate

    template = files.get("chat_template.jinja")
    if template is None:
        raise UnsupportedError(
            "the checkpoint sends pairs through a chat template, and has none. Give the text by --pair-template."
        )
    names = {key: text for key, text in json.loads(files.get("tokenizer_config.json", b"{}")).items()
             if isinstance(text, str)}  # fmt: skip
    sandboxed = SandboxedTemplate(template.decode())

    def render(contents: Mapping[str, str]) -> str:
        messages = [{"role": "query", "content": contents["{query}"]},
                    {"role": "document", "content": contents["{document}"]}]  # fmt: skip
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": contents["{instruction}"]})
        usual = {"tools": None, "documents": None, "add_generation_prompt": False}
        seen = {**names, **usual, **(variables or {}), "messages": messages}
        return sandboxed.render(seen, _SECONDS)

    text = render(_MARKS)
    for place, mark in _MARKS.items():
        text = text.replace(mark, place)
    probe = {"{instruction}": "Find it.", "{query}": "What is 2+2?", "{document}": " 4\n"}
    filled = text
    try:
        check_pair_template(text)
        for place in sorted(probe):
            filled = filled.replace(place, probe[place])
        fits = filled == render(probe)
    except ValueError:
        fits = False
    if not fits:
        raise UnsupportedError(
            "the chat template does more with the roles query and document than to put their contents into a text. "
            "Write the text with {query} and {document} yourself: --pair-template FILE."
        )
    return text
