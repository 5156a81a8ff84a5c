"""Compare a conventional graph with the bundle that it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle.bundle import Bundle

from ..verify.numpy_graphs import NumpyRunner, open_session
from ..verify.verify import require_close

_PROMPT, _STEPS = 20, 4
Logits = npt.NDArray[np.float32]


def check_genai_graph(bundle: Bundle, graph: Path) -> float | None:
    """The largest difference of logits over a prompt and the steps after it; None for graphs that are not for a CPU.

    Raises:
        VerificationError: it is larger than rounding explains.
    """
    manifest = bundle.manifest
    if manifest.target.provider != "cpu":
        return None
    ids = np.random.default_rng(0).integers(0, manifest.architecture.vocab_size, _PROMPT + _STEPS)
    ids = ids[: manifest.architecture.context_length]
    prompt = max(len(ids) - _STEPS, 1)
    runner = NumpyRunner(bundle.folder, manifest, len(ids))
    parts = [ids[:prompt], *(ids[i : i + 1] for i in range(prompt, len(ids)))]
    expected = np.stack([runner.prefill(part) for part in parts])
    return require_close(_conventional_logits(graph, parts), expected, manifest.target.dtype, "the bundle")


def _conventional_logits(graph: Path, parts: list[npt.NDArray[np.int64]]) -> Logits:
    """Logits `[len(parts), V]` of the last id of each part; past and present are two buffers."""
    session = open_session(graph)
    past, rows, length = _empty_past(session), [], 0
    for part in parts:
        length += len(part)
        mask = np.ones((1, length), np.int64)
        logits, *presents = session.run(None, {"input_ids": part[None], "attention_mask": mask, **past})
        past = dict(zip(past, presents, strict=True))
        rows.append(logits[0, -1])
    return np.stack(rows)


def _empty_past(session: Any) -> dict[str, npt.NDArray[Any]]:
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    ports = [port for port in session.get_inputs() if port.name.startswith("past_key_values.")]
    return {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), kinds[port.type]) for port in ports}
