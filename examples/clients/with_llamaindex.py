"""LlamaIndex: pip install llama-index-llms-openai-like"""

import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=sys.argv[2], api_base=f"{sys.argv[1]}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True
)
asked = [ChatMessage(role="user", content="Add one and three.")]


def add(a: Literal[1], b: Literal[3]) -> str:
    """Add two numbers."""
    return str(a + b)


print("ok chat:", llm.chat(asked).message.content)

print("ok stream:", "".join(part.delta or "" for part in llm.stream_chat(asked)))

tool = FunctionTool.from_defaults(add)
called = False
while calls := llm.get_tool_calls_from_response(
    answer := llm.chat_with_tools([tool], chat_history=asked), error_on_no_tool_call=False
):
    called = True
    asked.append(answer.message)
    for call in calls:
        result = str(tool(**call.tool_kwargs))
        asked.append(ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id}))
assert called
print("ok tools:", answer.message.content)
