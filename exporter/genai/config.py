"""genai_config.json: what onnxruntime-genai has to know about a model."""

from typing import Any

from runtime.bundle.manifest import Manifest
from runtime.errors import UnsupportedError

GRAPH_FILE = "model.onnx"
CONFIG_FILE = "genai_config.json"


def genai_config(manifest: Manifest) -> dict[str, Any]:
    """The file's content.

    Raises:
        UnsupportedError: it has no words for this model's cache.
    """
    require_plain_cache(manifest, "genai_config.json")
    architecture, tokens = manifest.architecture, manifest.tokens
    eos = list(tokens.eos) or [0]
    model = {
        "type": "decoder",  # any family: what is particular to one is inside the graph
        "vocab_size": architecture.vocab_size,
        "context_length": architecture.context_length,
        "eos_token_id": eos,
        "pad_token_id": eos[0] if tokens.pad is None else tokens.pad,
        "decoder": _decoder(manifest),
    }
    if tokens.bos is not None:
        model["bos_token_id"] = tokens.bos
    return {"model": model, "search": _search(architecture.context_length)}


def _decoder(manifest: Manifest) -> dict[str, Any]:
    layers = manifest.architecture.layers
    providers: list[dict[str, Any]] = [{"cuda": {}}] if manifest.target.provider == "cuda" else []
    return {
        "filename": GRAPH_FILE,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": providers},
        "hidden_size": manifest.architecture.hidden_size,
        "head_size": layers[0].head_dim,
        "num_attention_heads": layers[0].num_heads,
        "num_key_value_heads": layers[0].kv_heads,
        "num_hidden_layers": len(layers),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def _search(context_length: int) -> dict[str, Any]:
    """Greedy unless the program wants something else; keys and values are written in place."""
    return {
        "do_sample": False,
        "max_length": context_length,
        "min_length": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }


def require_plain_cache(manifest: Manifest, program: str) -> None:
    """Keys and values in floating point, of one size in all layers, numbered without gaps.

    Raises:
        UnsupportedError: they are not; `program` has no words for them.
    """
    inputs = manifest.graphs.prefill.inputs
    keys = [port.name for port in inputs if port.role == "past_key"]
    if any(port.role == "past_state" for port in inputs):
        reason = "layers that keep a state beside keys and values"
    elif manifest.kv_cache.dtype not in ("float32", "float16", "bfloat16"):
        reason = f"keys and values of {manifest.kv_cache.stored_bits} bits"
    elif len(set(manifest.architecture.cache_rows)) > 1:
        reason = "key and value heads of several sizes"
    elif keys != [f"past_key_values.{i}.key" for i in range(len(keys))]:
        reason = "layers without a cache between others"
    else:
        return
    raise UnsupportedError(
        f"{manifest.architecture.model_type} has {reason}, which {program} has no words for here. "
        f"Run the bundle with onnxlm instead."
    )
