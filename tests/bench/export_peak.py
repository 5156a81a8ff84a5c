"""What an export says that it needs, beside what it takes: peaks of all its processes, for each kind of checkpoint.

python tests/bench/export_peak.py                       # every kind, with and without verification, float and int4
python tests/bench/export_peak.py --kind moe --verify none --quantize float

A peak is the most of memory that belongs to the processes: pages that are only copies of files are not counted, as the
system drops them when it wants to. The checkpoints are holes on disk, and take none of it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Shapes = dict[str, list[int]]
LAYERS, HIDDEN, INNER, VOCAB, EXPERTS = 4, 1024, 3072, 65536, 8
CONFIG = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0,
}  # fmt: skip


def attention(prefix: str) -> Shapes:
    """Embedding, head, norms and attention."""
    shapes = {f"{prefix}embed_tokens.weight": [VOCAB, HIDDEN], f"{prefix}norm.weight": [HIDDEN]}
    for i in range(LAYERS):
        layer = f"{prefix}layers.{i}."
        shapes |= {f"{layer}self_attn.{part}_proj.weight": [HIDDEN, HIDDEN] for part in "qkvo"}
        shapes |= {f"{layer}{part}_layernorm.weight": [HIDDEN] for part in ("input", "post_attention")}
    return shapes


def dense(prefix: str = "model.") -> Shapes:
    """With a gated MLP in each layer."""
    shapes = attention(prefix)
    for i in range(LAYERS):
        shapes |= {f"{prefix}layers.{i}.mlp.{part}_proj.weight": [INNER, HIDDEN] for part in ("gate", "up")}
        shapes |= {f"{prefix}layers.{i}.mlp.down_proj.weight": [HIDDEN, INNER]}
    return shapes


def write_folder(folder: Path, config: dict[str, object], shapes: Shapes, types: dict[str, str] | None = None) -> Path:
    """A bfloat16 checkpoint, but for `types`; the head is not zero, or it would be the embedding."""
    from tokenizers import Tokenizer, models

    header, position = {}, 0
    for name, shape in shapes.items():
        kind = (types or {}).get(name, "BF16")
        size = int(np.prod(shape)) * (1 if kind == "U8" else 2)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
        for name in ("lm_head.weight", "language_model.lm_head.weight"):
            if name in header:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])  # type: ignore[index]
                file.write(b"\x80\x3f" * 64)
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def tied(folder: Path) -> Path:
    """A dense model whose head is its embedding."""
    return write_folder(folder, CONFIG | {"model_type": "llama", "tie_word_embeddings": True}, dense())


def untied(folder: Path) -> Path:
    """A dense model with a head of its own."""
    return write_folder(folder, CONFIG | {"model_type": "llama"}, dense() | {"lm_head.weight": [VOCAB, HIDDEN]})


def moe(folder: Path) -> Path:
    """A Mixtral."""
    shapes = attention("model.") | {"lm_head.weight": [VOCAB, HIDDEN]}
    for i in range(LAYERS):
        block = f"model.layers.{i}.block_sparse_moe."
        shapes[f"{block}gate.weight"] = [EXPERTS, HIDDEN]
        for e in range(EXPERTS):
            shapes |= {
                f"{block}experts.{e}.w{n}.weight": [HIDDEN, INNER] if n == 2 else [INNER, HIDDEN] for n in (1, 2, 3)
            }
    counts = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    return write_folder(folder, CONFIG | counts | {"model_type": "mixtral"}, shapes)


def multimodal(folder: Path) -> Path:
    """A LLaVA-like folder: text model inside, and a vision tower that is not exported."""
    inner = CONFIG | {"model_type": "llama"}
    shapes = {f"language_model.{name}": shape for name, shape in dense("model.").items()}
    shapes |= {"language_model.lm_head.weight": [VOCAB, HIDDEN], "multi_modal_projector.linear_1.weight": [4096, 4096]}
    shapes |= {f"vision_tower.layers.{i}.weight": [4096, 4096] for i in range(4)}
    return write_folder(folder, {"model_type": "llava", "text_config": inner}, shapes)


def gguf_moe(folder: Path) -> Path:
    """A Mixtral in one file of Q8_0, experts stacked."""
    return _gguf(folder, "llama", "Q8_0")


def gguf_joined(folder: Path) -> Path:
    """A Granite MoE in one file of half-precision floats, whose gates and ups are one tensor in Hugging Face."""
    return _gguf(folder, "granitemoe", "F16")


def _stacks() -> Shapes:
    wide, narrow = [EXPERTS, INNER, HIDDEN], [EXPERTS, HIDDEN, INNER]
    shapes = {f"blk.{i}.ffn_{part}_exps.weight": wide for i in range(LAYERS) for part in ("gate", "up")}
    return shapes | {f"blk.{i}.ffn_down_exps.weight": narrow for i in range(LAYERS)}


def _gguf(folder: Path, architecture: str, kind: str) -> Path:
    import gguf

    folder.mkdir()
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {
        "block_count": LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": 8, "attention.head_count_kv": 8, "expert_count": EXPERTS, "expert_used_count": 2,
    }.items():  # fmt: skip
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    shapes = {"token_embd.weight": [VOCAB, HIDDEN], "output.weight": [VOCAB, HIDDEN], **_stacks()}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_{part}.weight": [HIDDEN, HIDDEN] for part in ("q", "k", "v", "output")}
    floats: Shapes = {"output_norm.weight": [HIDDEN]}
    for i in range(LAYERS):
        floats |= {f"blk.{i}.ffn_gate_inp.weight": [EXPERTS, HIDDEN]}
        floats |= {f"blk.{i}.{part}_norm.weight": [HIDDEN] for part in ("attn", "ffn")}
    end = 0
    for names, form in ((shapes, kind), (floats, "F32")):
        stored = gguf.GGMLQuantizationType[form]
        block, size = gguf.GGML_QUANT_SIZES[stored]
        for name, shape in names.items():
            count = int(np.prod(shape)) // block * size
            writer.add_tensor_info(
                name, shape, np.dtype(np.float32), count, raw_dtype=stored if form != "F32" else None
            )
            end += count + -count % 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        start = path.stat().st_size
        file.truncate(start + -start % 32 + end)
    return path


def mxfp4(folder: Path) -> Path:
    """A gpt-oss: experts in 4-bit floats, some layers with a window."""
    shapes = attention("model.") | {"lm_head.weight": [VOCAB, HIDDEN]}
    types: dict[str, str] = {}
    for i in range(LAYERS):
        layer, sizes = f"model.layers.{i}.", {"q": HIDDEN, "k": HIDDEN, "v": HIDDEN, "o": HIDDEN}
        shapes |= {f"{layer}self_attn.{part}_proj.bias": [size] for part, size in sizes.items()}
        shapes |= {f"{layer}self_attn.sinks": [8], f"{layer}mlp.router.weight": [EXPERTS, HIDDEN]}
        shapes[f"{layer}mlp.router.bias"] = [EXPERTS]
        for part, outputs, inputs in (("gate_up", 2 * INNER, HIDDEN), ("down", HIDDEN, INNER)):
            stem = f"{layer}mlp.experts.{part}_proj"
            shapes |= {f"{stem}_bias": [EXPERTS, outputs], f"{stem}_blocks": [EXPERTS, outputs, inputs // 32, 16]}
            shapes[f"{stem}_scales"] = [EXPERTS, outputs, inputs // 32]
            types |= {f"{stem}_{kind}": "U8" for kind in ("blocks", "scales")}
    settings = {
        "model_type": "gpt_oss", "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2), "attention_bias": True,
        "quantization_config": {"quant_method": "mxfp4"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    plain = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    return write_folder(folder, plain | settings, shapes, types)


KINDS: dict[str, Callable[[Path], Path]] = {
    "tied": tied, "untied": untied, "moe": moe, "multimodal": multimodal, "gguf-moe": gguf_moe,
    "gguf-joined": gguf_joined, "mxfp4": mxfp4,
}  # fmt: skip


def own_memory(root: int) -> int:
    """Bytes that belong to a process and its children, copies of files left out."""
    total = 0
    for process in [root, *_children(root)]:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        total += sum(1024 * int(fields.get(key, "0 kB").split()[0]) for key in ("RssAnon", "RssShmem"))
    return total


def _children(root: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            found += [int(number) for number in task.read_text().split()]
        except OSError:
            continue
    return found + [grandchild for child in found for grandchild in _children(child)]


def measure(source: Path, output: Path, *options: str) -> dict[str, float]:
    """The estimate and the peak of one export, both in bytes, and the one over the other."""
    command = [sys.executable, "-m", "runtime", "export", str(source), "-o", str(output), "--json", *options]
    peak = 0
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=told, stderr=errors)
        while child.poll() is None:
            peak = max(peak, own_memory(child.pid))
            time.sleep(0.005)
        told.seek(0)
        errors.seek(0)
        if child.returncode:
            raise SystemExit(errors.read())
        report = json.loads(told.read())
    estimated = report["estimate"]["memory_bytes"]
    return {
        "estimated": estimated, "peak": peak, "ratio": round(estimated / peak, 3),
        "method": report["verification"]["method"],
        "disk": round(report["estimate"]["disk_bytes"] / sum(report["files"].values()), 3),
    }  # fmt: skip


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=[*KINDS], action="append")
    parser.add_argument("--verify", choices=["none", "auto"], action="append")
    parser.add_argument("--quantize", choices=["float", "int4"], action="append")
    chosen = parser.parse_args()
    for kind in chosen.kind or KINDS:
        for verify in chosen.verify or ("none", "auto"):
            for width in chosen.quantize or ("float", "int4"):
                with tempfile.TemporaryDirectory(prefix="onnxlm-bench-") as scratch:
                    source = KINDS[kind](Path(scratch) / "source")
                    options = [
                        "--verify",
                        verify,
                        *(["--quantize", width, "--method", "rtn"] if width != "float" else []),
                    ]
                    found = measure(source, Path(scratch) / "bundle", *options)
                print(json.dumps({"kind": kind, "verify": verify, "quantize": width} | found), flush=True)


if __name__ == "__main__":
    main()
