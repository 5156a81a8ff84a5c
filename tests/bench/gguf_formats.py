"""A GGUF model stored in other block formats: perplexity of our bundle against transformers over the same file.

python tests/bench/gguf_formats.py SmolLM2-135M-Instruct.Q4_1.gguf                  # all formats, a table
python tests/bench/gguf_formats.py model.gguf --exact                               # what the weights alone do
python tests/bench/gguf_formats.py model.gguf --kinds Q8_0 Q4_0 --text book.txt --tokens 2048

The weights are dequantized and quantized again by the gguf package, whose dequantization the reference runs on. Formats
that it cannot write (the K ones) are compared block by block in tests/test_exporter/test_gguf_blocks.py. Exit 1 if any
perplexity is more than 1 % off.
"""

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from exporter import ExportOptions, export
from exporter.checkpoint import open_checkpoint
from exporter.verify.reference import reference_model
from quantizer.evaluation.kl import Model
from runtime.bundle.bundle import Bundle, open_bundle

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
KINDS = ("F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4")
TEXT = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROWS = 128


def requantize(source: Path, target: Path, kind: str) -> Path:
    """The same model with its matrices in another format; vectors stay as they are."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = entry.types[1] if entry.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), entry.types[0], inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        wanted = GGMLQuantizationType[kind] if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def our_perplexity(bundle: Bundle, ids: np.ndarray) -> float:
    """Of the ids behind the first, in one pass."""
    model = Model(bundle)
    hidden = model.hidden(ids[None])[0]
    parts = [model.log_probabilities(hidden[start : start + ROWS]) for start in range(0, len(ids), ROWS)]
    return perplexity(np.concatenate(parts), ids)


def their_perplexity(path: Path, ids: np.ndarray) -> float:
    """By transformers in float32, with the weights as the gguf package dequantizes them."""
    import torch

    checkpoint = open_checkpoint(path)
    tensors = {name: Dequantized(values) for name, values in hugging_face_tensors(path, checkpoint.config).items()}
    model = reference_model(replace(checkpoint, tensors=tensors))
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids[None]), use_cache=False).logits[0]
    return perplexity(torch.log_softmax(logits.float(), -1).numpy(), ids)


@dataclass(frozen=True)
class Dequantized:
    """A tensor as the gguf package reads it."""

    values: np.ndarray

    def read(self) -> np.ndarray:
        """As it is."""
        return self.values


def hugging_face_tensors(path: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a Llama under their names, q and k with the halves of each head behind each other again."""
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        stem, ending = tensor.name.rsplit(".", 1)
        layer, inner = re.fullmatch(r"(blk\.\d+\.)?(.+)", stem).groups()
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1]).astype(np.float32)
        if inner in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if inner == "attn_q" else "num_key_value_heads"]
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        prefix = f"model.layers.{layer.split('.')[1]}." if layer else ""
        tensors[f"{prefix}{NAMES[inner]}.{ending}"] = np.ascontiguousarray(values)
    return tensors


def perplexity(log_probabilities: np.ndarray, ids: np.ndarray) -> float:
    """exp of the mean surprise, `[tokens, V]` and `[tokens]`."""
    return float(np.exp(-log_probabilities[np.arange(len(ids) - 1), ids[1:]].astype(np.float64).mean()))


def measure(source: Path, kind: str, text: str, tokens: int, scratch: Path, exact: bool = False) -> dict[str, Any]:
    """One line of the table; `exact`: codes become floats, whose products do not round activations to 8 bits."""
    from tokenizers import Tokenizer

    path = requantize(source, scratch / f"{kind}.gguf", kind)
    report = export(path, scratch / kind, ExportOptions(verify="none", requantize=exact))
    bundle = open_bundle(scratch / kind)
    ids = np.array(Tokenizer.from_file(str(bundle.path("tokenizer.json"))).encode(text).ids[:tokens], np.int64)
    ours, theirs = our_perplexity(bundle, ids), their_perplexity(path, ids)
    return {
        "kind": kind,
        "weights_bytes": bundle.manifest.files["weights.bin"].size,
        "matrices": dict(Counter(outcome.how for outcome in report.outcomes)) or {"float": "all"},
        "perplexity": round(ours, 4),
        "reference": round(theirs, 4),
        "difference_percent": round(100 * (ours / theirs - 1), 4),
        "tokens": len(ids),
    }


def main() -> None:
    """Print one JSON line a format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--exact", action="store_true", help="weights alone: activations are not rounded to 8 bits")
    chosen = parser.parse_args()
    worst = 0.0
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory(prefix="onnxlm-bench-") as scratch:
            line = measure(chosen.source, kind, chosen.text.read_text(), chosen.tokens, Path(scratch), chosen.exact)
        print(json.dumps(line), flush=True)
        worst = max(worst, abs(line["difference_percent"]))
    sys.exit(worst > 1)


if __name__ == "__main__":
    main()
