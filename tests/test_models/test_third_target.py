"""A third target is a file of its own: a provider that hands what it does not know to the CPU, from export to text."""

import pytest

from exporter.export import ExportOptions, export
from models.targets.provider import Provider
from models.targets.registry import PROVIDERS as TARGETS
from runtime import LLM, SamplingParams
from runtime.advice.doctor import diagnose
from runtime.bundle.bundle import open_bundle
from runtime.errors import OptionError, ProviderError
from runtime.host.machine import this_machine
from runtime.ort.providers import PROVIDERS

STAND_IN = Provider("standin", "Stand-in", ("float32",), runs_here=True, kernels="cpu")


@pytest.fixture
def bundle(make_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "standin", STAND_IN)
    export(make_checkpoint(), tmp_path / "out", ExportOptions(target="standin", verify="none"))
    return tmp_path / "out"


def test_it_runs_where_a_provider_of_its_name_is_known(bundle, monkeypatch):
    monkeypatch.setitem(PROVIDERS, "standin", "CPUExecutionProvider")
    assert open_bundle(bundle).manifest.target.provider == "standin"
    with LLM(bundle) as llm:
        (answer,) = llm.generate(["Hello"], SamplingParams(max_tokens=4, temperature=0))
    assert len(answer.token_ids) == 4


def test_it_is_refused_by_name_elsewhere(bundle):
    with pytest.raises(ProviderError, match=r"built for 'standin'\. Provider 'standin' is not known; choose auto, cpu"):
        LLM(bundle)


def test_its_layout_has_no_pages(bundle):
    with pytest.raises(OptionError, match="paged needs PagedAttention"):
        ExportOptions(target="standin", kv="paged")


def test_the_doctor_tries_it(monkeypatch):
    monkeypatch.setitem(PROVIDERS, "standin", "CPUExecutionProvider")
    found = {provider.name: provider.problem for provider in diagnose(this_machine()).providers}
    assert list(found) == ["cpu", "cuda", "standin"]
    assert found["standin"] is None
