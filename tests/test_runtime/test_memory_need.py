"""An allocation that fails says what the bundle needs, and what would fit."""

import subprocess
import sys

import pytest

from runtime import LLM, EngineOptions
from runtime.bundle.bundle import open_bundle
from runtime.bundle.memory_need import need
from runtime.errors import ExecutionError

LIMITED = """
import resource, sys
from pathlib import Path
from runtime import LLM, EngineOptions
with LLM(sys.argv[1], options=EngineOptions(threads=1)):
    pass
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), used + (24 << 20)))
LLM(sys.argv[2], options=EngineOptions(threads=1, max_concurrency=3, prepare=False))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of addresses")
def test_a_real_failure_is_explained(tiny_bundle, make_checkpoint, make_bundle):
    large = make_bundle(make_checkpoint(hidden_size=512, intermediate_size=4096, num_hidden_layers=3))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tiny_bundle), str(large)], capture_output=True, text=True, timeout=60
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert f"ExecutionError: {large}: out of memory. It needs" in last
    assert "for each of 3 sequences of 256 tokens" in last


@pytest.mark.parametrize("error", [MemoryError(), ExecutionError("while loading: std::bad_alloc")])
def test_whatever_allocates_is_explained(tiny_bundle, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("runtime.loading.OnnxExecutor", fail)
    words = r"out of memory\. It needs .* What fits: --max-concurrency 16 --context 256"
    with pytest.raises(ExecutionError, match=words):
        LLM(tiny_bundle, options=EngineOptions())


def test_what_fits_is_the_most_that_does(tiny_bundle):
    bundle = open_bundle(tiny_bundle)
    weights = sum(entry.size for entry in bundle.manifest.files.values())
    token = bundle.manifest.kv_cache.bytes_per_token
    assert "--max-concurrency 3 --context 4096" in need(bundle, 8, 4096, weights + 3 * 4096 * token)
    assert "--max-concurrency 1 --context 2048" in need(bundle, 8, 4096, weights + 4095 * token)
    assert "Not even the weights fit" in need(bundle, 8, 4096, weights)
    assert "in 8 bits instead of 32" in need(bundle, 8, 4096, weights)
