"""What templates do not show when they render an answer: rows that are chosen by a mark in the template's source.

Most templates write earlier calls as the model does, and `derive` reads the frame from that. Those here leave earlier
calls to the client (LFM2, SmolLM3), or their models write more than the template does (Llama's built-in tools).
"""

from dataclasses import replace

from .format import CallFrame, ThoughtFrame

HERMES = CallFrame(shape="json", open="<tool_call>\n", close="\n</tool_call>", separator="\n")
CHANNELS = CallFrame(
    shape="channels",
    open="<|channel|>commentary to=functions.",
    before_arguments=" <|constrain|>json<|message|>",
    after_arguments="",
    close="<|call|>",
)
RECIPIENTS = CallFrame(shape="recipients", open=">>>", before_arguments="\n", after_arguments="", separator="")
TOOL_TAG = CallFrame(shape="named", open="<function=", before_arguments=">", after_arguments="", close="</function>")
PYTHON_LIST = CallFrame(
    shape="python", section_open="<|tool_call_start|>[", section_close="]<|tool_call_end|>", separator=", "
)
QWEN_XML = CallFrame(
    shape="tagged",
    open="<tool_call>\n<function=",
    before_arguments=">",
    before_key="\n<parameter=",
    before_value=">\n",
    after_value="\n</parameter>",
    close="\n</function>\n</tool_call>",
    separator="\n",
)


def _list(before: str, after: str) -> CallFrame:
    return CallFrame(shape="json", section_open=f"{before}[", section_close=f"]{after}", separator=", ")


# What the template's source holds → the frame. Those above win over what the template renders.
FIXED: tuple[tuple[str, CallFrame], ...] = (
    ("<|constrain|>", CHANNELS),
    ("<|channel|>analysis", CHANNELS),
    (">>>all", RECIPIENTS),
    ("<|tool_call_start|>", PYTHON_LIST),
    ("<|tool_list_start|>", PYTHON_LIST),
)
# These only where the template renders no calls.
TABLE: tuple[tuple[str, CallFrame], ...] = (
    ("<tool_call>\\n<function=", QWEN_XML),
    ("<tool_call>\n<function=", QWEN_XML),
    ("<tool_call>", HERMES),
    ("<TOOLCALL>", _list("<TOOLCALL>", "</TOOLCALL>")),
    ("<tool_calls>", _list("<tool_calls>", "</tool_calls>")),
    ("[TOOL_CALLS]", _list("[TOOL_CALLS]", "")),
    ("<|tool_call|>", _list("<|tool_call|>", "")),
    ("<|START_ACTION|>", replace(
        _list("<|START_ACTION|>", "<|END_ACTION|>"), name_key="tool_name", arguments_key="parameters",
        id_key="tool_call_id", id_pattern="[0-9]+",
        before_name='{"tool_call_id": "\0", "tool_name": "', before_arguments='", "parameters": ')),
    ("<|tools_prefix|>", CallFrame(
        shape="keyed", section_open="<|tools_prefix|>[", section_close="]<|tools_suffix|>", separator=", ",
        before_name='{"', before_arguments='": ')),
    ("functools[", _list(" functools", "")),
    ("<function=", TOOL_TAG),
)  # fmt: skip
# A mark by which a template opens calls → others by which the models of its families do.
ALIASES: dict[str, tuple[str, ...]] = {"<|tool_call|>": ("<tool_call>", "functools")}  # Granite 3, Phi-4-mini
CODE_MARKS = ("<|python_tag|>",)
THOUGHTS: tuple[tuple[str, ThoughtFrame], ...] = (
    ("<|inner_prefix|>", ThoughtFrame(open="<|inner_prefix|>", close="<|inner_suffix|>")),
    ("<|START_THINKING|>", ThoughtFrame(open="<|START_THINKING|>", close="<|END_THINKING|>")),
    ("<seed:think>", ThoughtFrame(open="<seed:think>", close="</seed:think>")),
    ("<|channel>thought", ThoughtFrame(open="<|channel>thought\n", close="\n<channel|>")),
    ("[THINK]", ThoughtFrame(open="[THINK]", close="[/THINK]")),
    ("◁think▷", ThoughtFrame(open="◁think▷", close="◁/think▷")),
    ("[BEGIN FINAL RESPONSE]", ThoughtFrame(open="Here are my reasoning steps:\n", close="\n[BEGIN FINAL RESPONSE]\n")),
    ("<|think_start|>", ThoughtFrame(open="<|think_start|>", close="<|think_end|>")),
    ("</thinking>", ThoughtFrame(open="<thinking>", close="</thinking>")),
    ("</think>", ThoughtFrame(open="<think>\n", close="\n</think>\n\n")),
    ("<think>", ThoughtFrame(open="<think>\n", close="\n</think>\n\n")),
)
WRAPPERS: tuple[tuple[str, str], ...] = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
    ("<response>", "</response>"),
    ("<answer>", "</answer>"),
    ("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
)
