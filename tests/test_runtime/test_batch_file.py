import json

import pytest
from click.testing import CliRunner

import runtime
from runtime.batch_file import BatchFile
from runtime.batch_lines import BatchDefaults
from runtime.cli.main import main

DEFAULTS = BatchDefaults({"max_tokens": 6, "temperature": 0.0, "ignore_eos": True})
GOOD = [
    {"prompt": "Hi", "id": "first"},
    {"prompt": [5, 6, 7], "max_tokens": 3},
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"prompt": "Hi", "ignore_eos": False, "structured": {"choice": ["red"]}},
    {"prompt": "Hi", "temperature": 1.0, "seed": 3, "n": 2, "logit_bias": {"7": -100}, "logprobs": 1},
]
BAD = [
    ("{broken", "not a line of JSON"),
    ("[1]", "not a JSON object"),
    ('{"prompt": "Hi", "prompt": "Ho"}', "appears twice"),
    ('{"promt": "Hi"}', "unknown key 'promt'"),
    ('{"id": 1}', "either a prompt or messages"),
    ('{"prompt": "Hi", "messages": []}', "either a prompt or messages"),
    ('{"prompt": 5}', "prompt must be"),
    ('{"prompt": [9999]}', "outside the vocabulary"),
    ('{"prompt": "Hi", "temperature": -1}', "temperature"),
    ('{"prompt": "Hi", "structured": {"nonsense": 1}}', "structured"),
    ('{"prompt": "Hi", "ignore_eos": false, "structured": {"regex": "("}}', "structured output"),
    ('{"prompt": "%s"}' % ("a" * 500), "context"),
    ('{"messages": [{"role": "user"}]}', "neither content"),
    ('{"prompt": "\\ud800"}', "surrogate"),
    (b"\xff\xfe", "not a line of JSON"),
]


@pytest.fixture(scope="module")
def llm(tiny_bundle):
    with runtime.LLM(tiny_bundle, options=runtime.EngineOptions(max_concurrency=4)) as llm:
        yield llm


def lines(*entries):
    texts = [e if isinstance(e, bytes) else (e if isinstance(e, str) else json.dumps(e)).encode() for e in entries]
    return b"\n".join(texts) + b"\n"


def answers(path):
    return {record["line"]: record for record in map(json.loads, path.read_bytes().splitlines())}


@pytest.fixture
def batch(llm, tmp_path):
    """Run a batch over these lines; the same output each time."""

    def batch(*entries, defaults=DEFAULTS, progress=None):
        (tmp_path / "in").write_bytes(lines(*entries))
        run = BatchFile(llm.model, tmp_path / "in", tmp_path / "out", defaults)
        return run.run(progress), answers(tmp_path / "out")

    return batch


def test_every_kind_of_line_is_answered(batch, llm):
    counts, got = batch(*GOOD)
    assert (counts.answered, counts.failed) == (len(GOOD), 0)
    params = runtime.SamplingParams(**DEFAULTS.params)
    assert got[1]["text"] == got[3]["text"] == llm.chat(GOOD[2]["messages"], params).text
    assert (got[1]["id"], len(got[2]["token_ids"]), got[4]["text"]) == ("first", 3, "red")
    assert len(got[5]["alternatives"]) == 1


def test_raw_prompts_and_a_system_message(batch, llm):
    params = runtime.SamplingParams(**DEFAULTS.params)
    _, got = batch(GOOD[0], defaults=BatchDefaults(DEFAULTS.params, raw=True))
    assert got[1]["text"] == llm.generate("Hi", params).text


def test_the_system_message_goes_before_prompts(batch, llm):
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    _, got = batch(GOOD[0], defaults=BatchDefaults(DEFAULTS.params, system="Be brief"))
    assert got[1]["text"] == llm.chat(chat, runtime.SamplingParams(**DEFAULTS.params)).text


def test_bad_lines_never_lose_the_rest(batch):
    mixed = [entry for (bad, _), i in zip(BAD, range(99), strict=False) for entry in (bad, GOOD[i % len(GOOD)])]
    counts, got = batch(*mixed)
    assert (counts.answered, counts.failed) == (len(BAD), len(BAD))
    for number, (_, words) in enumerate(BAD):
        assert words in got[2 * number + 1]["error"]
        assert "error" not in got[2 * number + 2] or got[2 * number + 2]["error"] is None


def test_the_id_of_a_bad_line_is_reported(batch):
    _, got = batch({"id": {"any": "thing"}, "prompt": ""}, {"id": 7, "prompt": "Hi", "top_p": 9})
    assert [got[1]["id"], got[2]["id"]] == [{"any": "thing"}, 7]


def test_only_bad_lines(batch):
    counts, _ = batch("{", "[]")
    assert (counts.answered, counts.failed) == (0, 2)


def test_blank_lines_and_empty_files_are_fine(batch):
    assert batch()[0].total == 0
    counts, got = batch("", GOOD[0], "   ", GOOD[1])
    assert (counts.total, sorted(got)) == (2, [2, 4])


def test_a_second_run_keeps_answers_and_tries_failures_again(batch):
    _, first = batch(GOOD[0], "{broken", GOOD[1])
    counts, second = batch(GOOD[0], "{broken", GOOD[1])
    assert (counts.kept, counts.answered, counts.failed) == (2, 0, 1)
    assert [second[1], second[3]] == [first[1], first[3]]


def test_a_stopped_run_goes_on_where_it_ended(batch, tmp_path):
    prompts = [{"prompt": f"Hi {i}"} for i in range(30)]

    def stop(counts):
        if counts.answered == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batch(*prompts, progress=stop)
    counts, got = batch(*prompts)
    assert (counts.kept, counts.answered) == (5, 25)
    (tmp_path / "out").unlink()
    _, fresh = batch(*prompts)
    assert {n: r["text"] for n, r in got.items()} == {n: r["text"] for n, r in fresh.items()}


def test_a_half_written_line_is_answered_again(batch, tmp_path):
    _, whole = batch(GOOD[0], GOOD[2])
    content = (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_bytes(content[:-20])
    counts, again = batch(GOOD[0], GOOD[2])
    assert (counts.kept, counts.answered) == (1, 1)
    assert {n: r["text"] for n, r in again.items()} == {n: r["text"] for n, r in whole.items()}


@pytest.mark.parametrize("content", [b"precious\n", b'{"a": 1}\n', b"[]\n"])
def test_a_file_that_is_no_output_is_never_touched(batch, tmp_path, content):
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(runtime.OptionError, match="not the output of a batch"):
        batch(GOOD[0])
    assert (tmp_path / "out").read_bytes() == content


def test_the_output_must_belong_to_the_input_and_the_options(batch, tmp_path):
    batch(GOOD[0], GOOD[1])
    before = (tmp_path / "out").read_bytes()
    with pytest.raises(runtime.OptionError, match="its line 1 does not belong"):
        batch(GOOD[2], GOOD[1])
    with pytest.raises(runtime.OptionError, match="other options"):
        batch(GOOD[0], GOOD[1], defaults=BatchDefaults({"max_tokens": 5}))
    assert (tmp_path / "out").read_bytes() == before


def test_the_output_is_not_the_input(llm, tmp_path):
    (tmp_path / "in").write_bytes(lines(GOOD[0]))
    with pytest.raises(runtime.OptionError, match="not the output of a batch"):
        BatchFile(llm.model, tmp_path / "in", tmp_path / "in", DEFAULTS).run()


def test_files_that_cannot_be_opened(llm, tmp_path):
    with pytest.raises(runtime.OptionError, match="cannot be opened"):
        BatchFile(llm.model, tmp_path / "nothing", tmp_path / "out", DEFAULTS).run()


def test_the_command(tiny_bundle, tmp_path):
    (tmp_path / "in").write_bytes(lines(GOOD[0], "{broken"))
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, ["run", str(tiny_bundle), *files, "--max-tokens", "4"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 answered, 1 failed, 0 were there." in result.stderr
    assert len(answers(tmp_path / "out")) == 2


@pytest.mark.parametrize("options", [["--input", "x"], ["--output", "x"], ["Hi", "--input", "x", "--output", "y"]])
def test_the_command_wants_both_files_and_no_prompt(tiny_bundle, options):
    assert CliRunner().invoke(main, ["run", str(tiny_bundle), *options]).exit_code == 2
