"""LoRA adapters at run time: the same as merged ones, many in a batch, and apart in every cache."""

import json

import numpy as np
import peft
import pytest
import transformers
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from exporter.export import ExportOptions, export
from runtime import LLM, AsyncLLM, EngineOptions
from runtime.cli.main import main
from runtime.errors import BundleError, CheckpointError, OnnxlmError, OptionError, RequestError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPT = [5, 9, 200, 17, 4, 33, 21]
GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


def save_adapter(checkpoint, folder, seed, modules=ALL, **settings):
    model = transformers.LlamaForCausalLM.from_pretrained(checkpoint)
    transformers.set_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=list(modules), init_lora_weights=False, **settings)
    peft.get_peft_model(model, config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapters(tiny_checkpoint, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    chosen = {"all": {}, "some": {"modules": ["q_proj", "v_proj", "down_proj"]}, "rs": {"use_rslora": True}}
    return {
        name: save_adapter(tiny_checkpoint, root / name, seed, **more)
        for seed, (name, more) in enumerate(chosen.items())
    }


@pytest.fixture(scope="module")
def lora_bundle(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "bundle"
    export(tiny_bundle, folder, ExportOptions(lora_inputs=True))
    return folder


@pytest.fixture(scope="module")
def llm(lora_bundle, adapters):
    with LLM(lora_bundle, options=EngineOptions(max_concurrency=4, prefix_cache=1 << 22), lora=adapters) as llm:
        yield llm


@pytest.mark.parametrize("name", ["all", "some", "rs"])
def test_an_adapter_is_the_merged_model(name, llm, adapters, tiny_checkpoint, make_bundle):
    with LLM(make_bundle(tiny_checkpoint, lora=(adapters[name],))) as merged:
        ours = llm.generate(PROMPT, prompt_logprobs=0, adapter=name, **GREEDY)
        theirs = merged.generate(PROMPT, prompt_logprobs=0, **GREEDY)
    assert ours.token_ids == theirs.token_ids
    pairs = zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True)
    np.testing.assert_allclose(*zip(*((a.logprob, b.logprob) for a, b in pairs), strict=True), atol=2e-4)


def test_without_an_adapter_it_is_the_bundle_to_the_bit(llm, tiny_bundle):
    with LLM(tiny_bundle) as plain:
        expected = plain.generate(PROMPT, logprobs=2, **GREEDY)
    found = llm.generate(PROMPT, logprobs=2, **GREEDY)
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs


def test_an_answer_does_not_depend_on_the_adapters_beside_it(llm):
    names = [None, "all", "some", "rs"]
    requests = [llm.model.request(PROMPT[: 4 + i], llm_params(name)) for i, name in enumerate(names * 2)]
    together = llm._run(requests)
    for i, name in enumerate(names * 2):
        alone = llm.generate(PROMPT[: 4 + i], llm_params(name))
        assert together[i].token_ids == alone.token_ids
        assert together[i].logprobs == alone.logprobs


@pytest.mark.parametrize("settings", [{"target_ort": "1.32"}, {}], ids=["prompts together", "drafts"])
def test_prompts_in_one_run_and_drafts_have_their_adapters(settings, tiny_checkpoint, make_bundle, adapters, tmp_path):
    export(make_bundle(tiny_checkpoint, **settings), tmp_path / "lora", ExportOptions(lora_inputs=True))
    options = EngineOptions(max_concurrency=4, speculation=0 if settings else 4)
    prompts = [[*PROMPT, *PROMPT, *PROMPT[: 3 + i]] for i in range(4)]
    with LLM(tmp_path / "lora", options=options, lora=adapters) as llm:
        names = [None, "all", "some", "rs"]
        requests = [llm.model.request(ids, llm_params(name)) for ids, name in zip(prompts, names, strict=True)]
        together = llm._run(requests)
    with LLM(tmp_path / "lora", lora=adapters) as llm:
        alone = [llm.generate(ids, llm_params(name)) for ids, name in zip(prompts, names, strict=True)]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


def llm_params(name):
    from runtime import SamplingParams

    return SamplingParams(**GREEDY, logprobs=2, adapter=name)


def test_prefixes_are_apart(lora_bundle, adapters):
    prompt = list(range(10, 150))
    options = EngineOptions(max_concurrency=2, prefix_cache=1 << 22)
    fresh = {}
    for name in (None, "all", "some"):
        with LLM(lora_bundle, lora=adapters) as llm:
            fresh[name] = llm.generate(prompt, llm_params(name)).logprobs
    with LLM(lora_bundle, options=options, lora=adapters) as llm:
        for name in (None, "all", "some", "all", None):
            assert llm.generate(prompt, llm_params(name)).logprobs == fresh[name]
        assert llm.stats().cached_tokens > 200  # of the two that came again


def test_quantized_bundles_take_adapters(tiny_bundle, adapters, tmp_path):
    from quantizer.api import quantize

    quantize(tiny_bundle, tmp_path / "int8", bits=8)
    export(tmp_path / "int8", tmp_path / "lora", ExportOptions(lora_inputs=True))
    with LLM(tmp_path / "int8") as plain, LLM(tmp_path / "lora", lora=adapters) as llm:
        assert llm.generate(PROMPT, **GREEDY).token_ids == plain.generate(PROMPT, **GREEDY).token_ids
        assert llm.generate(PROMPT, adapter="all", **GREEDY).token_ids != plain.generate(PROMPT, **GREEDY).token_ids


def test_names_that_are_not_there_are_refused(llm, tiny_bundle, adapters, lora_bundle):
    with pytest.raises(RequestError, match="'all', 'some', 'rs'"):
        llm.generate(PROMPT, adapter="other")
    with pytest.raises(BundleError, match="--lora-inputs"):
        LLM(tiny_bundle, lora=adapters)
    with pytest.raises(OptionError, match="colon"):
        LLM(lora_bundle, lora={"a:b": adapters["all"]})
    with pytest.raises(CheckpointError, match="adapter_config"):
        AsyncLLM(lora_bundle, lora={"a": tiny_bundle})


def changed(folder, target, tensors=None, **settings):
    target.mkdir()
    config = json.loads((folder / "adapter_config.json").read_text()) | settings
    (target / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        {**load_file(folder / "adapter_model.safetensors"), **(tensors or {})}, target / "adapter_model.safetensors"
    )
    return target


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"peft_type": "IA3"}, "LORA"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"something_new": 1}, "something_new"),
        ({"r": 8}, "rank r = 8"),
        ({"lora_alpha": "x"}, "lora_alpha"),
    ],
)
def test_adapters_that_are_more_than_factors_are_refused(settings, words, adapters, lora_bundle, tmp_path):
    with pytest.raises(OnnxlmError, match=words):
        LLM(lora_bundle, lora={"a": changed(adapters["all"], tmp_path / "a", **settings)})


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", (4, 320), "no factor of a linear layer"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", (64,), "no factor"),
        ("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", (4, 64), "only factor A"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", (4, 32), "of another model"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, shape, words, adapters, lora_bundle, tmp_path):
    tensors = {name: np.ones(shape, np.float32)}
    with pytest.raises((UnsupportedError, CheckpointError), match=words):
        LLM(lora_bundle, lora={"a": changed(adapters["all"], tmp_path / "a", tensors)})


def test_another_chat_template_is_refused(adapters, lora_bundle, tmp_path):
    folder = changed(adapters["all"], tmp_path / "a")
    (folder / "chat_template.jinja").write_bytes((lora_bundle / "chat_template.jinja").read_bytes())
    LLM(lora_bundle, lora={"a": folder}).close()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UnsupportedError, match="differs from the chat template"):
        LLM(lora_bundle, lora={"a": folder})


def test_a_broken_file_is_named(adapters, lora_bundle, tmp_path):
    folder = changed(adapters["all"], tmp_path / "a")
    content = (folder / "adapter_model.safetensors").read_bytes()
    for broken in (b"", content[:100], content[:-50], b"\xff" * 50):
        (folder / "adapter_model.safetensors").write_bytes(broken)
        with pytest.raises(CheckpointError, match="safetensors"):
            LLM(lora_bundle, lora={"a": folder})


def test_the_command_answers_with_an_adapter(lora_bundle, adapters, llm, tiny_bundle, tmp_path):
    arguments = ["run", str(lora_bundle), "hello", "--raw", "--json", "--max-tokens", "8", "--temperature", "0"]
    shown = CliRunner().invoke(main, [*arguments, "--lora", str(adapters["all"])], catch_exceptions=False)
    expected = llm.generate("hello", max_tokens=8, temperature=0.0, adapter="all")
    assert json.loads(shown.stdout)["text"] == expected.text
    done = CliRunner().invoke(main, ["quantize", str(lora_bundle), "-o", str(tmp_path / "q"), "--bits", "8"])
    assert "in the end" in done.output
    done = CliRunner().invoke(main, ["export", str(lora_bundle), "--lora-inputs", "-o", str(tmp_path / "again")])
    assert done.exit_code == 1
    assert "adapters already" in done.output
