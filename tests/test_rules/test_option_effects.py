"""Every option of every command is known to change something always, or is refused where it would change nothing."""

import click
import pytest
from click.testing import CliRunner

from runtime.cli.main import COMMANDS, main
from runtime.cli.option_effects import EFFECTS

# Options that change something whatever else is given, or that the command itself refuses where they would not.
ALWAYS = {
    "export": "output target target_ort dtype verify kv lora lora_inputs revision quantize requantize kind "
    "link_weights ignore_tensor ignore_key list task pooling score_tokens pair_template overwrite as_json",
    "quantize": "output preset bits group_size symmetric embedding_bits residual_channels method budget costs time kv "
    "calibration calibration_tokens seed exclude recipe_file fail_if work memory dry_run overwrite as_json",
    "eval": "reference text tokens context abilities fail_if html peers as_json",
    "compare": "reference text repeat html peers as_json",
    "quantize-kv": "output bits calibration calibration_tokens seed overwrite as_json",
    "run": "raw provider context threads speculation draft lora no_prepare as_json verify source target max_tokens "
    "temperature top_k top_p min_p seed stop stop_token_id min_tokens ignore_eos repetition_penalty presence_penalty "
    "frequency_penalty logit_bias logprobs n",
    "embed": "source output prompt dimensions truncate provider threads",
    "rerank": "source instruction top_n truncate provider threads as_json",
    "serve": "verify uds root_path allowed_hosts trusted_proxies metrics_port metrics_key_file send_timeout provider "
    "lora api_key_file cors_origin max_concurrency max_queue max_body kv_memory prefix_cache speculation draft "
    "no_prepare response_store context threads default_max_tokens request_timeout drain_timeout stall_timeout "
    "tool_fallback chat_template reasoning_format log_format",
    "pull": "",
    "cache": "",
    "prepare": "beside overwrite verify remove listed as_json",
    "package": "output wheelhouse prepared_for overwrite as_json",
    "bench": "threads kernels as_json",
    "inspect": "tensors verify as_json",
    "plan": "memory bandwidth context measure as_json",
    "doctor": "quick as_json",
}


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def conditional(name: str) -> set[str]:
    effects = EFFECTS.get(name)
    return {*effects.needs, *effects.excludes} if effects else set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_classified(name):
    options = {it.name for it in command(name).params if isinstance(it, click.Option)} - {"quiet", "verbose"}
    assert options == {*ALWAYS[name].split()} | conditional(name)


def words(name: str, *options: str) -> list[str]:
    """A command line with some value for each of these options and each argument."""
    line = [name]
    for it in command(name).params:
        if isinstance(it, click.Option) and it.name not in options and not it.required:
            continue
        value = "2" if it.type.name.startswith("integer") or it.callback else "x"
        value = it.type.choices[0] if isinstance(it.type, click.Choice) else value
        line += [it.opts[-1]] if isinstance(it, click.Option) else []
        line += [] if getattr(it, "is_flag", False) else [str(value)]
    return line


PAIRS = [
    (name, option, other) for name, it in EFFECTS.items() for option in it.excludes for other in it.excludes[option]
]
LONELY = [(name, option) for name, it in EFFECTS.items() for option in it.needs]


@pytest.mark.parametrize(("name", "option", "other"), PAIRS)
def test_an_option_beside_one_that_takes_its_effect_away_is_refused(name, option, other):
    done = CliRunner().invoke(main, words(name, option, other))
    assert done.exit_code == 2
    assert "has no effect beside" in done.output


@pytest.mark.parametrize(("name", "option"), LONELY)
def test_an_option_without_the_one_that_it_belongs_to_is_refused(name, option):
    done = CliRunner().invoke(main, words(name, option))
    assert done.exit_code == 2
    assert "has no effect without" in done.output


@pytest.mark.parametrize("others", [["model"], ["--quantize", "int4"]])
def test_the_list_of_families_stands_alone(others):
    done = CliRunner().invoke(main, ["export", "--list", *others])
    assert (done.exit_code, "has no effect beside --list" in done.output) == (2, True)


def test_a_key_to_ignore_is_there(tiny_checkpoint, tmp_path):
    line = ["export", str(tiny_checkpoint), "-o", str(tmp_path / "out"), "--ignore-key", "nothing"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 1
    assert "config.json has no key 'nothing'" in done.output


@pytest.mark.parametrize("option", [["--seed", "1"]])
def test_the_cache_s_seed_is_of_text_that_the_model_writes(option, tiny_bundle, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words")
    line = ["quantize-kv", str(tiny_bundle), "-o", str(tmp_path / "out"), "--calibration", str(text), *option]
    done = CliRunner().invoke(main, line)
    assert (done.exit_code, "--seed has no effect" in done.output) == (1, True)
