"""From a conversation to a prompt: the model's own chat template, rendered as transformers renders it."""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import meta, nodes

from ..bundle.bundle import Bundle
from ..errors import BundleError, ChatTemplateError
from .formats.analysis import analyse
from .formats.format import ChatFormat
from .history import adapted
from .history import text_arguments as in_text
from .messages import plain_data, plain_messages, plain_tools
from .sandbox import SandboxedTemplate

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

TEMPLATE_NAME = "chat_template.jinja"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
SECONDS = 5.0
_PROBING = 2.0  # seconds for all known conversations together
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
        self._source = source
        self._special_tokens = dict(special_tokens or {})
        self._keep_parts = _reads_parts(self._template.syntax)

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
                f"{bundle.folder}: this model has no chat template ({TEMPLATE_NAME}): it completes text, it does not "
                "chat. Give it a plain prompt (`onnxlm run --raw`)."
            )
        return cls(_read(bundle, TEMPLATE_NAME), _special_tokens(bundle, tokenizer), _tool_template(bundle))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: mappings with `role` and `content`.
            tools: functions the model may call, in OpenAI's format.
            add_generation_prompt: end where the assistant's answer begins.
            variables: what else this template reads, such as `enable_thinking`.

        Raises:
            RequestError: the messages or tools are not well formed.
            ChatTemplateError: the template refused them, failed, or exceeded its limits.
        """
        if tools and self._with_tools:
            return self._with_tools.render(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables
            )
        plain = adapted(plain_messages(messages, keep_parts=self._keep_parts), self.format)
        return self._rendered(plain, tools, add_generation_prompt, variables)

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """What the template reads that nobody sets: messages, tools, and switches such as `enable_thinking`."""
        own = frozenset(meta.find_undeclared_variables(self._template.syntax))
        return own | self._with_tools.variables if self._with_tools else own

    @functools.cached_property
    def format(self) -> ChatFormat:
        """How the model writes tool calls and thoughts, as far as the template tells."""
        if self._with_tools:
            return self._with_tools.format
        self._probing_ends = time.monotonic() + _PROBING
        ends = [self._special_tokens[name] for name in ("eos_token",) if name in self._special_tokens]
        return analyse(self._source, self._probe, ends, self.variables)

    def _probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        text_arguments: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        if (left := self._probing_ends - time.monotonic()) <= 0:
            raise ChatTemplateError("The chat template is too slow to find out how it writes tool calls.")
        plain = plain_messages(messages, keep_parts=self._keep_parts)
        plain = in_text(plain) if text_arguments else plain
        return self._rendered(plain, tools, add_generation_prompt, {}, seconds=left)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        seconds: float = SECONDS,
    ) -> str:
        seen = {
            **self._special_tokens,
            "documents": None,
            **plain_data(variables, "template variables"),
            "messages": messages,
            "tools": plain_tools(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return self._template.render(seen, seconds)


def _reads_parts(template: nodes.Template) -> bool:
    """Whether the template loops over a message's content, so that it expects a list of parts."""
    looped = [loop.iter for loop in template.find_all(nodes.For)]
    return any(_name(what) == "content" for what in looped)


def _name(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return str(node.arg.value)
    return node.name if isinstance(node, nodes.Name) else None


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
