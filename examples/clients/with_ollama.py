"""Ollama's own package: pip install ollama"""

import sys

import ollama

client = ollama.Client(host=sys.argv[1])
MODEL = sys.argv[2]
messages = [{"role": "user", "content": "Add one and three."}]


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return str(int(a) + int(b))


print("ok chat:", client.chat(model=MODEL, messages=messages).message.content)

print("ok stream:", "".join(part.message.content for part in client.chat(model=MODEL, messages=messages, stream=True)))

while (message := client.chat(model=MODEL, messages=messages, tools=[add]).message).tool_calls:
    messages.append(message)
    for call in message.tool_calls:
        result = add(**call.function.arguments)
        messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
assert len(messages) > 1
print("ok tools:", message.content)

print("ok models:", [model.model for model in client.list().models])
