"""How a run uses memory and disk: what may be done in smaller steps where these are short."""

from dataclasses import dataclass

AT_ONCE = 2  # matrices beside each other: of each a Hessian, its factor and several copies of the weights
KEPT = 4 << 30  # bytes of Hessians, where no work folder was named


@dataclass(frozen=True)
class Settings:
    """How a run uses memory and disk. Codes depend on `rows`, `text_bits` and `streams` alone.

    Attributes:
        rows: texts that the model writes at a time.
        text_bits: of the weights by which it writes them: 32 for its own, else those of a copy that is rounded first.
        streams: that a layer carries when sensitivity is measured.
        at_once: matrices that are quantized beside each other.
        most_kept: bytes of Hessians that are kept on disk; where all take more, they are made again layer by layer.
    """

    rows: int
    text_bits: int = 32
    streams: int = 128
    at_once: int = AT_ONCE
    most_kept: int = KEPT

    def keep(self, hessian_bytes: int) -> bool:
        """Whether Hessians of this size in bytes stay on disk."""
        return hessian_bytes <= self.most_kept
