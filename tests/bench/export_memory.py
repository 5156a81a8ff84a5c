"""Peak memory and seconds of `export` on a checkpoint of billions of parameters that takes no disk.

python tests/bench/export_memory.py                                       # 1.5 billion parameters to int4
python tests/bench/export_memory.py --layers 28 --hidden 3072 --method rtn    # 3.6 billion, by plain rounding
python tests/bench/export_memory.py --layers 32 --hidden 4096 --inner 14336 --method rtn         # 8.6 billion
python tests/bench/export_memory.py --quantize float --layers 2           # in floating point
python tests/bench/export_memory.py --source ./a-model --output ./bundle
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models

from exporter import ExportOptions, export
from runtime.host.memory import peak_memory


def sparse_checkpoint(folder: Path, layers: int, hidden: int, inner: int, vocab: int) -> Path:
    """A bfloat16 Llama whose weights file is one hole: all zeros, and no bytes on disk."""
    heads = hidden // 64
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}self_attn.{part}_proj.weight": [hidden, hidden] for part in "qkvo"}
        shapes |= {f"{layer}mlp.{part}_proj.weight": [inner, hidden] for part in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj.weight": [hidden, inner]}
        shapes |= {f"{layer}{part}_layernorm.weight": [hidden] for part in ("input", "post_attention")}
    header, position = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocab, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def measure(source: Path, output: Path, options: ExportOptions) -> dict[str, float]:
    """Seconds, peak memory, what it was before, bytes read of files, and the size of the result."""
    before, started, read = peak_memory(), time.monotonic(), bytes_read()
    report = export(source, output, options)
    return {
        "parameters": report.manifest.architecture.parameters,
        "seconds": round(time.monotonic() - started, 1),
        "rss_before_bytes": before,
        "peak_rss_bytes": peak_memory(),
        "estimated_bytes": report.estimate.memory,
        "checkpoint_bytes": sum(file.stat().st_size for file in source.glob("*.safetensors")),
        "read_bytes": bytes_read() - read,
        "cores": round(time.process_time() / (time.monotonic() - started), 2),
        "weights_bytes": report.manifest.files["weights.bin"].size,
    }


def bytes_read() -> int:
    """By this process, from files and the system's cache of them."""
    return int(Path("/proc/self/io").read_text().split()[1])


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 16, "hidden": 2048, "inner": 8192, "vocab": 128256}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--quantize", choices=["int4", "int8", "float"], default="int4")
    parser.add_argument("--method", choices=["search", "rtn"], default="search")
    chosen = parser.parse_args()
    width = None if chosen.quantize == "float" else chosen.quantize
    options = ExportOptions(quantize=width, method=chosen.method, verify="none")
    scratch = Path(tempfile.mkdtemp(prefix="onnxlm-bench-"))
    try:
        source = chosen.source or sparse_checkpoint(
            scratch / "checkpoint", **{name: getattr(chosen, name) for name in sizes}
        )
        print(json.dumps(measure(source, chosen.output or scratch / "bundle", options)))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
