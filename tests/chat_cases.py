"""Chat templates of many families, their end tokens, and random calls for them."""

import random
import re
from functools import lru_cache
from pathlib import Path

from runtime.chat.template import ChatTemplate

FOLDER = Path(__file__).parent / "test_runtime" / "chat_templates" / "formats"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
_ENDS = {
    "apertus": "<|assistant_end|>", "apriel": "<|end|>", "command": "<|END_OF_TURN_TOKEN|>",
    "deepseek": "<｜end▁of▁sentence｜>", "devstral": "</s>", "firefunction": "<|eot_id|>", "functionary": "<|eot_id|>",
    "gemma": "<turn|>", "glm": "<|user|>", "gpt": "<|return|>", "granite": "<|end_of_text|>", "hunyuan": "<|eos|>",
    "llama_3": "<|eot_id|>", "llama_4": "<|eot|>", "magistral": "</s>", "minimax_m2": "[e~[", "mistral": "</s>",
    "nemotron_nano": "<SPECIAL_12>", "phi": "<|end|>", "seed": "<seed:eos>",
}  # fmt: skip
# What a server stops at besides: tokens that end a turn with calls.
_STOPS = ("<|call|>", "<|eom_id|>", "<|observation|>", "<|tool_response>")
WORDS = [
    "tea",
    'a "quoted" word',
    "it's",
    "two\nlines",
    "naïve 猫 🎈",
    "back\\slash",
    "  spaced  ",
    "",
    "5",
    "true",
    "[1]",
]
TOOL_NAMES = ("plan_trip", "find.shop-2", "now")
TYPES = ("string", "integer", "number", "boolean", "array", "object")


def end_of(name: str) -> str:
    return next((end for prefix, end in _ENDS.items() if name.startswith(prefix)), "<|im_end|>")


@lru_cache
def template_of(name: str) -> ChatTemplate:
    tokens = {"bos_token": "<s>", "eos_token": end_of(name)}
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), tokens)


def tool(name, properties, required=()):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


def schemas(tools):
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


def random_tools(rng: random.Random):
    keys = ["city", "days", "max_price", "open_now", "tags", "extra"]
    properties = {key: {"type": kind, "description": "d"} for key, kind in zip(keys, TYPES, strict=True)}
    chosen = {name: rng.sample(keys, rng.randint(0, len(keys))) for name in TOOL_NAMES}
    return [tool(name, {key: properties[key] for key in kept}) for name, kept in chosen.items()]


def random_value(rng: random.Random, kind: str, depth: int = 0):
    if kind == "string":
        return rng.choice(WORDS)
    if kind == "integer":
        return rng.choice([0, -7, 12345678901])
    if kind == "number":
        return rng.choice([0.5, -2.25, 1e-05, 3.0])
    if kind == "boolean":
        return rng.random() < 0.5
    deeper = ("string", "integer", "boolean") if depth > 1 else TYPES
    values = [random_value(rng, rng.choice(deeper), depth + 1) for _ in range(rng.randint(0, 3))]
    return values if kind == "array" else {f"k{i}": value for i, value in enumerate(values)}


def random_calls(rng: random.Random, tools, most: int):
    calls = []
    for i in range(rng.randint(1, most)):
        function = rng.choice(tools)["function"]
        kinds = {key: schema["type"] for key, schema in function["parameters"]["properties"].items()}
        arguments = {key: random_value(rng, kind) for key, kind in kinds.items() if rng.random() < 0.8}
        calls.append((f"call{i:05}", function["name"], arguments))
    return calls


def message_of(calls, content="", **more):
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": args}} for i, name, args in calls]
    return {"role": "assistant", "content": content, "tool_calls": made} | more


def rendered_answer(name: str, tools, message) -> str:
    """What the template writes for this answer, from the end of the prompt to the end token."""
    template = template_of(name)
    asked = [{"role": "user", "content": "zqask"}]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "zqresult"}
        for call in message.get("tool_calls", ())
    ]
    prompt = template.render(asked, tools=tools)
    text = template.render([*asked, message, *results], tools=tools, add_generation_prompt=False)
    header, rest = (whole.rpartition("zqask")[2] for whole in (prompt, text))
    rest = rest[len(shared_beginning(header, rest)) :]
    found = [rest.find(stop) for stop in (end_of(name), *_STOPS, "[zqresult", "zqresult") if stop in rest]
    return rest[: min(found, default=len(rest))]


def shared_beginning(header: str, rest: str) -> str:
    """The longest beginning of both that ends with a line or a mark."""
    ends = [0, *(found.end() for found in re.finditer(r"[>\]\n]", header)), len(header)]
    return header[: max(end for end in ends if rest.startswith(header[:end]))]
