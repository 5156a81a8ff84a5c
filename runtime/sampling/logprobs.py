"""Log-probabilities of a token and of its likeliest alternatives, from the model's raw logits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability in nats, and the likeliest tokens at its place, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: FloatArray, token_id: int, alternatives: int = 0) -> TokenLogprob:
    """Score one token against one row of logits.

    Args:
        logits: [vocab], raw: before bias, penalties, masks and temperature.
        token_id: the token to score.
        alternatives: how many of the likeliest tokens to list; equally likely ones by ascending id.
    """
    raw = np.asarray(logits, np.float32)
    peak = raw.max()
    normaliser = float(peak) + float(np.log(np.exp(raw - peak).sum(dtype=np.float64)))
    top = tuple((int(i), float(raw[i]) - normaliser) for i in _likeliest(raw, alternatives))
    return TokenLogprob(int(token_id), float(raw[token_id]) - normaliser, top)


def _likeliest(raw: FloatArray, count: int) -> npt.NDArray[np.intp]:
    if count <= 0:
        return np.empty(0, np.intp)
    count = min(count, raw.size)
    ids = np.flatnonzero(raw >= np.partition(raw, raw.size - count)[raw.size - count])
    return ids[np.lexsort((ids, -raw[ids]))][:count]
