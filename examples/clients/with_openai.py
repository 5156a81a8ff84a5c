"""OpenAI's own package: pip install openai"""

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
MODEL = sys.argv[2]
ASKED = [{"role": "user", "content": "Add one and three."}]


def add(a: int, b: int) -> str:
    return str(a + b)


numbers = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [3]}}, "required": ["a", "b"]}
tools = [{"type": "function", "function": {"name": "add", "parameters": numbers}}]

print("ok chat:", client.chat.completions.create(model=MODEL, messages=ASKED).choices[0].message.content)

chunks = client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
print("ok stream:", "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))

messages = list(ASKED)
while True:
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
    if not message.tool_calls:
        break
    messages.append(message)
    for call in message.tool_calls:
        result = add(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
assert messages[-1]["content"] == "4"
print("ok tools:", message.content)

schema = {"name": "numbers", "schema": numbers | {"additionalProperties": False}, "strict": True}
answer = client.chat.completions.create(
    model=MODEL, messages=ASKED, response_format={"type": "json_schema", "json_schema": schema}
)
assert json.loads(answer.choices[0].message.content) == {"a": 1, "b": 3}
print("ok structured:", answer.choices[0].message.content)

print("ok responses:", client.responses.create(model=MODEL, input="Add one and three.").output_text)
