"""A guard that counts, because seconds on a shared machine prove nothing: operators, bytes and memory of a step."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.export import ExportOptions, export
from runtime.bench.profile import BETWEEN, OUTSIDE, profile_steps
from runtime.bundle.bundle import Bundle, open_bundle
from runtime.ort.prepared import weights as prepared

WIDTH, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 2048, 8192, 32, 8, 512  # a layer of a 1.2B Llama, a small vocabulary
GROUP = 32
MEMORY = """
import json, sys
from runtime import LLM
with LLM(sys.argv[1]) as llm:
    llm.generate([5, 6, 7], max_tokens=2)
    rows = [line.split() for line in open("/proc/self/smaps")]
    kind, sizes = "", {"file": 0, "anonymous": 0}
    for row in rows:
        if "-" in row[0] and not row[0].endswith(":"):
            kind = row[5] if len(row) > 5 else ""
        elif row[0] == "Rss:" and kind.endswith((".bin", ".data")):
            sizes["file"] += 1024 * int(row[1])
        elif row[0] == "Anonymous:":
            sizes["anonymous"] += 1024 * int(row[1])
    print(json.dumps(sizes))
"""


@pytest.fixture(scope="module")
def layer(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    sizes = {"hidden_size": WIDTH, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1, "vocab_size": VOCAB}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": WIDTH // HEADS}
    output = tmp_path_factory.mktemp("layer") / "bundle"
    export(make_checkpoint(**sizes, **heads), output, ExportOptions(quantize="int4", method="rtn", verify="none"))
    return open_bundle(output)


def test_a_layer_is_ten_operators_and_a_step_six_more(layer: Bundle) -> None:
    (_, decode) = profile_steps(layer, prompts=(8,), batches=(1,), steps=4, threads=1)
    calls = {one.operator: one.calls for one in decode.operators if one.operator not in (BETWEEN, OUTSIDE)}
    assert calls.pop("MatMulNBits") == 4 + 1  # the last is the head
    assert calls.pop("GroupQueryAttention") == 1
    assert calls.pop("SkipSimplifiedLayerNormalization") == 2
    assert sum(calls.values()) <= 7, calls
    assert not [name for name in calls if "Memcpy" in name or name in ("Cast", "Transpose", "DequantizeLinear")]


def test_a_step_reads_what_is_packed_and_no_more(
    layer: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path))
    packed = prepared.packed_bytes(prepared.make(layer))
    kv = WIDTH * KV_HEADS // HEADS
    weights = WIDTH * (2 * WIDTH + 2 * kv) + 3 * WIDTH * INTERMEDIATE
    head = VOCAB * WIDTH
    # Codes, and for each group a scale and a sum of the block in float32, and padding.
    expected = weights // 2 + head + 8 * (weights + head) // GROUP
    assert expected <= packed <= 1.02 * expected


def test_prepared_weights_are_no_memory_of_the_process(
    layer: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memory() -> dict[str, int]:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(layer.folder)], capture_output=True, text=True, check=True
        )
        found: dict[str, int] = json.loads(done.stdout)
        return found

    monkeypatch.setenv("ONNXLM_CACHE", str(tmp_path))
    without = memory()
    packed = prepared.packed_bytes(prepared.make(layer))
    mapped = memory()
    assert mapped["anonymous"] < without["anonymous"] - 0.8 * packed
    assert mapped["file"] > without["file"] + 0.8 * packed
