import json
import re
import sys
from typing import Literal

import numpy as np
import pytest

import runtime
from runtime.errors import ExecutionError, MissingDependencyError, RequestError
from runtime.options import SamplingParams
from runtime.sampling.grammar import Grammars, StructuredOutput
from runtime.sampling.sampler import Sampler
from runtime.sampling.schema import closed

VOCAB = 330  # ten more than the tokenizer has
EOS = 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob", "Zoë"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, VOCAB, [EOS])


@pytest.fixture(scope="module")
def llm(tiny_bundle):
    with runtime.LLM(tiny_bundle) as llm:
        yield llm


def answer(grammars, tokenizer, wanted, seed=0, limit=400):
    """An answer that a model without any idea would give; None if it did not end."""
    sampler = Sampler(
        SamplingParams(temperature=1.0, seed=seed), VOCAB, stop_ids=[EOS], constraint=grammars.constraint(wanted)
    )
    rng, ids = np.random.default_rng(seed), []
    while len(ids) < limit:
        ids.append(sampler.sample(rng.standard_normal(VOCAB).astype(np.float32)).token_id)
        if ids[-1] == EOS:
            return tokenizer.decode(ids)
    return None


def test_a_pydantic_model_is_its_schema(llm):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        sure: bool
        side: Literal["left", "right"]

    answer = llm.generate("the", structured=Person, max_tokens=200, temperature=1.0, seed=3)
    assert Person.model_validate_json(answer.text).side in ("left", "right")
    for given in (Person, pydantic.TypeAdapter(Person)):
        assert json.loads(StructuredOutput(json_schema=given).source) == Person.model_json_schema()
    with pytest.raises(RequestError, match="a StructuredOutput or a pydantic model"):
        llm.generate("the", structured=dict)


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_is_kept(grammars, tokenizer, seed):
    person = json.loads(answer(grammars, tokenizer, StructuredOutput(json_schema=PERSON), seed))
    assert person["name"] in ("Ann", "Bob", "Zoë")
    assert 0 <= person["age"] <= 150
    assert set(person["tags"]) <= {"a", "b"}


def test_a_schema_may_be_text(grammars, tokenizer):
    wanted = StructuredOutput(json_schema=json.dumps({"const": [1, "é"]}))
    assert json.loads(answer(grammars, tokenizer, wanted)) == [1, "é"]


def test_blanks_are_bounded(grammars, tokenizer):
    texts = [answer(grammars, tokenizer, StructuredOutput(json_schema=PERSON), seed) for seed in range(20)]
    assert max(len(re.search(r"\s*$", line)[0]) for text in texts for line in text.splitlines()) <= 16


def test_a_json_object_is_an_object(grammars, tokenizer):
    texts = [answer(grammars, tokenizer, StructuredOutput(json_object=True), seed, 4000) for seed in range(5)]
    assert all(isinstance(json.loads(text), dict) for text in texts if text is not None)
    assert any(text is not None for text in texts)


def test_a_regex_matches_as_a_whole(grammars, tokenizer):
    for seed in range(5):
        text = answer(grammars, tokenizer, StructuredOutput(regex="[0-9]{3}-(é|👍)"), seed)
        assert re.fullmatch("[0-9]{3}-(é|👍)", text)


def test_a_choice_is_one_of_them(grammars, tokenizer):
    choices = ("yes", 'n"o', "né\n")
    answers = {answer(grammars, tokenizer, StructuredOutput(choice=choices), seed) for seed in range(20)}
    assert answers <= set(choices)
    assert len(answers) > 1


def test_a_grammar_is_kept(grammars, tokenizer):
    wanted = StructuredOutput(lark='start: pair+\npair: "(" /[a-c]/ ")"')
    assert re.fullmatch(r"(\([a-c]\))+", answer(grammars, tokenizer, wanted))


def test_only_the_end_is_allowed_after_the_end(grammars):
    constraint = grammars.constraint(StructuredOutput(choice=["a"]))
    letter = int(np.flatnonzero(constraint.allowed())[0])
    assert not constraint.complete
    constraint.advance(letter)
    assert constraint.complete
    assert list(np.flatnonzero(constraint.allowed())) == [EOS]


def test_a_forbidden_token_is_an_error(grammars):
    with pytest.raises(ExecutionError, match="cannot go on"):
        grammars.constraint(StructuredOutput(choice=["a"])).advance(EOS)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b"])
def test_text_spelled_like_a_control_token_fails_rather_than_ends(grammars, tokenizer, text):
    with pytest.raises(ExecutionError):
        answer(grammars, tokenizer, StructuredOutput(choice=[text]))


def test_two_answers_do_not_share_a_state(grammars):
    first, second = (grammars.constraint(StructuredOutput(choice=["ab"])) for _ in range(2))
    first.advance(int(np.flatnonzero(first.allowed())[0]))
    assert not np.array_equal(first.allowed(), second.allowed())


@pytest.mark.parametrize(
    "wanted",
    [
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": {"not": {"type": "string"}}},
        {"json_schema": {"type": "array", "uniqueItems": True}},
        {"json_schema": {"type": "string", "format": "nonsense"}},
        {"json_schema": {"type": "string", "pattern": "(?=a)b"}},
        {"json_schema": {"$ref": "http://example.com/schema"}},
        {"json_schema": {"$ref": "file:///etc/passwd"}},
        {"regex": "("},
        {"regex": "(?=a)b"},
        {"lark": "start: nobody"},
        {"lark": "start: <nobody>"},
        {"lark": "no grammar"},
    ],
)
def test_what_cannot_be_enforced_is_refused(grammars, wanted):
    with pytest.raises(RequestError, match="structured output: "):
        grammars.constraint(StructuredOutput(**wanted))


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"regex": "a", "json_object": True},
        {"json_schema": "{"},
        {"json_schema": "[]"},
        {"json_schema": {"a": float("nan")}},
        {"json_schema": {"a": object()}},
        {"json_schema": 5},
        {"json_object": "yes"},
        {"regex": ""},
        {"regex": 5},
        {"choice": []},
        {"choice": "yes"},
        {"choice": ["yes", ""]},
        {"choice": [1]},
        {"regex": "a" * 300_000},
    ],
)
def test_what_is_malformed_is_refused_at_once(wanted):
    with pytest.raises(RequestError, match=r"[Ss]tructured output"):
        StructuredOutput(**wanted)


def test_a_schema_nested_without_end_is_refused():
    schema = {}
    schema["items"] = schema
    with pytest.raises(RequestError, match="structured output"):
        StructuredOutput(json_schema=schema)


def test_it_does_not_go_with_forced_lengths():
    for forced in ({"min_tokens": 1}, {"ignore_eos": True}):
        with pytest.raises(RequestError, match="neither min_tokens nor ignore_eos"):
            SamplingParams(structured=StructuredOutput(json_object=True), **forced)
    with pytest.raises(RequestError, match="must be a StructuredOutput"):
        SamplingParams(structured={"json_object": True})


def test_a_model_without_an_end_is_refused(tokenizer):
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        Grammars(tokenizer, VOCAB, []).constraint(StructuredOutput(regex="a"))


def test_without_the_package_the_extra_is_named(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingDependencyError, match=r"onnxlm\[structured\]"):
        Grammars(tokenizer, VOCAB, [EOS]).constraint(StructuredOutput(regex="a"))


def test_requests_side_by_side_keep_to_their_own(llm):
    wanted = [StructuredOutput(regex="[0-9]{4}"), StructuredOutput(choice=["red", "green"]), None]
    params = [SamplingParams(structured=one, max_tokens=8, temperature=1.0, seed=1) for one in wanted]
    alone = [llm.generate("Hi", one).text for one in params]
    streams = [llm.stream("Hi", one) for one in params]
    together = ["".join(delta.text for delta in stream) for stream in streams]
    assert together == alone
    assert re.fullmatch("[0-9]{4}", together[0])
    assert together[1] in ("red", "green")


def test_an_answer_ends_by_itself(llm):
    completion = llm.generate("Hi", SamplingParams(structured=StructuredOutput(choice=["red"]), max_tokens=20))
    assert (completion.text, completion.finish_reason) == ("red", "stop")


def test_what_does_not_compile_is_refused_before_it_runs(llm):
    with pytest.raises(RequestError, match="structured output"):
        llm.stream("Hi", SamplingParams(structured=StructuredOutput(regex="(")))


def test_objects_are_closed_unless_the_schema_opens_them():
    inner = {"type": "object", "properties": {"b": {"enum": [1]}}}
    assert closed({"properties": {"a": inner}})["properties"]["a"]["additionalProperties"] is False
    assert closed(inner | {"additionalProperties": {"type": "string"}})["additionalProperties"] == {"type": "string"}
    assert "additionalProperties" not in closed({"type": "object"})
    assert closed({"enum": [{"properties": {}}]}) == {"enum": [{"properties": {}}]}


def test_parts_of_an_intersection_are_closed_together():
    part = {"$ref": "#/$defs/base"}
    schema = {"allOf": [part, {"properties": {"b": {}}}], "$defs": {"base": {"properties": {"a": {}}}}}
    made = closed(schema)
    assert made == schema | {"properties": {"a": True, "b": True}, "additionalProperties": False}
    assert closed(schema | {"allOf": [part]})["$defs"]["base"]["additionalProperties"] is False
    opened = {"allOf": [part, {"properties": {"b": {}}, "additionalProperties": True}], "$defs": schema["$defs"]}
    assert closed(opened) == opened


@pytest.mark.parametrize("seed", range(3))
def test_an_object_that_does_not_say_so_is_closed_too(grammars, tokenizer, seed):
    schema = {"type": "object", "properties": {"b": {"enum": [1]}, "a": {"enum": [2]}}, "required": ["a", "b"]}
    text = answer(grammars, tokenizer, StructuredOutput(json_schema=schema), seed)
    assert json.loads(text, object_pairs_hook=list) == [("b", 1), ("a", 2)]
