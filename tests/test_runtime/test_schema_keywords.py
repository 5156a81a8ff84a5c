"""Every keyword of JSON Schema (drafts 4 to 2020-12): an answer keeps it, or the request is refused; never ignored."""

import json

import jsonschema
import numpy as np
import pytest

from runtime.errors import RequestError
from runtime.options import SamplingParams
from runtime.sampling.grammar import Grammars, StructuredOutput
from runtime.sampling.sampler import Sampler

VOCAB, EOS = 320, 2
A = {"enum": ["a", "b"]}
N = {"type": "integer", "minimum": 0, "maximum": 3}
OBJECT = {"type": "object", "properties": {"a": N, "b": N}}
KEPT = {
    "type": {"type": ["integer", "null"], "minimum": 0, "maximum": 3},
    "enum": {"enum": [1, "a", None, True, [1], {"a": 1}]},
    "enum of a type": {"type": "string", "enum": ["a", 1]},
    "const": {"const": {"a": [1, {"b": None}]}},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "fraction": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
    "maximum": {"type": "number", "minimum": 1, "maximum": 3.5},
    "exclusiveMaximum": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    "maxLength": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^a[0-9]{2}$"},
    "pattern within": {"type": "string", "pattern": "a[0-9]", "maxLength": 8},
    "pattern and length": {"type": "string", "pattern": "^a*$", "maxLength": 2},
    "pattern and format": {"type": "string", "pattern": "^1", "format": "date"},
    "format": {"type": "string", "format": "date"},
    "items": {"type": "array", "items": A, "minItems": 1, "maxItems": 3},
    "items false": {"type": "array", "items": False},
    "additionalItems": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [A],
                        "additionalItems": False},
    "prefixItems": {"type": "array", "prefixItems": [A, N], "items": False, "minItems": 2},
    "required": OBJECT | {"required": ["b"]},
    "patternProperties": {"type": "object", "patternProperties": {"^x[0-9]$": A}, "maxProperties": 1},
    "patterns and names": OBJECT | {"patternProperties": {"^x[0-9]$": A}, "required": ["a"]},
    "patterns in an intersection": {"allOf": [{"patternProperties": {"^x[0-9]$": A}}, OBJECT], "type": "object"},
    "additionalProperties": OBJECT | {"additionalProperties": A, "required": ["a"]},
    "minProperties": OBJECT | {"minProperties": 1},
    "maxProperties": OBJECT | {"maxProperties": 1},
    "asks for nothing": {"type": "array", "items": A, "maxItems": 2, "uniqueItems": False, "minContains": 0},
    "depends on nothing": OBJECT | {"minProperties": 0, "dependentRequired": {}, "dependentSchemas": {}},
    "oneOf": {"oneOf": [N, A]},
    "anyOf": {"anyOf": [N, A]},
    "anyOf beside": OBJECT | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]},
    "allOf objects": {"allOf": [OBJECT | {"required": ["b"]}, {"properties": {"c": N}, "required": ["c"]}]},
    "$ref": {"$ref": "#/$defs/x", "$defs": {"x": N}, "maximum": 1, "description": "beside"},
    "definitions": {"$ref": "#/definitions/x", "definitions": {"x": N}},
    "$anchor": {"$ref": "#foo", "$defs": {"x": {"$anchor": "foo"} | N}},
    "$id": {"$id": "http://a/", "$ref": "x.json", "$defs": {"x": {"$id": "x.json"} | N}},
    "recursion": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["n"], "properties": {
        "n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}}},
    "true": {"type": "object", "properties": {"a": True, "b": N}, "required": ["b"]},
    "false": {"type": "object", "properties": {"a": False, "b": N}},
    "notes": N | {"title": "x", "default": 1, "examples": [1], "deprecated": True, "readOnly": True, "$comment": "c"},
}  # fmt: skip
REFUSED = {
    "exclusiveMaximum of draft 4": N | {"exclusiveMaximum": True},
    "exclusiveMinimum of draft 4": N | {"exclusiveMinimum": False},
    "const of another type": {"type": "string", "const": 1},
    "look-ahead": {"type": "string", "pattern": "^(?=a)a"},
    "format": {"type": "string", "format": "color"},
    "uniqueItems": {"type": "array", "items": A, "uniqueItems": True},
    "contains": {"type": "array", "items": A, "contains": {"const": "a"}},
    "minContains": {"type": "array", "items": A, "minContains": 2},
    "unevaluatedItems": {"type": "array", "prefixItems": [A], "unevaluatedItems": False},
    "unevaluatedProperties": OBJECT | {"unevaluatedProperties": False},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[ab]$"}},
    "dependentRequired": OBJECT | {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": OBJECT | {"dependencies": {"a": ["b"]}},
    "if": OBJECT | {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "else": OBJECT | {"else": {"required": ["b"]}},
    "not": N | {"not": {"const": 1}},
    "oneOf that overlaps": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]},
    "$dynamicRef": {"$dynamicRef": "#foo", "$defs": {"x": {"$dynamicAnchor": "foo"} | N}},
    "$recursiveRef": {"type": "object", "properties": {"a": {"$recursiveRef": "#"}}},
    "a reference to itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "a reference to nothing": {"$ref": "#/$defs/z"},
    "a required key that is not named": OBJECT | {"required": ["z"]},
    "a required key that cannot be": {"type": "object", "properties": {"a": False}, "required": ["a"]},
}


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, VOCAB, [EOS])


def answer(grammars, tokenizer, schema, seed):
    constraint = grammars.constraint(StructuredOutput(json_schema=schema))
    sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), VOCAB, stop_ids=[EOS], constraint=constraint)
    rng, ids = np.random.default_rng(seed), []
    while len(ids) < 300:
        ids.append(sampler.sample(rng.standard_normal(VOCAB).astype(np.float32)).token_id)
        if ids[-1] == EOS:
            return tokenizer.decode(ids)
    return None


@pytest.mark.parametrize("keyword", KEPT)
def test_a_keyword_is_kept(grammars, tokenizer, keyword):
    schema = KEPT[keyword]
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    texts = [answer(grammars, tokenizer, schema, seed) for seed in range(6)]
    assert sum(text is not None for text in texts) >= 3  # it does not ramble
    for text in texts:
        if text is not None:
            kind(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))


@pytest.mark.parametrize("keyword", REFUSED)
def test_a_keyword_is_refused(grammars, keyword):
    with pytest.raises(RequestError, match="structured output: json_schema"):
        grammars.constraint(StructuredOutput(json_schema=REFUSED[keyword]))
