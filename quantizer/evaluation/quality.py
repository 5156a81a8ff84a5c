"""The figures that a bundle carries: measured on text that calibration has not seen."""

from runtime.bundle.bundle import Bundle
from runtime.bundle.manifest import Quality
from runtime.errors import QuantizationError
from runtime.ort.session import onnxruntime
from runtime.text.vocabulary import same_vocabulary

from ..calibration.data import Text
from ..graph.graphs import prefill_graph
from ..progress import Progress
from .kl import Model, Scores, evaluate, rounding_nodes

_ROUNDING_CHUNKS = 4


def measure_quality(bundle: Bundle, reference: Bundle, text: Text, progress: Progress) -> Quality:
    """Compare `bundle` with the unquantized `reference` on the held-out part of `text`."""
    return as_quality(measure_scores(bundle, reference, text, progress), text)


def measure_scores(bundle: Bundle, reference: Bundle, text: Text, progress: Progress) -> Scores:
    """The same, with everything that was measured."""
    done = 0

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress("evaluating", done, text.held_out.size)

    progress("evaluating", 0, text.held_out.size)
    return evaluate(Model(bundle), Model(reference), text.held_out, count)


def activation_rounding(bundle: Bundle, text: Text) -> Scores | None:
    """What it costs that products round their activations to 8 bits, on a part of `text`; None if none does.

    Where this is a large part of the whole loss, a model has massive activations, and `--group-size 16`, a stronger
    smoothing (8 bits) or `--exclude` for what reads them helps more than further bits.
    """
    if not rounding_nodes(prefill_graph(bundle)):
        return None
    return evaluate(Model(bundle), Model(bundle, float_activations=True), text.held_out[:_ROUNDING_CHUNKS])


def require_same_model(bundle: Bundle, reference: Bundle) -> None:
    """Two bundles whose next-token distributions can be compared.

    Raises:
        QuantizationError: their vocabularies differ.
    """
    sizes = {it.manifest.architecture.vocab_size for it in (bundle, reference)}
    if len(sizes) > 1 or not same_vocabulary(bundle, reference):
        raise QuantizationError(
            f"{bundle.folder} and {reference.folder} have different vocabularies: they are not the same model."
        )


def as_quality(scores: Scores, text: Text) -> Quality:
    """What the manifest keeps of the scores."""
    return Quality(
        kl=scores.kl,
        kl_p99=scores.kl_p99,
        top1=scores.top1,
        perplexity=scores.perplexity,
        reference_perplexity=scores.reference_perplexity,
        text=text.measured_on,
        tokens=scores.tokens,
        onnxruntime=str(onnxruntime().__version__),
    )
