"""Random weights in the shapes of larger models, as one GGUF file that our export and llama.cpp both read.

    python tests/bench/scale_shapes.py demo/SmolLM2-135M-Instruct.Q4_1.gguf 1.2b.gguf --shape 1.2b
    onnxlm export 1.2b.gguf -o 1.2b --quantize fast
    llama-quantize 1.2b.gguf 1.2b-q4_0.gguf Q4_0

Speed does not depend on what weights say, so that random ones measure it; quality does, so that they say nothing of it.
The tokenizer is that of the given file, padded to the shape's vocabulary. The same shape is the same file, bit for bit.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

_POOL = 1 << 22  # random values that every tensor is cut from, each at an offset of its own
_STEP = 1_000_003


@dataclass(frozen=True)
class Shape:
    """A Llama with tied embeddings."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    rope_base: float = 500_000.0
    context: int = 32_768


SHAPES = {
    "135m": Shape(30, 576, 1536, 9, 3, 49_152),
    "1.2b": Shape(16, 2048, 8192, 32, 8, 128_256),
    "3b": Shape(28, 3072, 8192, 24, 8, 128_256),
    "8b": Shape(32, 4096, 14_336, 32, 8, 128_256),
}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the file format, and sizes as numpy has them, of all weights."""
    kv = shape.hidden // shape.heads * shape.kv_heads
    yield "token_embd.weight", (shape.vocab, shape.hidden)
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", (shape.hidden,)
        yield f"blk.{i}.attn_q.weight", (shape.hidden, shape.hidden)
        yield f"blk.{i}.attn_k.weight", (kv, shape.hidden)
        yield f"blk.{i}.attn_v.weight", (kv, shape.hidden)
        yield f"blk.{i}.attn_output.weight", (shape.hidden, shape.hidden)
        yield f"blk.{i}.ffn_norm.weight", (shape.hidden,)
        yield f"blk.{i}.ffn_gate.weight", (shape.intermediate, shape.hidden)
        yield f"blk.{i}.ffn_up.weight", (shape.intermediate, shape.hidden)
        yield f"blk.{i}.ffn_down.weight", (shape.hidden, shape.intermediate)
    yield "output_norm.weight", (shape.hidden,)


def write(source: Path, target: Path, shape: Shape) -> None:
    """Write the checkpoint: norms are ones in float32, matrices normal with a deviation of 0.02 in float16."""
    writer = gguf.GGUFWriter(target, "llama")
    add_config(writer, shape)
    add_tokenizer(writer, gguf.GGUFReader(source), shape.vocab)
    for name, size in tensors(shape):
        dtype = np.dtype(np.float32 if len(size) == 1 else np.float16)
        writer.add_tensor_info(name, size, dtype, int(np.prod(size)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pool = (np.random.default_rng(0).standard_normal(_POOL, np.float32) * 0.02).astype(np.float16)
    for number, (_, size) in enumerate(tensors(shape)):
        count = int(np.prod(size))
        values = np.ones(count, np.float32) if len(size) == 1 else np.resize(np.roll(pool, number * _STEP), count)
        writer.write_tensor_data(values.reshape(size))
    writer.close()


def add_config(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The sizes, under the names that the file format has for them."""
    writer.add_name("random")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader, vocab: int) -> None:
    """The tokenizer of another file, with as many unused tokens behind its own as the vocabulary has room for."""
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value, kinds = field.contents(), field.types
        missing = range(len(value), vocab) if name.endswith((".tokens", ".token_type")) else ()
        if missing:
            names = name.endswith(".tokens")
            value = [*value, *(f"<unused_{i}>" if names else int(gguf.TokenType.UNUSED) for i in missing)]
        writer.add_key_value(name, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)


def main() -> None:
    """Parse the command line, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file with a tokenizer")
    parser.add_argument("target", type=Path, help="the GGUF file to write")
    parser.add_argument("--shape", choices=SHAPES, default="1.2b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    write(options.source, options.target, replace(shape, layers=options.layers or shape.layers))


if __name__ == "__main__":
    main()
