"""A complete answer, read at once."""

from runtime.chat.formats.reader import AnswerPart, AnswerReader


def read_answer(text, chat, tools=None, *, in_thought=False):
    """All of it: what the reader gives for the text, and for its end."""
    reader = AnswerReader(chat, tools, in_thought=in_thought)
    parts = (reader.push(text), reader.finish())
    return AnswerPart(
        "".join(part.content for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.calls),
    )
