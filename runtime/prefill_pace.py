"""How many prompt tokens to compute between two decode steps, so that answers that are read keep their pace."""

_SMOOTHING = 0.2
_CHUNK_SMOOTHING = 0.5  # a token costs several times more in a small chunk than in the large one before it
# Faster than this nobody reads. A chunk has a fixed cost, of reading every weight and laying out all earlier keys, so
# defending more than that would be dear: beside one answer of 70 tokens per second (SmolLM2, int4, 2 cores) a prompt of
# 2,000 tokens takes 20 seconds in chunks of 4 tokens, and 5 without anybody reading along.
_READING_SECONDS = 0.050
_LEAST = 4
# What is left of a prompt is not cut if it takes no longer: one pause is hardly seen, and in small chunks each token
# costs several times as much. With 8 users who read answers of 96 tokens to prompts of 40, tokens/s grow by 8 %, first
# tokens come after 0.10 s instead of 0.24, and 1 token of 20 after 75 ms instead of 48.
_PAUSE_SECONDS = 0.100
_LARGE = 32  # tokens from which on a chunk's fixed cost counts little


class PrefillPace:
    """Measures steps and proposes chunk sizes. Sizes change with the measurements; results do not, bit for bit.

    Args:
        largest: chunk size while nobody reads along.
        share: how long a chunk may take, in decode steps, where these are slower than anybody reads. Otherwise step and
            chunk together may take as long as a reader needs for a token.
        patience: seconds from which on a waiting prompt gets more: twice the share at twice this age, and so on.

    Attributes:
        decode_seconds: what a decode step takes at present; 0 before the first.
    """

    def __init__(self, largest: int, share: float = 0.7, patience: float = 60.0) -> None:
        self.largest = largest
        self.share = share
        self.patience = patience
        self.decode_seconds = 0.0
        self._token_seconds = 0.0
        self._large_token_seconds = 0.0

    def size(self, paced: bool, waited: float, left: int, prompts: int = 1) -> int:
        """Tokens of the next chunk of a prompt.

        Args:
            paced: whether somebody reads along.
            waited: for how many seconds the prompt has.
            left: tokens of it.
            prompts: how many wait, with this one: rows stand idle meanwhile, so chunks grow with their number.
        """
        if not paced or not (self.decode_seconds and self._token_seconds):
            return self.largest
        if left * (self._large_token_seconds or self._token_seconds) <= _PAUSE_SECONDS:
            return min(self.largest, left)
        seconds = max(self.share * self.decode_seconds, _READING_SECONDS - self.decode_seconds)
        seconds *= max(1.0, waited / self.patience, prompts)
        return min(self.largest, max(_LEAST, int(seconds / self._token_seconds)))

    def decoded(self, seconds: float) -> None:
        """A decode step took this long."""
        self.decode_seconds = _smoothed(self.decode_seconds, seconds, _SMOOTHING)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A chunk of this many tokens took this long."""
        self._token_seconds = _smoothed(self._token_seconds, seconds / tokens, _CHUNK_SMOOTHING)
        if tokens >= _LARGE:
            self._large_token_seconds = _smoothed(self._large_token_seconds, seconds / tokens, _CHUNK_SMOOTHING)


def _smoothed(old: float, new: float, part: float) -> float:
    return new if not old else old + part * (new - old)
