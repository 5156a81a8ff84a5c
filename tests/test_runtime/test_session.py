"""The border to ONNX Runtime: what is missing is said, and nothing foreign gets through."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from runtime.bundle.bundle import open_bundle
from runtime.errors import ExecutionError, ManifestError, OnnxlmError, ProviderError
from runtime.ort.cuda_check import missing_for_cuda, missing_library
from runtime.ort.executor import OnnxExecutor
from runtime.ort.session import check_session, choose_provider, open_session, operator_has_input, translated

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="these describe the CPU wheel"
)


def test_cuda_on_the_cpu_wheel_is_an_error_that_says_so(tiny_bundle: Path) -> None:
    with pytest.raises(ProviderError, match=r"CPU-only wheel.*pip install 'onnxlm\[gpu\]'"):
        choose_provider("cuda", open_bundle(tiny_bundle))


def test_auto_is_the_provider_the_bundle_was_built_for(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    assert choose_provider("auto", bundle) == "cpu"
    manifest = replace(bundle.manifest, target=replace(bundle.manifest.target, provider="cuda"))
    with pytest.raises(ProviderError, match="CPU-only"):
        choose_provider("auto", replace(bundle, manifest=manifest))
    with pytest.raises(ProviderError, match="built for cuda, not for cpu"):
        choose_provider("cpu", replace(bundle, manifest=manifest))


def test_an_unknown_provider_is_refused_with_the_known_ones(tiny_bundle: Path) -> None:
    with pytest.raises(ProviderError, match="'tpu' is not known; choose auto, cpu or cuda"):
        choose_provider("tpu", open_bundle(tiny_bundle))


def test_a_missing_driver_is_named() -> None:
    gpu_wheel = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider"], __file__=onnxruntime.__file__, __version__="1.31.1"
    )
    said = missing_for_cuda(gpu_wheel)
    assert said is not None
    assert "libcuda.so.1" in said


def test_a_missing_library_is_named() -> None:
    said = missing_library(SimpleNamespace(__file__="/nowhere/x.py"))
    assert said is not None
    assert "libonnxruntime_providers_shared.so" in said
    assert "onnxlm[gpu]" in said


def test_a_broken_graph_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    with pytest.raises(ExecutionError, match=r"loading .*broken\.onnx"):
        open_session(tmp_path / "broken.onnx")


def test_whatever_is_raised_becomes_ours_with_its_cause() -> None:
    with pytest.raises(OnnxlmError) as caught, translated("testing"):
        raise RuntimeError("first line\nsecond line")
    assert str(caught.value) == "ONNX Runtime failed while testing: first line"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_graph_that_is_not_the_manifests_is_refused(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    graphs = bundle.manifest.graphs
    session = open_session(tiny_bundle / graphs.prefill.file)
    check_session(session, graphs.prefill)
    with pytest.raises(ManifestError, match=r"unexpected \['logits_index'\]"):
        check_session(session, graphs.decode)
    changed = tuple(
        replace(port, dtype="int32") if port.name == "input_ids" else port for port in graphs.prefill.inputs
    )
    with pytest.raises(ManifestError, match="input_ids is tensor"):
        check_session(session, replace(graphs.prefill, inputs=changed))


def test_features_are_found_in_the_schema() -> None:
    assert operator_has_input("GroupQueryAttention", "seqlens_k")
    assert not operator_has_input("GroupQueryAttention", "no_such_input")


def test_a_failing_run_is_our_error(tiny_bundle: Path) -> None:
    executor = OnnxExecutor(open_bundle(tiny_bundle), slots=1, threads=1)
    import numpy as np

    with pytest.raises(ExecutionError, match="running a step"):
        executor.prefill(0, 0, np.array([100_000, 1]))
    executor.prefill(0, 0, np.array([5, 1]))


def test_without_onnxruntime_the_error_names_both_extras() -> None:
    code = (
        "import sys, json; sys.modules['onnxruntime'] = None\n"
        "from runtime.ort.session import onnxruntime\n"
        "try:\n    onnxruntime()\nexcept Exception as e:\n    print(json.dumps([type(e).__name__, str(e)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, message = json.loads(done.stdout)
    assert name == "MissingDependencyError"
    assert "onnxlm[cpu]" in message
    assert "onnxlm[gpu]" in message
