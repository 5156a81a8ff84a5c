"""What FAMILIES.md says of tools and reasoning is what the families' templates give."""

import pytest
from chat_cases import NAMES, template_of

from exporter.family_chats import CHATS
from models.families.registry import FAMILIES


def opening(frame):
    """What opens a call, as FAMILIES.md shows it."""
    if frame.shape == "channels":
        return "<|channel|>commentary to=functions."
    return frame.section_mark or frame.open_mark or frame.section_open + frame.open or frame.before_name.rstrip(' "')


@pytest.mark.parametrize("model_type", sorted(CHATS))
def test_a_family_s_row_is_what_its_templates_give(model_type):
    row, formats = CHATS[model_type], [template_of(name).format for name in CHATS[model_type].templates]
    assert model_type in FAMILIES
    assert set(row.tools.split(", ")) == {opening(found.calls) for found in formats}
    thoughts = {found.thoughts.open_mark for found in formats if found.thoughts}
    thoughts |= {"<|channel|>analysis" for found in formats if found.calls.shape == "channels"}
    assert set(row.reasoning.split(", ")) == (thoughts or {"–"})
    # test_call_grammar.py forces calls of every template and parses them back
    assert (row.forced, set(row.templates) <= set(NAMES)) == ("yes", True)
