"""Adapters over HTTP: each is a model of its own, over one copy of the weights."""

import httpx
import peft
import pytest
import transformers

from exporter.export import ExportOptions, export
from runtime import EngineOptions
from runtime.cli.serve import _adapters
from runtime.client import Model
from runtime.errors import OptionError

from .conftest import running

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's


@pytest.fixture(scope="module")
def server(tiny_checkpoint, tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    model = transformers.LlamaForCausalLM.from_pretrained(tiny_checkpoint)
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(folder / "adapter")
    export(tiny_bundle, folder / "bundle", ExportOptions(lora_inputs=True))
    engine = EngineOptions(max_concurrency=4, threads=1)
    model = Model(folder / "bundle", "cpu", engine, lora={"mine": folder / "adapter"})
    with running({"tiny": model}) as server:
        yield server
    model.close()


def test_an_adapter_is_a_model_of_its_own(server):
    with server.client() as client:
        asked = {"prompt": "hello", "max_tokens": 12, "temperature": 0}
        texts = [client.completions.create(model=name, **asked).choices[0].text for name in ("tiny", "tiny:mine")]
        assert {model.id for model in client.models.list()} == {"tiny", "tiny:mine"}
    assert texts[0] != texts[1]


def test_an_adapter_that_is_not_there_is_not_found(server):
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny:other", "prompt": "a"})
    assert answer.status_code == 404
    assert "tiny:mine" in answer.text


def test_the_option_says_of_which_model():
    names = {"a": None, "b": None}
    assert list(_adapters(("b:x=dir",), names)["b"]) == ["x"]
    for wrong in ("x=dir", "c:x=dir", "a:x", "a:=dir"):
        with pytest.raises(OptionError, match="--lora"):
            _adapters((wrong,), names)
    with pytest.raises(OptionError, match="already"):
        _adapters(("a:x=one", "a:x=two"), names)
