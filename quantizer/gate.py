"""`--fail-if 'kl>0.06'`: a bound on measured quality that a bundle must keep, or it is not written."""

import re
from dataclasses import dataclass

from runtime.bundle.manifest import Quality
from runtime.bundle.sequence_task import SequenceQuality
from runtime.errors import QuantizationError

_FORM = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9.eE+-]+)\s*")
OF_TEXTS = ("cosine", "cosine_min", "max_difference")  # of embeddings and scores
FIGURES = ("kl", "kl_p99", "top1", "perplexity", *OF_TEXTS)


@dataclass(frozen=True)
class Gate:
    """A condition under which a result is refused: `figure` above or below `bound`."""

    figure: str
    above: bool
    bound: float

    @property
    def of_texts(self) -> bool:
        """Whether it is about embeddings and scores."""
        return self.figure in OF_TEXTS

    def check(self, quality: Quality | SequenceQuality, consequence: str = "") -> None:
        """Raise QuantizationError if the condition holds; `consequence` is what that means for the caller."""
        value = float(getattr(quality, self.figure))
        if (value > self.bound) if self.above else (value < self.bound):
            relation = "above" if self.above else "below"
            raise QuantizationError(
                f"{self.figure} is {value:.4g}, {relation} {self.bound:g}, which --fail-if forbids. {consequence}"
                "Allow more bits (--budget, --preset accurate), or give text that is closer to yours (--calibration)."
            )


def parse_gate(text: str) -> Gate:
    """Read `kl>0.06`, `top1<0.9` and the like.

    Raises:
        QuantizationError: it is not such a condition.
    """
    match = _FORM.fullmatch(text)
    try:
        bound = float(match[3]) if match else float("nan")
    except ValueError:
        bound = float("nan")
    if match is None or match[1] not in FIGURES or bound != bound:
        raise QuantizationError(
            f"fail-if: {text!r} is not a condition. Write one of {', '.join(FIGURES)}, < or >, a number: kl>0.06"
        )
    return Gate(match[1], match[2] == ">", bound)
