"""LiteLLM: pip install litellm"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look at the network for prices
import litellm

numbers = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [3]}}, "required": ["a", "b"]}
tools = [{"type": "function", "function": {"name": "add", "parameters": numbers}}]
messages = [{"role": "user", "content": "Add one and three."}]


def ask(**more):
    """One completion; the prefix `openai/` says which API the server speaks."""
    return litellm.completion(
        model=f"openai/{sys.argv[2]}", api_base=f"{sys.argv[1]}/v1", api_key="none", messages=messages, **more
    )


print("ok chat:", ask().choices[0].message.content)

print("ok stream:", "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)))

while (message := ask(tools=tools).choices[0].message).tool_calls:
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        given = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
assert len(messages) > 1
print("ok tools:", message.content)
