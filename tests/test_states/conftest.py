"""Tiny random models of every family whose layers keep states, with transformers beside them to say what is right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BASE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
}  # fmt: skip
DELTA = {"num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16},
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                           "shared_expert_intermediate_size": 32},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 8, "mamba_d_state": 16,
                         "mamba_n_groups": 2, "mamba_chunk_size": 8, "num_local_experts": 0,
                         "shared_intermediate_size": 48, "embedding_multiplier": 4.0},
}  # fmt: skip
EXACT = ("lfm2", "qwen3_5_text", "granitemoehybrid")  # bit for bit alone and in company; experts are not


@dataclass(frozen=True)
class Hybrid:
    """A bundle, and its model in transformers."""

    bundle: Path
    model: Any

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        """Of each token of the answer, computed in one pass, without a cache."""
        import torch

        tokens = torch.tensor([[*prompt, *answer]])
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, use_cache=False).logits[0].double().log_softmax(-1)
        places = torch.arange(len(prompt) - 1, tokens.shape[1] - 1)
        picked: np.ndarray = logits[places, tokens[0, len(prompt) :]].numpy()
        return picked

    def check(self, prompt: Sequence[int], completion: Any) -> None:
        """Every token of a completion was drawn from what transformers computes."""
        assert completion.logprobs is not None
        ours = [entry.logprob for entry in completion.logprobs]
        assert len(ours) == len(completion.token_ids)
        np.testing.assert_allclose(ours, self.logprobs(prompt, completion.token_ids), atol=2e-3)


@pytest.fixture(scope="session")
def make_hybrid(tmp_path_factory: pytest.TempPathFactory, make_bundle: Callable[..., Path]) -> Callable[[str], Hybrid]:
    """The tiny model of a family, made once."""
    made: dict[str, Hybrid] = {}

    def make(family: str) -> Hybrid:
        if family not in made:
            checkpoint = tmp_path_factory.mktemp(family)
            model = _save_random(family, checkpoint)
            made[family] = Hybrid(make_bundle(checkpoint), model)
        return made[family]

    return make


@pytest.fixture(params=FAMILIES)
def hybrid(request: pytest.FixtureRequest, make_hybrid: Callable[[str], Hybrid]) -> Hybrid:
    """Each family in turn."""
    return make_hybrid(request.param)


@pytest.fixture(params=EXACT)
def exact_hybrid(request: pytest.FixtureRequest, make_hybrid: Callable[[str], Hybrid]) -> Hybrid:
    """Each family whose rows are, bit for bit, the same in any company."""
    return make_hybrid(request.param)


def _save_random(family: str, folder: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **(BASE | FAMILIES[family]))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        parameter.data.add_(noise * (0.1 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(_tokenizer())
    return model.eval()


def _tokenizer() -> str:
    from tokenizers import Tokenizer, models

    return str(Tokenizer(models.WordLevel({f"t{i}": i for i in range(320)}, unk_token="t0")).to_str())
