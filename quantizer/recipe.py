"""The recipe of one run: what is stored how, and how codes are chosen."""

from dataclasses import dataclass
from typing import Any, Literal

from runtime.bundle import json_codec

from .algorithms.registry import METHODS, method_names
from .costs.table import TARGETS, CostTable, read_costs
from .storage.scheme import QuantConfig

# As recipes of bundles and files called these before.
_EARLIER = {
    "table": "embedding",
    "fold": "smoothing",
    "outlier_share": "residual_share",
    "outliers": "residual_channels",
}


@dataclass(frozen=True)
class CacheText:
    """The text that `quantize-kv` measured its scales on, by the rules of `Recipe`."""

    calibration: str = "self"
    calibration_tokens: int = 8192
    seed: int = 0
    text_sha256: str | None = None
    tokens_sha256: str | None = None


@dataclass(frozen=True)
class TimeBudget:
    """What the matrix products of a decode step may take.

    Attributes:
        ratio: of what they take with all matrices in plain 4-bit groups of 32 and the embedding in 8 bits.
        target: whose kernel costs count, one of `TARGETS`; or what `costs` are of.
        costs: measured ones, where the target is none of these.
    """

    ratio: float
    target: str
    costs: CostTable | None = None

    def __post_init__(self) -> None:
        if not 0.1 < self.ratio < 10:
            raise ValueError(f"time: {self.ratio} of the time of plain 4-bit groups; choose a number such as 0.9")
        if self.costs is None and self.target not in TARGETS:
            raise ValueError(f"target: {self.target!r} has no costs; choose one of {', '.join(TARGETS)}")

    @property
    def table(self) -> CostTable:
        """The costs to count by."""
        return self.costs or read_costs(self.target)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the quantized bytes; it is written into the manifest and reproduces them.

    Attributes:
        linear: how the weight matrices of the layers are stored.
        embedding: how the embedding (tied or untied head) is stored: symmetric, for the kernels that share it
            pack zero points differently.
        exclude: patterns (`*`, `?`) of matrices that stay as they are.
        method: how codes are chosen: one of `METHODS`. Those that need text read the Hessian of each matrix's inputs.
        permute: let neighbouring weights absorb the order that suits GPTQ best.
        smoothing: let neighbouring weights absorb a scale that favours inputs that matter.
        polish: rounds of refinement after GPTQ.
        budget: bits per weight over all parameters; None stores every matrix by `linear` and `embedding`.
        time: what a decode step may take on a target, in place of a budget of bytes.
        residual_share: what second codes may add to weights.bin, of its bytes without them: how many each 4-bit
            matrix gets is then chosen by sensitivity. None gives each as many as `linear` and `embedding` say.
        calibration: "self" for text that the model writes itself, or the name of the text that was given.
        calibration_tokens: maximum number of tokens to use.
        seed: of the model's own text.
        kv: how keys and values are stored, by scales from the same text; None leaves them as they are.
        kv_text: the text of those scales, where `quantize-kv` stored them after the weights.
        text_sha256: of the file that `calibration` names, once it was used: another one is refused.
        tokens_sha256: of the token ids that were used: others are told.
    """

    linear: QuantConfig
    embedding: QuantConfig
    exclude: tuple[str, ...] = ()
    method: str = "rtn"
    permute: bool = False
    smoothing: bool = False
    polish: int = 0
    budget: float | None = None
    time: TimeBudget | None = None
    residual_share: float | None = None
    calibration: str = "self"
    calibration_tokens: int = 16384
    seed: int = 0
    kv: Literal["int8", "int4"] | None = None
    kv_text: CacheText | None = None
    text_sha256: str | None = None
    tokens_sha256: str | None = None

    def __post_init__(self) -> None:
        if not self.embedding.scheme.symmetric:
            raise ValueError("embedding: must be symmetric; MatMulNBits and GatherBlockQuantized share its bytes")
        if self.method not in METHODS:
            raise ValueError(f"method: {self.method!r} is not known; choose one of {', '.join(METHODS)}")
        if self.kv not in (None, "int8", "int4"):
            raise ValueError(f"kv: {self.kv!r} is not supported; choose int8 or int4, or leave it out")
        if self.kv_text is not None and self.kv is None:
            raise ValueError("kv_text: is the text for kv; name int8 or int4 there, or leave it out")
        residuals = self.residual_channels or self.residual_share is not None
        if not self.needs_text and (
            self.permute or self.smoothing or self.polish or self.budget or self.time or residuals
        ):
            raise ValueError(
                "permute, smoothing, polish, budget, time and residual channels need calibration: use method "
                + " or ".join(method_names(needs_text=True))
            )
        if self.polish < 0 or self.calibration_tokens < 1:
            raise ValueError("polish must be at least 0 and calibration_tokens at least 1")
        if self.budget is not None and not 1 < self.budget < 32:
            raise ValueError(f"budget: {self.budget} bits per weight; choose a number between 1 and 32, such as 5.0")
        if self.budget is not None and self.time is not None:
            raise ValueError("budget counts bytes, and time counts what a decode step takes; leave one out")
        self._check_residual_share()

    def _check_residual_share(self) -> None:
        if self.residual_share is None:
            return
        if self.budget is not None or self.time is not None or self.residual_channels:
            raise ValueError(
                "residual_share: a budget, or residual channels of linear and embedding, say the same; leave one out"
            )
        if not 0 < self.residual_share <= 1:
            raise ValueError(
                f"residual_share: {self.residual_share} of weights.bin; choose a number above 0, at most 1"
            )

    @property
    def needs_text(self) -> bool:
        """Whether calibration of the weights must run."""
        return METHODS[self.method].needs_text

    @property
    def weighs(self) -> bool:
        """Whether measured sensitivity decides how each matrix is stored."""
        return self.budget is not None or self.time is not None or self.residual_share is not None

    @property
    def residual_channels(self) -> int:
        """Residual-coded channels of any matrix that is stored by `linear` or `embedding`."""
        return max(self.linear.residual_channels, self.embedding.residual_channels)


def decode_recipe(data: Any) -> Recipe:
    """A recipe from parsed JSON or TOML; earlier spellings of its keys are read, too.

    Raises:
        StrictJsonError: an unknown key, a value of another type, a key in both of its spellings.
        ValueError: a value that is not supported.
    """
    return json_codec.decode(Recipe, _respelt(data))


def _respelt(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    for earlier, key in _EARLIER.items():
        if earlier in data and key in data:
            raise json_codec.StrictJsonError(f"{earlier!r} is the earlier spelling of {key!r}; leave one out")
    return {_EARLIER.get(key, key): _respelt(value) for key, value in data.items()}
