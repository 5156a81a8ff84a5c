"""How many prompt tokens to compute between two decode steps, so that answers that are read keep their pace."""

_SMOOTHING = 0.2
# Beside one answer, 2 tokens a chunk double the time between its tokens, 4 make it 2.4 times, 8 three times (SmolLM2,
# int4, 2 cores); but a prompt of 2,000 tokens then takes 24, 14 and 9 seconds. Beside eight answers the share decides.
_LEAST = 4


class PrefillPace:
    """Measures steps and proposes chunk sizes. Sizes change with the measurements; results do not, bit for bit.

    Args:
        largest: chunk size while nobody reads along.
        share: how long a chunk may take, in decode steps.
        patience: seconds from which on a waiting prompt gets more: twice the share at twice this age, and so on.

    Attributes:
        decode_seconds: what a decode step takes at present; 0 before the first.
    """

    def __init__(self, largest: int, share: float = 0.8, patience: float = 60.0) -> None:
        self.largest = largest
        self.share = share
        self.patience = patience
        self.decode_seconds = 0.0
        self._token_seconds = 0.0

    def size(self, paced: bool, waited: float) -> int:
        """Tokens of the next chunk of a prompt that has waited `waited` seconds; `paced` if somebody reads along."""
        if not paced or not (self.decode_seconds and self._token_seconds):
            return self.largest
        share = self.share * max(1.0, waited / self.patience)
        return min(self.largest, max(_LEAST, int(share * self.decode_seconds / self._token_seconds)))

    def decoded(self, seconds: float) -> None:
        """A decode step took this long."""
        self.decode_seconds = _smoothed(self.decode_seconds, seconds)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A chunk of this many tokens took this long."""
        self._token_seconds = _smoothed(self._token_seconds, seconds / tokens)


def _smoothed(old: float, new: float) -> float:
    return new if not old else old + _SMOOTHING * (new - old)
