"""A GGUF file is the Hugging Face folder that it was converted from."""

import json
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from exporter.checkpoint import open_checkpoint
from runtime.errors import CheckpointError, UnsupportedError


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_tensors_are_those_of_the_folder(make_gguf, kind):
    folder, path = make_gguf(kind, attention_bias=True, tie_word_embeddings=False, vocab_size=300)
    ours, theirs = open_checkpoint(path).tensors, open_checkpoint(folder).tensors
    assert ours.keys() == theirs.keys()
    for name, source in theirs.items():
        stored = gguf.GGMLQuantizationType[kind if len(source.shape) == 2 else "F32"]
        expected = gguf.dequantize(gguf.quantize(source.read(), stored), stored)  # rows may move, blocks may not
        np.testing.assert_array_equal(ours[name].read(), expected.reshape(source.shape), err_msg=name)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0"])
def test_codes_are_the_same_matrix(make_gguf, kind):
    tensors = open_checkpoint(make_gguf(kind)[1]).tensors
    packed = {name: source.packed() for name, source in tensors.items()}
    assert [name for name in tensors if packed[name] is None] == [name for name in tensors if "norm" in name]
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"):
        assert packed[name].dequantize().tobytes() == tensors[name].read().tobytes()


def test_reading_takes_little_more_memory_than_the_tensor(make_gguf):
    source = open_checkpoint(make_gguf("Q8_0", vocab_size=40_000)[1]).tensors["model.embed_tokens.weight"]
    tracemalloc.start()
    values = source.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * values.nbytes
    assert values.shape == (40_000, 64)


def test_config_is_the_folder_s(make_gguf):
    folder, path = make_gguf()
    config = open_checkpoint(path).config
    stated = json.loads((folder / "config.json").read_text())
    same = set(stated) - {"architectures", "rope_theta", "eos_token_id"}
    assert {key: config[key] for key in same} == {key: stated[key] for key in same}
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_head_size_bias_and_head_come_from_the_file(make_gguf):
    changes = {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    _, path = make_gguf(metadata={"llama.attention.key_length": 32}, **changes)
    config = open_checkpoint(path).config
    assert {key: config[key] for key in changes} == changes


def test_ends_are_collected(make_gguf):
    """<|im_end|> (2) is the stated end; <|endoftext|> (0) is a control token that ends answers too."""
    checkpoint = open_checkpoint(make_gguf()[1])
    assert checkpoint.config["eos_token_id"] == [2, 0]
    assert (checkpoint.config["bos_token_id"], checkpoint.name, checkpoint.licence) == (1, "Tiny", "mit")


def test_llama3_scaling_is_a_list_of_factors(make_gguf):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    checkpoint = open_checkpoint(make_gguf(extra={"rope_freqs.weight": factors})[1])
    rope = checkpoint.config["rope_parameters"]
    assert (rope["rope_type"], rope["factors"]) == ("factors", factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"type": "none"}, {"rope_type": "default"}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 2.0, "original_context_length": 128},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
        ),
    ],
)
def test_rope_scaling(make_gguf, stated, expected):
    _, path = make_gguf(metadata={f"llama.rope.scaling.{key}": value for key, value in stated.items()})
    assert open_checkpoint(path).config["rope_parameters"] == {"rope_theta": 10000.0, **expected}


def test_partial_rotation(make_gguf):
    _, path = make_gguf(metadata={"llama.rope.dimension_count": 8})
    assert open_checkpoint(path).config["rope_parameters"]["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "rwkv6"}, "architecture 'rwkv6'; supported are"),
        ({"llama.rope.scaling.type": "spiral"}, "'spiral'; supported are none"),
        ({"tokenizer.ggml.pre": "spiral"}, "tokenizer.ggml.pre is 'spiral'"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'"),
    ],
)
def test_unsupported_is_refused_by_name(make_gguf, metadata, message):
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(make_gguf(metadata=metadata)[1])


def test_unknown_tensor_is_refused(make_gguf):
    _, path = make_gguf(extra={"blk.0.attn_spiral.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(UnsupportedError, match=r"tensor 'blk.0.attn_spiral.weight' is not known for llama"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": 0}, "llama.block_count is 0; expected a positive integer"),
        ({"llama.block_count": 10**6}, r"tensors cannot be those of 1000000 layers"),
        (
            {"llama.attention.head_count": 5},
            r"the metadata, as a config.json, describes no model: .* 5 query heads, not a multiple of its 2 key",
        ),
        ({"llama.attention.key_length": 48}, "which do not fit the metadata: 4 query heads"),
        ({"llama.attention.key_length": 10**9}, "a head of 1000000000 rotating channels cannot be"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries in tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.merges": ["Ġt"]}, "'Ġt', not two tokens"),
        ({"tokenizer.ggml.merges": ["Ġ nosuchtoken"]}, "tokenizer cannot be built"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "token 'a' appears twice"),
    ],
)
def test_contradictions_are_named(make_gguf, metadata, message):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(make_gguf(metadata=metadata)[1])


def split(path: Path, *, parts: int = 2) -> list[Path]:
    """The same model as llama.cpp's gguf-split writes it: metadata in the first part, tensors in all."""
    reader, paths = gguf.GGUFReader(path), [path.with_name(f"m-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for i, part in enumerate(paths):
        writer = gguf.GGUFWriter(part, "llama")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", parts)
        for key, field in reader.fields.items() if i == 0 else ():
            if not key.startswith(("GGUF.", "general.architecture")):
                inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], inner)
        for tensor in reader.tensors[i::parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_parts_are_one_model(make_gguf):
    _, path = make_gguf("Q4_0")
    whole, parts = open_checkpoint(path), split(path)
    for part in parts:
        opened = open_checkpoint(part)
        assert opened.files == tuple(parts)
        assert opened.config == whole.config
        assert {n: t.read().tobytes() for n, t in opened.tensors.items()} == {
            n: t.read().tobytes() for n, t in whole.tensors.items()
        }


def test_a_missing_part_is_named(make_gguf):
    parts = split(make_gguf()[1])
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"part m-00002-of-00002.gguf is missing"):
        open_checkpoint(parts[0])


def test_a_renamed_part_is_refused(make_gguf):
    first = split(make_gguf()[1])[0]
    with pytest.raises(CheckpointError, match="is one of 2 parts, which are found by names like"):
        open_checkpoint(first.rename(first.with_name("renamed.gguf")))


def test_nan_is_found_when_read(make_gguf):
    norm = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    tensors = open_checkpoint(make_gguf(extra=norm)[1]).tensors
    with pytest.raises(CheckpointError, match=r"model.gguf: output_norm.weight: holds NaN values"):
        tensors["model.norm.weight"].read()
