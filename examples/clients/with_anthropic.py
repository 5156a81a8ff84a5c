"""Anthropic's own package: pip install anthropic"""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none")
MODEL = sys.argv[2]
ASKED = [{"role": "user", "content": "Add one and three."}]
numbers = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [3]}}, "required": ["a", "b"]}
tools = [{"name": "add", "input_schema": numbers}]

print("ok chat:", client.messages.create(model=MODEL, max_tokens=64, messages=ASKED).content[-1].text)

with client.messages.stream(model=MODEL, max_tokens=64, messages=ASKED) as stream:
    print("ok stream:", "".join(stream.text_stream))

messages = list(ASKED)
while True:
    message = client.messages.create(model=MODEL, max_tokens=256, messages=messages, tools=tools)
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        break
    sums = [(call.id, str(call.input["a"] + call.input["b"])) for call in calls]
    results = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in sums]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
assert len(messages) > 1
print("ok tools:", message.content[-1].text)

print("ok count_tokens:", client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens)
