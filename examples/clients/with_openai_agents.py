"""OpenAI's agents: pip install openai-agents"""

import sys
from typing import Literal

import agents
import openai

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
called = []


@agents.function_tool
def add(a: Literal[1], b: Literal[3]) -> str:
    """Add two numbers."""
    called.append((a, b))
    return str(a + b)


for api, kind in (("tools", agents.OpenAIChatCompletionsModel), ("responses", agents.OpenAIResponsesModel)):
    called.clear()
    agent = agents.Agent(name="A", model=kind(sys.argv[2], client), tools=[add])
    answer = agents.Runner.run_sync(agent, "Add one and three.").final_output
    assert called
    print(f"ok {api}:", answer)
