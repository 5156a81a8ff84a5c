"""Answers as the models of each format write them, after their public documentation, with other names and values.

One row: the template's name, the answer, and its text, its thoughts, and its calls.
"""

OSLO = ("get_forecast", {"place": "Oslo", "days": 2})
ROME = ("get_forecast", {"place": 'Rome "Nord"\nvia Appia', "days": 7})
BOOK = (
    "book.table-2",
    {"guests": 4, "when": {"day": "Fr", "hours": [19, 20.5]}, "quiet": True, "note": "Geburtstag 🎂, c'est l'été"},
)
CLOCK = ("clock", {})
_OSLO = '{"place": "Oslo", "days": 2}'
_PY_OSLO = 'get_forecast(place="Oslo", days=2)'
_ROME = r'{"place": "Rome \"Nord\"\nvia Appia", "days": 7}'
_BOOK = (
    '{"guests": 4, "when": {"day": "Fr", "hours": [19, 20.5]}, "quiet": true, "note": "Geburtstag 🎂, c\'est l\'été"}'
)
_BOOK_ASCII = _BOOK.replace("🎂", "\\ud83c\\udf82").replace("é", "\\u00e9")
_TOOL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'.format
_CALL = '{{"name": "{}", "arguments": {}}}'.format
_DS = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>".format
_KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>".format
_WAY = "The sky: first Oslo."
_QWEN_XML = """<tool_call>
<function=book.table-2>
<parameter=guests>
4
</parameter>
<parameter=when>
{"day": "Fr", "hours": [19, 20.5]}
</parameter>
<parameter=quiet>
True
</parameter>
<parameter=note>
Geburtstag 🎂, c'est l'été
</parameter>
</function>
</tool_call>"""
_ROME_XML = """<tool_call>
<function=get_forecast>
<parameter=place>
Rome "Nord"
via Appia
</parameter>
<parameter=days>
7
</parameter>
</function>
</tool_call>"""
_GLM = """<tool_call>get_forecast
<arg_key>place</arg_key>
<arg_value>Rome "Nord"
via Appia</arg_value>
<arg_key>days</arg_key>
<arg_value>7</arg_value>
</tool_call>"""
_MINIMAX = """<minimax:tool_call>
<invoke name="get_forecast">
<parameter name="place">Oslo</parameter>
<parameter name="days">2</parameter>
</invoke>
<invoke name="book.table-2">
<parameter name="guests">4</parameter>
<parameter name="when">{"day": "Fr", "hours": [19, 20.5]}</parameter>
<parameter name="quiet">true</parameter>
<parameter name="note">Geburtstag 🎂, c'est l'été</parameter>
</invoke>
</minimax:tool_call>"""
_DSML = """<｜DSML｜function_calls>
<｜DSML｜invoke name="get_forecast">
<｜DSML｜parameter name="place" string="true">Oslo</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>"""
_HARMONY = (
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>commentary to=functions.{} "
    "<|constrain|>json<|message|>{}<|call|>"
).format
_LFM = "<|tool_call_start|>[{}]<|tool_call_end|>".format
_PY_BOOK = (
    'book.table-2(guests=4, when={"day": "Fr", "hours": [19, 20.5]}, quiet=True, note="Geburtstag 🎂, c\'est l\'été")'
)
_G = '<|"|>'

ANSWERS = [
    ("qwen2_5", f"{_WAY}\n{_TOOL('get_forecast', _OSLO)}", _WAY, "", [OSLO]),
    ("qwen2_5", f"{_TOOL('get_forecast', _ROME)}\n{_TOOL('book.table-2', _BOOK_ASCII)}\nSoon.", "Soon.", "", [ROME, BOOK]),
    ("hermes_2_pro", '<tool_call>{"arguments": {"place": "Oslo", "days": 2}, "name": "get_forecast"}</tool_call>', "", "", [OSLO]),
    ("qwen3", f"<think>\nFirst, {_WAY}\n</think>\n\n{_TOOL('clock', '{}')}", "", f"First, {_WAY}", [CLOCK]),
    ("qwen3", "<think>\n\n</think>\n\nIt is **noon**.\n\n- yes", "It is **noon**.\n\n- yes", "", []),
    ("qwen3_coder", f"{_WAY}\n\n{_QWEN_XML}\n{_ROME_XML}", _WAY, "", [BOOK, ROME]),
    ("qwen3_5", f"<think>\nHm.\n</think>\n\n{_ROME_XML}", "", "Hm.", [ROME]),
    ("nemotron_3", f"<think>Hm.</think>{_QWEN_XML}", "", "Hm.", [BOOK]),
    ("llama_3_1", '{"name": "get_forecast", "parameters": {"place": "Oslo", "days": 2}}', "", "", [OSLO]),
    ("llama_3_1", '<|python_tag|>{"name": "get_forecast", "parameters": {"place": "Oslo", "days": 2}}', "", "", [OSLO]),
    ("llama_3_1", '<|python_tag|>get_forecast.call(place="Oslo", days=2)', "", "", [OSLO]),
    ("llama_3_2", f'{{"name": "get_forecast", "parameters": {_ROME}}}; {{"name": "clock", "parameters": {{}}}}', "", "", [ROME, CLOCK]),
    ("llama_4_pythonic", f'[get_forecast(place="Oslo", days=2), {_PY_BOOK}]', "", "", [OSLO, BOOK]),
    ("mistral_v3", f'[TOOL_CALLS] [{{"name": "get_forecast", "arguments": {_ROME}, "id": "a1B2c3D4e"}}]', "", "", [ROME]),
    ("mistral_nemo", f'[TOOL_CALLS][{{"name": "clock", "arguments": {{}}}}, {{"name": "book.table-2", "arguments": {_BOOK}}}]', "", "", [CLOCK, BOOK]),
    ("mistral_nemo", "[TOOL_CALLS]clock{}", "", "", [CLOCK]),
    ("mistral_small_3_2", f"{_WAY}[TOOL_CALLS]get_forecast[CALL_ID]a1B2c3D4e[ARGS]{_ROME}[TOOL_CALLS]clock[CALL_ID]b2C3d4E5f[ARGS]{{}}", _WAY, "", [ROME, CLOCK]),
    ("devstral", f"[TOOL_CALLS]book.table-2[ARGS]{_BOOK}", "", "", [BOOK]),
    ("magistral", f"[THINK]Hm.[/THINK]{_WAY}[TOOL_CALLS]clock[ARGS]{{}}", _WAY, "Hm.", [CLOCK]),
    ("glm_4_5", f"\n<think>Hm.</think>\n{_WAY}\n{_GLM}\n<tool_call>clock\n</tool_call>", _WAY, "Hm.", [ROME, CLOCK]),
    ("glm_4_7", _GLM.replace("\n<arg", "<arg").replace("\n</tool", "</tool"), "", "", [ROME]),
    ("gpt_oss", _HARMONY("Need Oslo.", "get_forecast", '{"place":"Oslo","days":2}'), "", "Need Oslo.", [OSLO]),
    ("gpt_oss", "<|channel|>analysis<|message|>User wants weather.<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>",
     "It is sunny.", "User wants weather.", []),
    ("gpt_oss", f"<|channel|>commentary<|message|>{_WAY}<|end|><|start|>assistant to=functions.book.table-2<|channel|>commentary json<|message|>{_BOOK}<|call|>",
     _WAY, "", [BOOK]),
    ("deepseek_v3", _DS(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_forecast\n```json\n{_ROME}\n```<｜tool▁call▁end｜>"), "", "", [ROME]),
    ("deepseek_r1", "<think>\nHm.\n</think>\n\n" + _DS("<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜>\n"
     f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>book.table-2\n```json\n{_BOOK}\n```<｜tool▁call▁end｜>"), "", "Hm.", [CLOCK, BOOK]),
    ("deepseek_v3_1", _WAY + _DS(f"<｜tool▁call▁begin｜>get_forecast<｜tool▁sep｜>{_ROME}<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"),
     _WAY, "", [ROME, CLOCK]),
    ("deepseek_v3_2", f"{_WAY}\n\n{_DSML}", _WAY, "", [OSLO]),
    ("kimi_k2", _WAY + _KIMI(f"<|tool_call_begin|>functions.get_forecast:0<|tool_call_argument_begin|>{_ROME}<|tool_call_end|>"
     "<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"), _WAY, "", [ROME, CLOCK]),
    ("kimi_k2_thinking", "<think>Hm.</think>" + _KIMI(f"<|tool_call_begin|>functions.book.table-2:3<|tool_call_argument_begin|>{_BOOK}<|tool_call_end|>"), "", "Hm.", [BOOK]),
    ("minimax_m2", f"<think>\nHm.\n</think>\n\n{_WAY}\n{_MINIMAX}", _WAY, "Hm.", [OSLO, BOOK]),
    ("seed_oss", f"<seed:think>Hm.</seed:think>\n{_WAY}\n<seed:tool_call>\n<function=get_forecast>\n<parameter=place>Rome \"Nord\"\nvia Appia</parameter>\n"
     "<parameter=days>7</parameter>\n</function>\n</seed:tool_call>", _WAY, "Hm.", [ROME]),
    ("command_r7b", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>It is noon.<|END_RESPONSE|>", "It is noon.", "Hm.", []),
    ("command_r7b", '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_forecast", "parameters": '
     + _ROME + '},\n    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>', "", "Hm.", [ROME, CLOCK]),
    ("command_a_reasoning", "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>It is noon.<|END_TEXT|>", "It is noon.", "Hm.", []),
    ("granite_3", f'<|tool_call|>[{{"name": "get_forecast", "arguments": {_ROME}}}, {{"name": "clock", "arguments": {{}}}}]', "", "", [ROME, CLOCK]),
    ("granite_3", "<think>Hm.</think><response>It is noon.</response>", "It is noon.", "Hm.", []),
    ("granite_3_prompt_only", f'<|tool_call|> [{{"name": "book.table-2", "arguments": {_BOOK}}}]', "", "", [BOOK]),
    ("granite_4", _TOOL("get_forecast", _ROME) + "\n" + _TOOL("clock", "{}"), "", "", [ROME, CLOCK]),
    ("lfm2", f'{_LFM("get_forecast(place=" + chr(34) + "Oslo" + chr(34) + ", days=2)")}Looking.', "Looking.", "", [OSLO]),
    ("lfm2", _LFM(f"clock(), {_PY_BOOK}"), "", "", [CLOCK, BOOK]),
    ("apertus", f'<|inner_prefix|>Hm.<|inner_suffix|>{_WAY}<|tools_prefix|>[{{"get_forecast": {_ROME}}}, {{"clock": {{}}}}]<|tools_suffix|>', _WAY, "Hm.", [ROME, CLOCK]),
    ("gemma_4", f"<|channel>thought\nHm.\n<channel|><|tool_call>call:get_forecast{{days:7,place:{_G}Rome \"Nord\"\nvia Appia{_G}}}<tool_call|>", "", "Hm.", [ROME]),
    ("gemma_4", f"{_WAY}<|tool_call>call:book.table-2{{guests:4,note:{_G}Geburtstag 🎂, c'est l'été{_G},quiet:true,when:{{day:{_G}Fr{_G},hours:[19,20.5]}}}}<tool_call|>"
     "<|tool_call>call:clock{}<tool_call|>", _WAY, "", [BOOK, CLOCK]),
    ("nemotron_nano_v2", f'Hm.\n</think>\n\n<TOOLCALL>[{{"name": "get_forecast", "arguments": {_ROME}}}]</TOOLCALL>', "", "Hm.", [ROME]),
    ("functionary_v3_1", f"<function=get_forecast>{_ROME}</function><function=clock>{{}}</function>", "", "", [ROME, CLOCK]),
    ("functionary_v3_2", f"all\n{_WAY}>>>get_forecast\n{_ROME}>>>clock\n{{}}", _WAY, "", [ROME, CLOCK]),
    ("functionary_v3_2", "all\nIn Python:\n>>> 1 + 1\n2", "In Python:\n>>> 1 + 1\n2", "", []),
    ("firefunction_v2", f' functools[{{"name": "get_forecast", "arguments": {_ROME}}}, {{"name": "clock", "arguments": {{}}}}]', "", "", [ROME, CLOCK]),
    ("smollm3", f"<think>\nHm.\n</think>\n{_TOOL('book.table-2', _BOOK)}", "", "Hm.", [BOOK]),
    ("phi_4_mini", f'<|tool_call|>[{{"name": "get_forecast", "arguments": {_ROME}}}]<|/tool_call|>', "", "", [ROME]),
    ("phi_4_mini", '<|tool_call|>[{"type": "function", "function": {"name": "clock", "arguments": {}}}]<|/tool_call|>', "", "", [CLOCK]),
    ("hunyuan", f'<think>\nHm.\n</think>\n<tool_calls>[{{"name": "get_forecast", "arguments": {_ROME}}}]</tool_calls>', "", "Hm.", [ROME]),
    ("hunyuan", "<think>\nHm.\n</think>\n<answer>\nIt is noon.\n</answer>", "It is noon.", "Hm.", []),
    ("ernie_4_5_thinking", f"Hm.\n</think>\n\n\n{_TOOL('get_forecast', _ROME)}\n\n{_TOOL('clock', '{}')}\n", "", "Hm.", [ROME, CLOCK]),
    ("ernie_4_5_thinking", "Hm.\n</think>\n\n<response>\nIt is noon.\n</response>\n", "It is noon.", "Hm.", []),
    ("apriel_1_5", "Hm.\n[BEGIN FINAL RESPONSE]\nIt is noon.\n[END FINAL RESPONSE]", "It is noon.", "Hm.", []),
    ("apriel_1_5", f'Hm.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{{"name": "get_forecast", "arguments": {_ROME}, "id": "x1"}}]</tool_calls>', "", "Hm.", [ROME]),
    ("olmo_3", f"<function_calls>{_PY_BOOK}\nclock()</function_calls>", "", "", [BOOK, CLOCK]),
    ("xlam_2", f'[{{"name": "get_forecast", "arguments": {_ROME}}}, {{"name": "clock", "arguments": {{}}}}]', "", "", [ROME, CLOCK]),
    ("jamba", f'{_WAY}<tool_calls>[\n  {{"name": "clock", "arguments": {{}}}}\n]</tool_calls>', _WAY, "", [CLOCK]),
    ("minimax_m1", f'<tool_calls>\n{{"name": "get_forecast", "arguments": {_ROME}}}\n{{"name": "clock", "arguments": {{}}}}\n</tool_calls>', "", "", [ROME, CLOCK]),
    ("qwen3", f"<tool_call>\n{_CALL('get_forecast', _ROME)}\n{_CALL('clock', '{}')}\n</tool_call>", "", "", [ROME, CLOCK]),
    ("qwen3_thinking", f"<think>\nHm.\n</think>\n\n{_TOOL('clock', '{}')}", "", "Hm.", [CLOCK]),
    ("phi_4_mini", f"functools[{_CALL('get_forecast', _ROME)}]", "", "", [ROME]),
    ("granite_3", f"<tool_call>[{_CALL('get_forecast', _ROME)}]", "", "", [ROME]),
    ("lfm2", _LFM(_CALL("get_forecast", _ROME)), "", "", [ROME]),
    ("llama_3_3", '{"type": "function", "name": "clock", "parameters": {}}', "", "", [CLOCK]),
    ("internlm_2_5", f'{_WAY}<|action_start|><|plugin|>\n{{"name": "get_forecast", "parameters": {_ROME}}}<|action_end|>', _WAY, "", [ROME]),
]  # fmt: skip
