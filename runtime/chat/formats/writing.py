"""Calls as a model would have written them: for templates that leave the calls of earlier answers out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .format import ID, CallFrame

_IDS = "000000000"
JSON = json.JSONEncoder(ensure_ascii=False)  # made once: long conversations have many calls


def write_calls(frame: CallFrame, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The text of these calls, each a name and its arguments.

    Args:
        frame: of shape json, keyed, named, tagged or python.
        calls: at least one.
    """
    written = [f"{frame.open}{_call(frame, name, arguments)}{frame.close}" for name, arguments in calls]
    text = frame.section_open + frame.separator.join(written) + frame.section_close
    return text.replace(ID, _IDS)


def _call(frame: CallFrame, name: str, arguments: Mapping[str, Any]) -> str:
    if frame.shape == "python":
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if frame.shape == "tagged":
        return name + frame.before_arguments + "".join(_argument(frame, *one) for one in arguments.items())
    text = JSON.encode(arguments)
    before = frame.before_name if frame.shape in ("json", "keyed") else ""
    return f"{before}{name}{frame.before_arguments}{text}{frame.after_arguments}"


def _argument(frame: CallFrame, key: str, value: Any) -> str:
    text = value if isinstance(value, str) else JSON.encode(value)
    return f"{frame.before_key}{key}{frame.before_value}{text}{frame.after_value}"
