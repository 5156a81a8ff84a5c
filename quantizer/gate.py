"""`--fail-if 'kl>0.06'`: a bound on measured quality that a bundle must keep, or it is not written."""

import re
from dataclasses import dataclass

from runtime.bundle.manifest import Quality
from runtime.errors import QuantizationError

_FORM = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9.eE+-]+)\s*")
FIGURES = ("kl", "kl_p99", "top1", "perplexity")


@dataclass(frozen=True)
class Gate:
    """A condition under which a result is refused: `figure` above or below `bound`."""

    figure: str
    above: bool
    bound: float

    def missed(self, quality: Quality) -> str | None:
        """What is wrong if the condition holds; None if it does not."""
        value = float(getattr(quality, self.figure))
        if not ((value > self.bound) if self.above else (value < self.bound)):
            return None
        return f"{self.figure} is {value:.4g}, {'above' if self.above else 'below'} {self.bound:g}"

    def check(self, quality: Quality) -> None:
        """Raise QuantizationError if the condition holds, before a bundle is written."""
        if missed := self.missed(quality):
            raise QuantizationError(
                f"{missed}; nothing was written. "
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
