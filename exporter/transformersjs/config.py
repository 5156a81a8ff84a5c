"""config.json and generation_config.json as transformers.js reads them."""

from typing import Any, Literal

from runtime.bundle.manifest import Manifest

from ..genai.config import require_plain_cache

Precision = Literal["fp32", "fp16", "q4", "q8"]
_SUFFIX: dict[Precision, str] = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "q8": "_quantized"}
_BITS_OF_Q4 = 6.5  # a bundle of fewer bits per weight is called q4, whatever each of its matrices has


def precision_of(manifest: Manifest) -> Precision:
    """transformers.js's word for how weights are stored: the user names it as `dtype`, and the file carries it."""
    if manifest.quantization is None:
        return "fp16" if manifest.target.dtype == "float16" else "fp32"
    tensors = manifest.quantization.tensors
    mean = sum(tensor.bits for tensor in tensors) / max(1, len(tensors))
    return "q4" if mean <= _BITS_OF_Q4 else "q8"


def graph_name(manifest: Manifest) -> str:
    """The graph's file name in the folder `onnx`."""
    return f"model{_SUFFIX[precision_of(manifest)]}.onnx"


def model_config(manifest: Manifest, data_files: int) -> dict[str, Any]:
    """config.json: the shapes of the cache, under the names of a Llama, whatever family is inside the graph.

    Args:
        manifest: of the bundle.
        data_files: how many files of weights lie beside the graph.

    Raises:
        UnsupportedError: the cache has no such shape.
    """
    require_plain_cache(manifest, "transformers.js")
    architecture, tokens = manifest.architecture, manifest.tokens
    layer, precision = architecture.layers[0], precision_of(manifest)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "onnxlm_model_type": architecture.model_type,
        "hidden_size": architecture.hidden_size,
        "head_dim": layer.head_dim,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.kv_heads,
        "num_hidden_layers": len(architecture.layers),
        "max_position_embeddings": architecture.context_length,
        "vocab_size": architecture.vocab_size,
        "bos_token_id": tokens.bos,
        "eos_token_id": list(tokens.eos) or None,
        "pad_token_id": tokens.pad,
        "transformers.js_config": {
            "dtype": precision,
            "kv_cache_dtype": {precision: manifest.kv_cache.dtype},
            "use_external_data_format": {graph_name(manifest): data_files},
        },
    }


def generation_config(manifest: Manifest, own: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json: the bundle's own, with the ids that end an answer."""
    tokens = manifest.tokens
    ids = {"bos_token_id": tokens.bos, "eos_token_id": list(tokens.eos) or None, "pad_token_id": tokens.pad}
    return own | {name: value for name, value in ids.items() if value is not None}
