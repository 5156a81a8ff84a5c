"""How long chat templates take, against plain Jinja in the same process: real-shaped templates, long conversations.

    .venv/bin/python tests/bench/templates.py

Ours is the whole way: copies of the messages, the trip to the worker process and back, and the search for each message
in the prompt. Plain Jinja renders the same messages as transformers compiles them. Both are timed in turn; the best of
each counts. A template that refuses a conversation (roles that must alternate, no tools) is left out there.

Twice the time of plain Jinja cannot hold for a prompt that plain Jinja writes in less than 0.1 ms: to hand the messages
to another process and the prompt back takes that long. Nor where it spends less than 1 µs on a message (LFM2's template
does): to copy, send and find a message takes 3 to 5 µs. What is over twice is named with its milliseconds.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template as plain_template

from runtime.chat.template import ChatTemplate
from runtime.errors import OnnxlmError

FOLDER = Path(__file__).parents[1] / "test_runtime" / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LENGTHS = (2, 10, 100, 1000)
TIMES = 5
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "description": "Looks something up. " * 5,
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
    for i in range(5)
]


def conversation(length: int) -> list[dict]:
    """Questions, calls, results and answers, in turn."""
    turns = []
    for i in range(length // 4 + 1):
        call = {"name": f"tool_{i % 5}", "arguments": {"place": f"Köln {i}"}}
        turns += [
            {"role": "user", "content": f"Question {i}: " + "why is the sky blue at noon? " * 8},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"call{i:05d}", "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "content": json.dumps({"answer": i}),
                "tool_call_id": f"call{i:05d}",
                "name": call["name"],
            },
            {"role": "assistant", "content": f"Answer {i}: " + "because of how light is scattered. " * 12},
        ]
    return [*turns[: length - 1], {"role": "user", "content": "And what does this mean for me today?"}]


def without_tools(length: int) -> list[dict]:
    """The same without calls, for templates that have none."""
    turns = [turn for turn in conversation(2 * length + 4) if turn["role"] in ("user", "assistant") and turn["content"]]
    return turns[: length - 1 + length % 2]


def seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compared(source: str, messages: list[dict], tools: list[dict] | None) -> tuple[float, float] | None:
    """Seconds of ours and of plain Jinja; None if one refuses."""
    template = ChatTemplate(source, TOKENS)
    plain = plain_template(source)
    variables = {**TOKENS, "documents": None, "messages": messages, "tools": tools, "add_generation_prompt": True}
    try:
        template.render(messages, tools=tools)
        plain.render(**variables)
    except (OnnxlmError, TemplateError, TypeError):
        return None
    pairs = [
        (seconds(lambda: template.render(messages, tools=tools)), seconds(lambda: plain.render(**variables)))
        for _ in range(TIMES)
    ]
    return min(ours for ours, _ in pairs), min(theirs for _, theirs in pairs)


def main() -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.jinja"))}
    for length in LENGTHS:
        rows = {}
        for name, source in sources.items():
            pair = compared(source, conversation(length), TOOLS) or compared(source, without_tools(length), None)
            if pair:
                rows[name] = pair
        ratios = sorted((ours / theirs, name) for name, (ours, theirs) in rows.items())
        print(
            f"{length:5d} messages, {len(rows)} templates: ours {median(o for o, _ in rows.values()) * 1e3:7.2f} ms, "
            f"plain {median(t for _, t in rows.values()) * 1e3:7.2f} ms, ratio {median(r for r, _ in ratios):5.2f}, "
            f"worst {ratios[-1][0]:5.2f} ({ratios[-1][1]})",
            flush=True,
        )
        slow = [f"{name} {ratio:.1f} ({rows[name][0] * 1e3:.2f} ms)" for ratio, name in ratios if ratio > 2]
        if slow:
            most = max(ours - 2 * theirs for ours, theirs in rows.values())
            print(f"       {len(slow)} over 2, by up to {most * 1e3:.2f} ms: {', '.join(slow[-8:])}")


if __name__ == "__main__":
    main()
