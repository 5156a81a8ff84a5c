"""What a bundle does that reads whole texts instead of generating: embeddings, or scores by label."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..errors import BundleError

if TYPE_CHECKING:
    from .bundle import Bundle

Pooling = Literal["lasttoken", "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean"]
ScoreActivation = Literal["identity", "sigmoid", "softmax"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
Kind = Literal["embed", "score"]
PLACEHOLDERS = ("{instruction}", "{query}", "{document}")


@dataclass(frozen=True)
class SequenceQuality:
    """Measured against the unquantized bundle, over texts: cosine similarity of embeddings, differences of scores.

    `cosine` is the mean, `cosine_min` the least; both compare rows of scores as vectors, too. `max_difference` is the
    largest absolute difference of a number.
    """

    cosine: float
    cosine_min: float
    max_difference: float
    text: str
    texts: int
    onnxruntime: str

    def __post_init__(self) -> None:
        if self.texts < 1:
            raise ValueError(f"texts must be at least 1, got {self.texts}")


@dataclass(frozen=True)
class SequenceTask:
    """What the one graph gives for each text, and how a text is made ready for it.

    Args:
        kind: "embed" or "score".
        width: numbers per text: of a vector, or one per label.
        max_tokens: the longest text, its special tokens included.
        pooling: how positions became one.
        normalized: vectors have length 1.
        sizes: to which vectors may be cut (Matryoshka); None where the checkpoint says nothing, and any is taken.
        similarity: how two vectors are compared.
        prompts: texts that are put in front, by name.
        default_prompt: the one that is used where none is named.
        labels: of the scores, in their order; empty where the checkpoint names none.
        activation: what turns raw scores into what users see.
        pair_template: how query and document become one text; None joins them as the tokenizer joins pairs.
        instruction: what `{instruction}` in the pair template is where a user says nothing.
        quality: of a quantized bundle.
    """

    kind: Kind
    width: int
    max_tokens: int
    pooling: tuple[Pooling, ...]
    normalized: bool = False
    sizes: tuple[int, ...] | None = None
    similarity: Similarity = "cosine"
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    labels: tuple[str, ...] = ()
    activation: ScoreActivation = "identity"
    pair_template: str | None = None
    instruction: str | None = None
    quality: SequenceQuality | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or self.max_tokens < 1 or not self.pooling:
            raise ValueError("task: width, max_tokens and pooling must be there, and at least 1")
        if not all(1 <= size <= self.width for size in self.sizes or ()):
            raise ValueError(f"task: sizes must be from 1 to {self.width}, got {self.sizes}")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ValueError(f"task: default_prompt {self.default_prompt!r} is none of the prompts")
        if self.labels and len(self.labels) != self.width:
            raise ValueError(f"task: {len(self.labels)} labels for {self.width} scores")
        if self.pair_template is not None:
            check_pair_template(self.pair_template)

    @property
    def output_role(self) -> Literal["embeddings", "scores"]:
        """The role of the graph's one output."""
        return "embeddings" if self.kind == "embed" else "scores"


def check_pair_template(template: str) -> None:
    """Raise ValueError unless query and document have a place in it, once each, and the instruction at most one."""
    counts = {name: template.count(name) for name in PLACEHOLDERS}
    if counts["{query}"] != 1 or counts["{document}"] != 1 or counts["{instruction}"] > 1:
        raise ValueError(
            "a pair template has {query} and {document} once each, and {instruction} at most once; got "
            + ", ".join(f"{name} {count} times" for name, count in counts.items())
        )


def require_generation(bundle: "Bundle", what: str) -> None:
    """Raise BundleError for a bundle that gives no text; `what` names the caller's purpose."""
    task = bundle.manifest.task
    if task is not None:
        gives, use = (
            ("embeddings", "`onnxlm embed`, runtime.Embedder, or /v1/embeddings of `onnxlm serve`")
            if task.kind == "embed"
            else ("scores", "`onnxlm rerank`, runtime.Reranker, or /rerank of `onnxlm serve`")
        )
        raise BundleError(f"{bundle.folder} gives {gives} and no text, so {what} is not possible with it. Use {use}.")


def require_task(bundle: "Bundle", kind: Kind) -> SequenceTask:
    """The task of a bundle of this kind.

    Raises:
        BundleError: it does something else.
    """
    task = bundle.manifest.task
    if task is not None and task.kind == kind:
        return task
    does = "generates text" if task is None else "gives embeddings" if task.kind == "embed" else "gives scores"
    noun = "an embedding model" if kind == "embed" else "a reranker or classifier"
    raise BundleError(
        f"{bundle.folder} {does}; it is not {noun}. Export the checkpoint of one with "
        f"`onnxlm export CHECKPOINT --task {kind} -o NEW`."
    )
