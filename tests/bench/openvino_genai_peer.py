"""OpenVINO GenAI as a peer, on the GGUF files that it reads (Q4_0 and Q8_0 among them)."""

from pathlib import Path

import numpy as np


class OpenVino:
    """Its pipeline on the CPU, one sequence at a time; seconds are those of its own metrics."""

    phases = ("prefill", "decode")
    batches = (1,)

    def __init__(self, model: Path, tokens: int) -> None:
        import openvino_genai

        self._genai, self._tokens = openvino_genai, tokens
        self._pipeline = openvino_genai.LLMPipeline(str(model), "CPU")

    def prefill(self, ids: np.ndarray) -> float:
        """Seconds until the first token."""
        return self._run(ids, 1).get_ttft().mean / 1e3

    def decode(self, ids: np.ndarray) -> float:
        """Seconds for the further tokens."""
        return self._run(ids, self._tokens + 1).get_tpot().mean / 1e3 * self._tokens

    def _run(self, ids: np.ndarray, tokens: int):  # a class of the library
        import openvino

        inputs = self._genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = self._genai.GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return self._pipeline.generate(inputs, config).perf_metrics
