"""Agent frameworks over the server: each calls two tools and answers, on a tiny model.

What the model begins with is scripted, token by token; where a call begins, the grammar of the tools takes over, and
the tiny model writes arguments by it. Frameworks are not in the dev extra: a test runs where its package is installed.
For the Vercel AI SDK: `npm install ai @ai-sdk/openai-compatible zod`, and ONNXLM_NODE_MODULES is that folder.
"""

import json
import os
import shutil
import subprocess
from typing import Literal

import pytest
from chat_cases import FOLDER
from scripted import END, Scripted

from runtime import EngineOptions
from runtime.bundle.bundle import open_bundle
from runtime.ort.executor import OnnxExecutor
from runtime.text.tokenizer import Tokenizer

ASKED = "Add one and three, then shout."
LOOP = [
    '<think>\nFirst the sum.\n</think>\n\n<tool_call>\n{"name": "add"',
    '<tool_call>\n{"name": "shout"',
    f"Four, and YES!{END}",
]


@pytest.fixture(scope="module")
def script(make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(max_position_embeddings=8192)
    config = checkpoint / "tokenizer_config.json"
    template = (FOLDER / "qwen3.jinja").read_text(encoding="utf-8")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    bundle = make_bundle(checkpoint)
    executor = OnnxExecutor(open_bundle(bundle), "cpu", slots=1, threads=1)
    return bundle, Scripted(executor, Tokenizer(bundle / "tokenizer.json"))


@pytest.fixture(scope="module")
def server(script, start):
    return start(script[0], EngineOptions(max_concurrency=1, threads=1), executor=script[1])


@pytest.fixture
def loop(script, monkeypatch):
    """The script of a loop, and where the tools write down how they were called."""
    script[1].answers[:] = LOOP
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return []


def tools(seen):
    def add(a: Literal[1, 2], b: Literal[3]) -> str:
        """Add two numbers."""
        seen.append(("add", a in (1, 2), b))
        return str(a + b)

    def shout(word: Literal["yes"]) -> str:
        """Say it loudly."""
        seen.append(("shout", word))
        return word.upper()

    return add, shout


CALLED = {("add", True, 3), ("shout", "yes")}  # the tiny model may make a call several times at once


def test_openai(server, loop):
    from runtime import function_schema

    functions = {function.__name__: function for function in tools(loop)}
    messages, schemas = [{"role": "user", "content": ASKED}], [function_schema(one) for one in functions.values()]
    with server.client() as client:
        while True:
            message = client.chat.completions.create(model="tiny", messages=messages, tools=schemas).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = functions[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert (set(loop), message.content) == (CALLED, "Four, and YES!")
    assert messages[1]["reasoning_content"] == "First the sum."


def test_openai_responses(server, loop):
    from runtime import function_schema

    functions = {function.__name__: function for function in tools(loop)}
    schemas = [{"type": "function", **function_schema(one)["function"]} for one in functions.values()]
    given, before = ASKED, None
    with server.client() as client:
        while True:
            answer = client.responses.create(model="tiny", input=given, tools=schemas, previous_response_id=before)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            before, given = (
                answer.id,
                [
                    {
                        "type": "function_call_output",
                        "call_id": call.call_id,
                        "output": functions[call.name](**json.loads(call.arguments)),
                    }
                    for call in calls
                ],
            )
    assert (set(loop), answer.output_text) == (CALLED, "Four, and YES!")


@pytest.mark.filterwarnings("ignore")
def test_langchain(server, loop):
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="none")
    messages_of = pytest.importorskip("langchain_core.messages")
    functions = {one.__name__: one for one in tools(loop)}
    bound = chat.bind_tools(list(functions.values()))
    messages = [messages_of.HumanMessage(ASKED)]
    while True:
        answer = bound.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            break
        results = [(functions[call["name"]](**call["args"]), call["id"]) for call in answer.tool_calls]
        messages += [messages_of.ToolMessage(result, tool_call_id=call_id) for result, call_id in results]
    assert (set(loop), answer.content) == (CALLED, "Four, and YES!")


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.filterwarnings("ignore")
def test_openai_agents(server, loop, api):
    agents = pytest.importorskip("agents")
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]
    agent = agents.Agent(
        name="A", model=kind("tiny", client), tools=[agents.function_tool(function) for function in tools(loop)]
    )
    assert agents.Runner.run_sync(agent, ASKED).final_output == "Four, and YES!"
    assert set(loop) == CALLED


@pytest.mark.filterwarnings("ignore")
def test_pydantic_ai(server, loop):
    agent_of = pytest.importorskip("pydantic_ai").Agent
    model_of = pytest.importorskip("pydantic_ai.models.openai").OpenAIChatModel
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(
        base_url=f"{server.url}/v1", api_key="none"
    )
    answer = agent_of(model_of("tiny", provider=provider), tools=list(tools(loop))).run_sync(ASKED)
    assert (set(loop), answer.output) == (CALLED, "Four, and YES!")


@pytest.mark.filterwarnings("ignore")
def test_instructor(server, script):
    instructor = pytest.importorskip("instructor")
    import pydantic

    class Add(pydantic.BaseModel):
        a: Literal[1, 2]
        b: Literal[3]

    class Shout(pydantic.BaseModel):
        word: Literal["yes"]
        then: Add | None = None

    script[1].answers[:] = ["", ""]
    with server.client() as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
        for model in (Add, Shout):
            asked = [{"role": "user", "content": ASKED}]
            found = client.chat.completions.create(model="tiny", messages=asked, response_model=model, max_retries=0)
            assert isinstance(found, model)


AI_SDK = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, stepCountIs, tool } from "ai";
import { z } from "zod";

const seen = [];
const provider = createOpenAICompatible({ name: "onnxlm", baseURL: process.argv[2] + "/v1", apiKey: "none" });
const settings = {
  model: provider("tiny"),
  prompt: process.argv[3],
  stopWhen: stepCountIs(5),
  tools: {
    add: tool({ description: "Add", inputSchema: z.object({ a: z.literal([1, 2]), b: z.literal(3) }),
      execute: async ({ a, b }) => { seen.push(["add", a === 1 || a === 2, b]); return String(a + b); } }),
    shout: tool({ description: "Shout", inputSchema: z.object({ word: z.literal("yes") }),
      execute: async ({ word }) => { seen.push(["shout", word]); return word.toUpperCase(); } }),
  },
};
const answer = process.argv[4] === "stream" ? streamText(settings) : await generateText(settings);
const steps = await answer.steps;
const reasoning = steps.map((step) => step.reasoningText ?? "").join("");
console.log(JSON.stringify({ seen, text: await answer.text, reasoning }));
"""


@pytest.mark.parametrize("how", ["whole", "stream"])
def test_vercel_ai_sdk(server, loop, tmp_path, how):
    folder = os.environ.get("ONNXLM_NODE_MODULES")
    if not folder or not shutil.which("node"):
        pytest.skip("ONNXLM_NODE_MODULES names no folder with the AI SDK")
    (tmp_path / "node_modules").symlink_to(folder)
    (tmp_path / "loop.mjs").write_text(AI_SDK)
    command = ["node", str(tmp_path / "loop.mjs"), server.url, ASKED, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {tuple(call) for call in told["seen"]} == CALLED
    assert (told["text"], told["reasoning"]) == ("Four, and YES!", "First the sum.")
