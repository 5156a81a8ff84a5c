"""What was found in an answer so far and not told yet; blanks beside thoughts and calls are dropped."""

from .format import ToolCall


class Output:
    """Collects text, thoughts and calls.

    Args:
        keep_thoughts: thoughts are text, with their marks.

    Attributes:
        thinking: whether a thought is open.
        begun: whether some of the text was told that is no blank.
        thought_begun: whether some of a thought was told that is no blank.
        last: the last character of the text so far, blanks included.
        cut: the answer was stopped for its length.
        cut_call: and that was inside a call.
    """

    def __init__(self, *, keep_thoughts: bool = False) -> None:
        self._keep = keep_thoughts
        self.thinking = False
        self.last = ""
        self.cut = False
        self.cut_call = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._blanks: list[str] = []  # at the end of the text: told only when more follows
        self._thought_blanks: list[str] = []
        self.begun = False  # some text that is no blank was told
        self.thought_begun = False
        self._beside = False  # a thought or call came, beside which blanks mean nothing
        self._wrapped = False

    def say(self, text: str) -> None:
        """Text for the user."""
        if not text:
            return
        self.last = text[-1]
        sure = _sure(text, self._blanks)
        if not self.begun and self._beside:
            sure = sure.lstrip()
        if sure:
            self._content.append(sure)
            self.begun = True

    def say_after_call(self, read: str) -> None:
        """Blanks at the end of what was read while looking for another call."""
        self._blanks.append(read[len(read.rstrip()) :])
        self.last = "\n"

    def think(self, text: str) -> None:
        """More of a thought."""
        if self._keep:
            self.say(text)
            return
        sure = _sure(text, self._thought_blanks)
        if sure:
            self._reasoning.append(sure if self.thought_begun else sure.lstrip())
            self.thought_begun = True

    def begin_thought(self, mark: str) -> None:
        """A thought begins; one that follows another is told in a line of its own."""
        if self._keep:
            self.say(mark)
            self.thinking = True
            return
        self._thought_blanks = ["\n"] if self.thought_begun else []
        self.thinking, self._beside = True, True

    def end_thought(self, mark: str) -> None:
        """The thought has ended."""
        if self._keep:
            self.say(mark)
            self.thinking = False
            return
        self._thought_blanks = []
        self.thinking, self._beside, self.last = False, True, ""

    def wrap(self, mark: str, *, opens: bool) -> None:
        """A mark around the text: dropped where it stands there, and text elsewhere."""
        if (opens and not self.begun) or (not opens and self._wrapped):
            self._wrapped, self._beside = opens, True
        else:
            self.say(mark)

    def call(self, *calls: ToolCall) -> None:
        """Calls."""
        self._calls += calls
        self._beside = True

    def close(self) -> None:
        """Nothing follows: blanks at the end are text where nothing else was found."""
        if not self._beside:
            self._content += self._blanks
            self._blanks = []

    def take(self) -> tuple[str, str, tuple[ToolCall, ...]]:
        """What was not told yet: text, thoughts, calls."""
        told = "".join(self._content), "".join(self._reasoning), tuple(self._calls)
        self._content.clear()
        self._reasoning.clear()
        self._calls.clear()
        return told


def _sure(text: str, blanks: list[str]) -> str:
    """What can be told now: `blanks`, kept while nothing else follows, and the text without those at its end."""
    size = len(text.rstrip())
    if not size:
        blanks.append(text)
        return ""
    told = "".join([*blanks, text[:size]])
    blanks[:] = [text[size:]]
    return told
