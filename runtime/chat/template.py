"""From a conversation to a prompt: the model's own chat template, rendered as transformers renders it."""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.bundle import Bundle
from ..errors import BundleError, ChatTemplateError
from .content_forms import ContentForms, up_to_mark, with_end_mark
from .formats.analysis import analyse
from .formats.format import ChatFormat
from .messages import adapted, plain_data, plain_messages, plain_tools, with_text_arguments
from .sandbox import SandboxedTemplate

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

TEMPLATE_NAME = "chat_template.jinja"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
SECONDS = 5.0  # for one prompt; with the first one, what finding out about the template takes counts too
_PROBING = 3.0  # for all known conversations together
_PROBE = 1.5  # for one of them, of a line or two: a template that takes longer is asked no more
_LONGEST = 1 << 18  # characters of a probe's prompt; what is longer is no prompt for a line or two
_LEAST = 2.0  # what finding out leaves to the prompt
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A chat template and the special tokens that it writes.

    Args:
        source: Jinja source; it is a stranger's, so it is run in a sandbox with limits on time and size.
        special_tokens: "bos_token" and the like, as text.
        tool_source: another template for conversations with tools, where the model has one.

    Raises:
        ChatTemplateError: the source is not a template.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}",
        ...                         {"eos_token": "</s>"})
        >>> template.render([{"role": "user", "content": "Hi"}])
        'user: Hi</s>'
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, tool_source: str | None = None
    ) -> None:
        self._template = SandboxedTemplate(source)
        self._with_tools = ChatTemplate(tool_source, special_tokens) if tool_source else None
        self.source = source
        self._probing_left = _PROBING
        self.special_tokens = dict(special_tokens or {})

    @classmethod
    def open(cls, bundle: Bundle, tokenizer: "Tokenizer", replacement: Path | None = None) -> "ChatTemplate":
        """The chat template of a bundle, or the one in the file `replacement` in place of it.

        Raises:
            ChatTemplateError: it has none, or one that is broken.
            BundleError: a file cannot be read.
        """
        if replacement is not None:
            return cls(_read_replacement(replacement), _special_tokens(bundle, tokenizer))
        if not bundle.has(TEMPLATE_NAME):
            raise ChatTemplateError(
                f"{bundle.folder.name}: this model has no chat template ({TEMPLATE_NAME}): it completes text, it does "
                "not chat. Give it a plain prompt (`onnxlm run --raw`)."
            )
        return cls(_read(bundle, TEMPLATE_NAME), _special_tokens(bundle, tokenizer), _tool_template(bundle))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: mappings with `role` and `content`.
            tools: functions the model may call, in OpenAI's format.
            add_generation_prompt: end where the assistant's answer begins.
            continue_final_message: end within the last message, which the model then continues.
            variables: what else this template reads, such as `enable_thinking`.

        Raises:
            RequestError: the messages or tools are not well formed, or the template would leave a message's text out.
            ChatTemplateError: the template refused them, failed, or exceeded its limits.
        """
        if tools and self._with_tools:
            return self._with_tools.render(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
        began = time.monotonic()
        plain = adapted(self.contents.prepared(plain_messages(messages)), self.format)
        if continue_final_message:
            plain, end = with_end_mark(plain)

        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            left = max(_LEAST, SECONDS - (time.monotonic() - began))
            return self._rendered(
                messages, tools, add_generation_prompt and not continue_final_message, variables, left
            )

        prompt = render(plain)
        self.contents.require_shown(plain, prompt, render, bool(tools))
        return up_to_mark(prompt, end) if continue_final_message else prompt

    @functools.cached_property
    def contents(self) -> ContentForms:
        """How the template takes the contents of messages."""
        return ContentForms(self._tried)

    @property
    def variables(self) -> frozenset[str]:
        """What the template reads that nobody sets: messages, tools, and switches such as `enable_thinking`."""
        own = self._template.variables
        return own | self._with_tools.variables if self._with_tools else own

    @functools.cached_property
    def format(self) -> ChatFormat:
        """How the model writes tool calls and thoughts, as far as the template tells."""
        if self._with_tools:
            return self._with_tools.format
        ends = [self.special_tokens[name] for name in ("eos_token",) if name in self.special_tokens]
        return analyse(self.source, self._probe, ends, self.variables)

    def _probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        text_arguments: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        plain = self.contents.prepared(plain_messages(messages))
        plain = with_text_arguments(plain) if text_arguments else plain
        return self._tried(plain, tools, add_generation_prompt)

    def _tried(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = False,
    ) -> str:
        """A rendering to learn from; all of them together have a few seconds, and the first slow one is the last."""
        if self._probing_left <= 0:
            raise ChatTemplateError("The chat template is too slow to find out how it shows messages.")
        began, limit = time.monotonic(), min(_PROBE, self._probing_left)
        try:
            prompt = self._rendered(messages, tools, add_generation_prompt, {}, limit)
            if len(prompt) > _LONGEST:
                self._probing_left = 0.0
                raise ChatTemplateError("The chat template writes too much to find out how it shows messages.")
            return prompt
        finally:
            seconds = time.monotonic() - began
            self._probing_left = self._probing_left - seconds if seconds < limit else 0.0

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        seconds: float,
    ) -> str:
        seen = {
            **self.special_tokens,
            "documents": None,
            **plain_data(variables, "template variables"),
            "messages": messages,
            "tools": plain_tools(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return self._template.render(seen, seconds)


def _special_tokens(bundle: Bundle, tokenizer: "Tokenizer") -> dict[str, str]:
    ids = bundle.manifest.tokens
    known = {"bos_token": ids.bos, "eos_token": next(iter(ids.eos), None), "pad_token": ids.pad}
    texts = {name: tokenizer.token(i) for name, i in known.items() if i is not None}
    return texts | _configured_tokens(bundle)


def _tool_template(bundle: Bundle) -> str | None:
    """The template called tool_use, which transformers takes when there are tools."""
    named = _tokenizer_config(bundle).get("chat_template")
    entries = named if isinstance(named, list) else []
    return next((e["template"] for e in entries if isinstance(e, dict) and e.get("name") == "tool_use"), None)


def _tokenizer_config(bundle: Bundle) -> Mapping[str, Any]:
    if not bundle.has(TOKENIZER_CONFIG_NAME):
        return {}
    try:
        config = json.loads(_read(bundle, TOKENIZER_CONFIG_NAME))
    except ValueError as error:
        raise BundleError(
            f"{bundle.path(TOKENIZER_CONFIG_NAME)}: not JSON ({error}). Export the model again."
        ) from error
    return config if isinstance(config, dict) else {}


def _configured_tokens(bundle: Bundle) -> dict[str, str]:
    config = _tokenizer_config(bundle)
    entries = {name: config.get(name) for name in _TOKENS}
    texts = {name: e.get("content") if isinstance(e, dict) else e for name, e in entries.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_replacement(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path}: the chat template cannot be read ({error}).") from error


def _read(bundle: Bundle, name: str) -> str:
    path = bundle.path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read ({error}). Copy or export the bundle again.") from error
