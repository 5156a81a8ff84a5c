"""Check exported graphs against an independent reference, in logits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.bundle.manifest import Manifest, Verification
from runtime.errors import VerificationError

from .numpy_graphs import Ids, NumpyRunner
from .references import Answer, Reference
from .tokens import require_same_tokens

Logits = npt.NDArray[np.float32]

PREFILL_TOKENS, DECODE_TOKENS = 24, 8
# Largest accepted difference, relative to the largest reference logit: what the number format can promise.
TOLERANCE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}


def verify_graphs(
    folder: Path,
    manifest: Manifest,
    reference: Reference | None,
    progress: Callable[[str, int, int], None],
    *,
    own_tokenizer: bool = False,
) -> tuple[Verification, list[str]]:
    """Run the graphs on fixed pseudo-random ids and compare.

    Args:
        folder, manifest: of the bundle.
        reference: whose logits and token ids are right; None compares decode steps with a prefill of the same tokens,
            which cannot see a wrongly read weight.
        progress: is told how far it is.
        own_tokenizer: tokenizer.json is the checkpoint's own file.

    Returns:
        what was found, and what a user should know.

    Raises:
        VerificationError: the logits differ by more than the number format explains, or are not finite; or token ids
            differ.
    """
    progress("verifying", 0, 2)
    ids = np.random.default_rng(0).integers(0, manifest.architecture.vocab_size, PREFILL_TOKENS + DECODE_TOKENS)
    ids = ids[: manifest.architecture.context_length]
    ours = _our_logits(NumpyRunner(folder, manifest, len(ids)), ids)
    progress("verifying", 1, 2)
    answer = reference.answer(ids) if reference else Answer(_prefill_logits(folder, manifest, ids))
    name = reference.method if reference else "self-consistency"
    difference = require_close(ours, answer.logits[-len(ours) :], manifest.target.dtype, name)
    warnings = require_same_tokens(folder, answer.samples, own_tokenizer) if answer.samples else []
    progress("verifying", 2, 2)
    return Verification(name, difference), warnings


def _our_logits(runner: NumpyRunner, ids: Ids) -> Logits:
    """Logits `[steps, V]` of a two-chunk prefill and of the decode steps behind it."""
    split = max(len(ids) - DECODE_TOKENS, 1)
    runner.prefill(ids[: split // 2 or 1])
    first = [runner.prefill(ids[split // 2 : split])] if split > 1 else [runner.decode(int(ids[0]))]
    return np.stack(first + [runner.decode(int(token)) for token in ids[split:]])


def _prefill_logits(folder: Path, manifest: Manifest, ids: Ids) -> Logits:
    runner, rows = NumpyRunner(folder, manifest, len(ids)), []
    for end in range(max(len(ids) - DECODE_TOKENS, 1), len(ids) + 1):
        runner.reset()
        rows.append(runner.prefill(ids[:end]))
    return np.stack(rows)


def require_close(ours: Logits, expected: Logits, dtype: str, method: str) -> float:
    """The largest absolute difference.

    Raises:
        VerificationError: it is larger than rounding in `dtype` explains, or something is not finite.
    """
    if not np.isfinite(ours).all():
        raise VerificationError("the exported graphs compute NaN or infinity; the checkpoint may be damaged.")
    difference = float(np.abs(ours - expected).max())
    allowed = TOLERANCE[dtype] * max(1.0, float(np.abs(expected).max()))
    if not difference <= allowed:
        raise VerificationError(
            f"the exported graphs differ from {method} by {difference:.2g} in logits, where {dtype} explains "
            f"{allowed:.2g}. Nothing was written. Please report this with the model's config.json."
        )
    return difference
