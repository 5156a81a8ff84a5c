"""What a folder declares beside its main files: tokens, templates, ends, settings, heads and shards."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from exporter.checkpoint import open_checkpoint
from exporter.export import ExportOptions, export
from runtime import LLM, StructuredOutput
from runtime.bundle.bundle import open_bundle
from runtime.chat.template import ChatTemplate
from runtime.errors import CheckpointError, RequestError, UnsupportedError
from runtime.text.tokenizer import Tokenizer as BundleTokenizer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(make_checkpoint) -> Path:
    return make_checkpoint(seed=1)


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def update(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    write(folder, name, json.loads(path.read_text()) | changes)


def plain_vocabulary(folder: Path) -> None:
    """A tokenizer.json that marks nothing as added: the marks are words of the vocabulary."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    write(folder, "tokenizer.json", tokenizer | {"added_tokens": []})


MARK = {"content": "<|im_start|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
        "single_word": False}  # fmt: skip
NEW = MARK | {"content": "<|new|>"}
STRIPPING = MARK | {"content": "<|wide|>", "lstrip": True, "rstrip": True}
DECLARED: dict[str, dict[str, Any]] = {
    "decoder": {"tokenizer_config.json": {"added_tokens_decoder": {"1": MARK, "280": NEW}}},
    "decoder with other ids": {"tokenizer_config.json": {"added_tokens_decoder": {"300": NEW, "290": STRIPPING}}},
    "added_tokens.json": {"added_tokens.json": {"<|new|>": 281, "<|two|>": 280, "<|im_start|>": 1}},
    "additional": {"tokenizer_config.json": {"additional_special_tokens": ["<|new|>", "<|im_end|>"]}},
    "extra": {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<image>"}}},
    "map": {"special_tokens_map.json": {"eos_token": STRIPPING, "additional_special_tokens": ["<|two|>"]}},
    "map and added": {
        "special_tokens_map.json": {"additional_special_tokens": ["<|two|>"]},
        "added_tokens.json": {"<|two|>": 280, "plain words": 281},
    },
    "an end beside the vocabulary": {"tokenizer_config.json": {"eos_token": "<|finish|>"}},
    "a role of this model": {"tokenizer_config.json": {"image_token": "<image>"}},
    "roles of this model": {"tokenizer_config.json": {"model_specific_special_tokens": {"image": "<image>"}}},
    "a space before texts": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
    "none, by a class that ignores it": {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}
    },
}  # fmt: skip
TEXTS = ["<|im_start|>user\nHi<|im_end|>", "a <|new|> b<|new|>", " <|wide|> x", "<|two|>", "<image>1", "plain words",
         "end<|finish|>"]  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", DECLARED)
def test_ids_are_those_of_transformers(folder, name, plain):
    if plain:
        plain_vocabulary(folder)
    for file, changes in DECLARED[name].items():
        update(folder, file, **changes) if (folder / file).exists() else write(folder, file, changes)
    ours = Tokenizer.from_buffer(open_checkpoint(folder).tokenizer_files["tokenizer.json"])
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]


def test_special_tokens_that_would_be_cut_up_are_refused(folder):
    update(folder, "tokenizer_config.json", split_special_tokens=True)
    with pytest.raises(UnsupportedError, match="split_special_tokens cuts special tokens"):
        open_checkpoint(folder)


def test_declared_ids_that_the_vocabulary_contradicts_are_told(folder):
    update(folder, "tokenizer_config.json", added_tokens_decoder={"300": NEW})
    assert "is declared as token 300, and is 280" in open_checkpoint(folder).warnings[0]


@pytest.mark.parametrize("value", [{"x": NEW}, {"1": "text"}, [1]])
def test_broken_declarations_are_refused(folder, value):
    update(folder, "tokenizer_config.json", added_tokens_decoder=value)
    with pytest.raises(CheckpointError, match="must map ids to tokens"):
        open_checkpoint(folder)


# Templates


def chat(folder: Path, make_bundle: Any, tools: Any = None) -> str:
    bundle = open_bundle(make_bundle(folder))
    template = ChatTemplate.open(bundle, BundleTokenizer(bundle.path("tokenizer.json")))
    return template.render([{"role": "user", "content": "Hi"}], tools=tools)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
SAID = "{{ messages[0].content }} "
NAMED = {"default": SAID + "plain", "tool_use": SAID + "with {{ tools | length }}"}
AS_LIST = [{"name": name, "template": text} for name, text in NAMED.items()]


@pytest.mark.parametrize("stored", [NAMED, AS_LIST])
def test_named_templates_are_used_as_transformers_does(folder, make_bundle, stored):
    update(folder, "tokenizer_config.json", chat_template=stored)
    assert (chat(folder, make_bundle), chat(folder, make_bundle, TOOLS)) == ("Hi plain", "Hi with 1")


def test_a_template_of_a_processor_is_used(folder, make_bundle):
    update(folder, "tokenizer_config.json", chat_template=None)
    write(folder, "chat_template.json", {"chat_template": SAID + "from the processor"})
    assert chat(folder, make_bundle) == "Hi from the processor"


def test_a_list_without_a_default(folder, make_bundle):
    update(folder, "tokenizer_config.json", chat_template=AS_LIST[1:])
    assert chat(folder, make_bundle, TOOLS) == "Hi with 1"
    assert "no chat template is called default; 'tool_use'" in open_checkpoint(folder).warnings[0]


def test_a_template_that_is_none_is_refused(folder):
    update(folder, "tokenizer_config.json", chat_template=[{"name": "default"}])
    with pytest.raises(CheckpointError, match="chat_template must be a text"):
        open_checkpoint(folder)


# End of generation, and settings


def test_ends_of_all_files_count(folder, make_bundle):
    update(folder, "config.json", eos_token_id=7)
    write(folder, "generation_config.json", {"eos_token_id": [0, -1]})
    assert open_bundle(make_bundle(folder)).manifest.tokens.eos == (0, 7, 2)


def test_no_end_at_all_is_told(folder, tmp_path):
    update(folder, "config.json", eos_token_id=-1)
    update(folder, "tokenizer_config.json", eos_token=None)
    (folder / "generation_config.json").unlink()
    report = export(folder, tmp_path / "out", ExportOptions(verify="none"))
    assert "nothing ends a generation" in report.warnings[0]


def test_a_tokenizer_larger_than_the_embedding_is_told(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    update(folder, "tokenizer_config.json", additional_special_tokens=[f"<|{i}|>" for i in range(50)])
    report = export(folder, tmp_path / "out", ExportOptions(verify="none"))
    assert "ids up to 329, and the embedding rows for 320 tokens only" in report.warnings[0]
    with LLM(tmp_path / "out") as llm:
        with pytest.raises(RequestError, match="Token id 325 is outside the vocabulary, whose ids are 0 to 319"):
            llm.generate("a<|45|>", max_tokens=1)
        answer = llm.generate("a", max_tokens=20, structured=StructuredOutput(choice=("yes", "no")))
        assert answer.text in ("yes", "no")


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ({"top_k": -1, "top_p": 1.0, "repetition_penalty": 1, "min_p": 0}, {}),
        ({"top_k": 50.0, "temperature": 0.6, "do_sample": True}, {"top_k": 50, "temperature": 0.6, "do_sample": True}),
        ({"pad_token_id": -1, "eos_token_id": None}, {"pad_token_id": -1}),
    ],
)
def test_neutral_settings_are_not_set(folder, stored, kept):
    write(folder, "generation_config.json", stored)
    assert json.loads(open_checkpoint(folder).tokenizer_files.get("generation_config.json", b"{}")) == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"eos_token_id": "</s>"}', "eos_token_id is '</s>', not the id of a token"),
        ('{"eos_token_id": [1, 2.5]}', "not the id of a token"),
        ('{"temperature": NaN}', "temperature is nan"),
        ('{"made_up": Infinity}', "made_up is inf"),
        ('{"top_p": 0}', "top_p is 0; accepted: above 0"),
        ('{"top_p": 1.5}', "top_p is 1.5"),
        ('{"top_k": 2.5}', "top_k is 2.5"),
        ('{"top_k": true}', "top_k is True"),
        ('{"repetition_penalty": 0}', "repetition_penalty is 0"),
        ('{"temperature": "hot"}', "temperature is 'hot'"),
        ('{"do_sample": 1}', "do_sample is 1"),
        ('{"top_k": 1, "top_k": 2}', "the key 'top_k' is there twice"),
    ],
)
def test_settings_that_no_run_accepts_are_refused(folder, text, message):
    write(folder, "generation_config.json", text)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_settings_that_are_not_applied_are_told(folder):
    write(folder, "generation_config.json", {"no_repeat_ngram_size": 3, "num_beams": 1})
    assert (
        "no_repeat_ngram_size: settings of transformers' generate() that are not applied"
        in open_checkpoint(folder).warnings[0]
    )


# Which tensors count


def logits(model: Any) -> np.ndarray:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.tensor([[3, 7, 11]])).logits[0].numpy()


def theirs(folder: Path) -> np.ndarray:
    return logits(AutoModelForCausalLM.from_pretrained(folder))


def test_a_head_of_its_own_is_kept_where_the_config_ties(make_checkpoint, tmp_path):
    folder = make_checkpoint(tie_word_embeddings=False)
    update(folder, "config.json", tie_word_embeddings=True)
    export(folder, tmp_path / "out", ExportOptions(verify="transformers"))
    packed = export(folder, tmp_path / "packed", ExportOptions(quantize="int8"))
    assert "lm_head.weight" in {tensor.name for tensor in packed.manifest.quantization.tensors}


def test_a_tied_checkpoint_with_only_a_head(make_checkpoint, tmp_path):
    folder = make_checkpoint()
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    export(folder, tmp_path / "out", ExportOptions(verify="transformers"))


def test_a_single_file_wins_over_an_old_index(make_checkpoint, tmp_path):
    folder, old = make_checkpoint(seed=1), make_checkpoint(seed=2)
    shutil.copy(old / "model.safetensors", folder / "model-00001-of-00001.safetensors")
    names = load_file(folder / "model.safetensors")
    write(
        folder, "model.safetensors.index.json", {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    )
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(checkpoint.tensors["model.norm.weight"].read(), names["model.norm.weight"])
    assert "is of other files, and not read" in checkpoint.warnings[0]
    export(folder, tmp_path / "out", ExportOptions(verify="transformers"))
    (folder / "model-00001-of-00001.safetensors").unlink()
    assert open_checkpoint(folder).warnings
