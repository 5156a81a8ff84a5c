"""How the usual chat templates of each family write tool calls and thoughts; a test checks each row by its template."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chat:
    """One family's row.

    Attributes:
        templates: names of the reduced templates in tests/test_runtime/chat_templates/formats.
        tools: the mark that opens calls of each, parted by commas.
        forced: whether calls can be forced.
        reasoning: the mark that opens thoughts, of each that has one.
    """

    templates: tuple[str, ...]
    tools: str
    forced: str
    reasoning: str


def _chat(templates: str, tools: str, reasoning: str = "–") -> Chat:
    return Chat(tuple(templates.split()), tools, "yes", reasoning)


_DEEPSEEK = _chat(
    "deepseek_v3 deepseek_r1 deepseek_v3_1 deepseek_v3_2 kimi_k2 kimi_k2_thinking",
    "<｜tool▁calls▁begin｜>, <｜DSML｜function_calls>, <|tool_calls_section_begin|>",
    "<think>",
)
_GLM = _chat("glm_4_5 glm_4_7", "<tool_call>", "<think>")
_GRANITE = _chat("granite_3 granite_3_prompt_only granite_4", "<|tool_call|>, <tool_call>", "<think>")
_QWEN = _chat("qwen2_5 qwen3 qwen3_thinking qwen3_coder", "<tool_call>", "<think>")
_QWEN35 = _chat("qwen3_5", "<tool_call>", "<think>")
_MISTRAL = _chat("mistral_v3 mistral_nemo mistral_small_3_2 devstral magistral", "[TOOL_CALLS]", "[THINK]")
_HUNYUAN = _chat("hunyuan", "<tool_calls>", "<think>")
_ERNIE = _chat("ernie_4_5_thinking", "<tool_call>", "<think>")
_LFM2 = _chat("lfm2", "<|tool_call_start|>")
_GEMMA = _chat("gemma_4", "<|tool_call>", "<|channel>thought")

CHATS: dict[str, Chat] = {
    "apertus": _chat("apertus", "<|tools_prefix|>", "<|inner_prefix|>"),
    "cohere2": _chat("command_r7b command_a_reasoning", "<|START_ACTION|>", "<|START_THINKING|>"),
    "cohere2_moe": _chat("command_a_reasoning", "<|START_ACTION|>", "<|START_THINKING|>"),
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE,
    "gemma4_text": _GEMMA,
    "glm4_moe": _GLM,
    "glm4_moe_lite": _GLM,
    "gpt_oss": _chat("gpt_oss", "<|channel|>commentary to=functions.", "<|channel|>analysis"),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "llama": _chat(
        "llama_3_1 llama_3_2 llama_3_3 hermes_2_pro functionary_v3_1 functionary_v3_2 firefunction_v2 xlam_2",
        '{"name":, <tool_call>, <function=, >>>, functools, [',
    ),
    "minimax_m2": _chat("minimax_m2", "<minimax:tool_call>", "<think>"),
    "mistral": _chat("mistral_v3 mistral_nemo mistral_small_3_2 devstral magistral apriel_1_5",
                     "[TOOL_CALLS], <tool_calls>", "[THINK], Here are my reasoning steps:"),
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mistral4": _MISTRAL,
    "mixtral": _chat("mistral_v3", "[TOOL_CALLS]"),
    "olmo3": _chat("olmo_3", "<function_calls>"),
    "phi3": _chat("phi_4_mini", "<|tool_call|>"),
    "qwen2": _chat("qwen2_5 qwen2_5_coder", "<tool_call>"),
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "qwen3_next": _QWEN,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "seed_oss": _chat("seed_oss", "<seed:tool_call>", "<seed:think>"),
    "smollm3": _chat("smollm3", "<tool_call>", "<think>"),
}  # fmt: skip
