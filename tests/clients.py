"""The clients that docs/clients.md is about: what each needs, and what its program in examples/clients shows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
        title: what people call it.
        install: packages that its program needs, as pip or npm take them; the first one's version is shown.
        module: that is there where it is installed.
        needs: what to tell it so that it uses the server.
        checks: what its program prints `ok` for, in this order.
        program: in examples/clients, or the test that stands for it.
    """

    title: str
    install: tuple[str, ...]
    module: str
    needs: str
    checks: tuple[str, ...]
    program: str

    @property
    def node(self) -> bool:
        """Whether it is a package for Node."""
        return self.program.endswith(".mjs")


_BASE = '`base_url="http://HOST:8000/v1"`, any `api_key`'
CLIENTS = {
    "openai": Client(
        "OpenAI", ("openai",), "openai", _BASE, ("chat", "stream", "tools", "structured", "responses"), "with_openai.py"
    ),
    "anthropic": Client(
        "Anthropic", ("anthropic",), "anthropic", '`base_url="http://HOST:8000"`, any `api_key`',
        ("chat", "stream", "tools", "count_tokens"), "with_anthropic.py",
    ),
    "ollama": Client(
        "Ollama", ("ollama",), "ollama", '`host="http://HOST:8000"`', ("chat", "stream", "tools", "models"),
        "with_ollama.py",
    ),
    "llamaindex": Client(
        "LlamaIndex", ("llama-index-llms-openai-like",), "llama_index.llms.openai_like",
        "`OpenAILike` with `api_base`, `is_chat_model=True`, `is_function_calling_model=True`",
        ("chat", "stream", "tools"), "with_llamaindex.py",
    ),
    "langchain": Client(
        "LangChain", ("langchain-openai",), "langchain_openai", "`ChatOpenAI` with `base_url`, any `api_key`",
        ("chat", "stream", "tools"), "with_langchain.py",
    ),
    "litellm": Client(
        "LiteLLM", ("litellm",), "litellm", '`model="openai/NAME"`, `api_base`, any `api_key`',
        ("chat", "stream", "tools"), "with_litellm.py",
    ),
    "pydantic_ai": Client(
        "Pydantic AI", ("pydantic-ai-slim[openai]",), "pydantic_ai", "`OpenAIChatModel` with an `OpenAIProvider`",
        ("chat", "tools"), "with_pydantic_ai.py",
    ),
    "openai_agents": Client(
        "OpenAI Agents", ("openai-agents",), "agents", "a model made with an `AsyncOpenAI` of the server's `base_url`",
        ("tools", "responses"), "with_openai_agents.py",
    ),
    "instructor": Client(
        "Instructor", ("instructor",), "instructor", "`from_openai` of a client with the server's `base_url`",
        ("tools", "structured"), "with_instructor.py",
    ),
    "ai_sdk": Client(
        "Vercel AI SDK", ("ai", "@ai-sdk/openai-compatible", "zod"), "ai", "`createOpenAICompatible` with `baseURL`",
        ("chat", "stream", "tools"), "with_ai_sdk.mjs",
    ),
    "lm_eval": Client(
        "lm-evaluation-harness", ("lm-eval[api]",), "lm_eval",
        "`local-completions` with `base_url=http://HOST:8000/v1/completions`, `tokenizer_backend=remote`",
        ("loglikelihood",), "with_lm_eval.py",
    ),
    "guidellm": Client(
        "GuideLLM", ("guidellm",), "guidellm", "`--backend kind=openai_http,target=http://HOST:8000`",
        ("benchmark",), "with_guidellm.py",
    ),
}  # fmt: skip
