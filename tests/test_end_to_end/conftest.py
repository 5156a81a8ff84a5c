"""The real model. `make demo` and `make test` fetch it into demo/; without it these tests are skipped, and say so."""

import os
from pathlib import Path

import pytest

from exporter.checkpoint import open_checkpoint
from exporter.export import ExportOptions, export
from exporter.verify.reference import reference_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct as a GGUF file."""
    path = Path(os.environ.get("ONNXLM_SMOLLM2", ROOT / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.is_file():
        pytest.skip(f"{path} is not there: run `make demo`, or set ONNXLM_SMOLLM2")
    return path


@pytest.fixture(scope="session")
def bundle(smollm2, tmp_path_factory):
    """Its float32 bundle."""
    folder = tmp_path_factory.mktemp("smollm2") / "fp32"
    export(smollm2, folder, ExportOptions(verify="none"))
    return folder


@pytest.fixture(scope="session")
def reference(smollm2):
    """transformers' model of the same weights, float32, eager."""
    return reference_model(open_checkpoint(smollm2))
