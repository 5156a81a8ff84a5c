"""LangChain: pip install langchain-openai"""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model=sys.argv[2], base_url=f"{sys.argv[1]}/v1", api_key="none")


def add(a: Literal[1], b: Literal[3]) -> str:
    """Add two numbers."""
    return str(a + b)


print("ok chat:", chat.invoke("Add one and three.").content)

print("ok stream:", "".join(str(chunk.content) for chunk in chat.stream("Add one and three.")))

bound, messages = chat.bind_tools([add]), [HumanMessage("Add one and three.")]
while (answer := bound.invoke(messages)).tool_calls:
    messages.append(answer)
    messages += [ToolMessage(add(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
assert len(messages) > 1
print("ok tools:", answer.content)
