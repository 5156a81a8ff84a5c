"""A bundle for the CPU becomes one for CUDA: the same codes, and nearly the same logits, run here on the CPU."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.export import export
from exporter.options import ExportOptions
from quantizer.calibration.data import split
from quantizer.flow import quantize
from quantizer.kv_cache.quantize import quantize_cache
from quantizer.presets import Storage, make_recipe
from runtime.bundle.bundle import open_bundle
from runtime.errors import OptionError, UnsupportedError
from runtime.ort.executor import OnnxExecutor

Retarget = Callable[..., Path]
TEXT = split("random", np.random.default_rng(0).integers(4, 320, (6, 64)))


@pytest.fixture
def retargeted(tmp_path: Path) -> Retarget:
    def make(bundle: Path, **options: Any) -> Path:
        export(bundle, tmp_path / "cuda", ExportOptions(**({"target": "cuda", "overwrite": True} | options)))
        return tmp_path / "cuda"

    return make


@pytest.fixture(
    scope="module", params=[{"preset": "fast"}, {"method": "gptq", "storage": Storage(bits=4)}], ids=["fast", "gptq"]
)
def int4(request: pytest.FixtureRequest, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("int4") / "bundle"
    quantize(tiny_bundle, output, make_recipe(**request.param), text=TEXT)
    return output


def logits(bundle: Path) -> np.ndarray:
    """Of a prompt and one token behind it; float16 graphs run on the CPU too."""
    with closing(OnnxExecutor(open_bundle(bundle), "cpu", slots=1)) as executor:
        first = np.array(executor.prefill(0, 0, np.arange(3, 23)), np.float64)
        return np.stack([first, executor.decode(np.array([7]), np.array([20], np.int32))[0]])


def kl(left: np.ndarray, right: np.ndarray) -> float:
    def logs(x: np.ndarray) -> np.ndarray:
        return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)

    return float((np.exp(logs(left)) * (logs(left) - logs(right))).sum(-1).mean())


def test_a_float_bundle_keeps_its_logits(tiny_bundle: Path, retargeted: Retarget) -> None:
    assert kl(logits(tiny_bundle), logits(retargeted(tiny_bundle))) < 1e-4


def test_a_quantized_bundle_loses_nothing_more(tiny_bundle: Path, int4: Path, retargeted: Retarget) -> None:
    reference, made = logits(tiny_bundle), retargeted(int4)
    # Less is lost: the CPU rounds activations to 8 bits, CUDA does not.
    assert kl(reference, logits(made)) <= 1.03 * kl(reference, logits(int4))
    assert open_bundle(made).manifest.quantization == open_bundle(int4).manifest.quantization
    assert open_bundle(made).manifest.target.dtype == "float16"


def test_codes_of_keys_and_values_stay_codes(int4: Path, retargeted: Retarget, tmp_path: Path) -> None:
    quantize_cache(int4, tmp_path / "kv8", 8, TEXT)
    made = retargeted(tmp_path / "kv8")
    assert open_bundle(made).manifest.kv_cache == open_bundle(tmp_path / "kv8").manifest.kv_cache
    assert kl(logits(tmp_path / "kv8"), logits(made)) < 0.02  # the CPU rounds activations to 8 bits, too


def test_bfloat16_needs_no_scale_of_another_type(int4: Path, retargeted: Retarget) -> None:
    manifest = open_bundle(retargeted(int4, dtype="bfloat16")).manifest
    assert (manifest.kv_cache.dtype, manifest.quality) == ("bfloat16", None)


@pytest.mark.parametrize("options", [{"quantize": "int4"}, {"target": "cpu"}, {"dtype": "float16", "requantize": True}])
def test_what_a_bundle_has_decided_is_refused(tiny_bundle: Path, retargeted: Retarget, options: Any) -> None:
    with pytest.raises(OptionError, match="bundle"):
        retargeted(tiny_bundle, **options)


def test_a_bundle_for_cuda_is_no_source(tiny_bundle: Path, retargeted: Retarget, tmp_path: Path) -> None:
    made = retargeted(tiny_bundle)
    with pytest.raises(UnsupportedError, match="built for cuda"):
        export(made, tmp_path / "again", ExportOptions(target="cuda"))
    assert not (tmp_path / "again").exists()


def test_verification_for_cuda_is_refused_not_ignored() -> None:
    with pytest.raises(OptionError, match="needs a GPU"):
        replace(ExportOptions(target="cuda"), verify="self-consistency")
