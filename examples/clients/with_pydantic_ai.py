"""Pydantic AI: pip install 'pydantic-ai-slim[openai]'"""

import sys
from typing import Literal

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = OpenAIChatModel(sys.argv[2], provider=provider)
called = []


def add(a: Literal[1], b: Literal[3]) -> str:
    """Add two numbers."""
    called.append((a, b))
    return str(a + b)


print("ok chat:", Agent(model).run_sync("Add one and three.").output)

answer = Agent(model, tools=[add]).run_sync("Add one and three.").output
assert called
print("ok tools:", answer)
