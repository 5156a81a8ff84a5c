"""manifest.json: read and written strictly; every rule of FORMAT.md that one file can break, broken once."""

import json
from dataclasses import replace

import pytest

from runtime.bundle.manifest import FORMAT_VERSION, READABLE_VERSIONS, FileEntry, dump_manifest, parse_manifest
from runtime.errors import BundleError, FormatVersionError, ManifestError


def test_the_example_of_the_specification_survives_a_round_trip(example):
    manifest = parse_manifest(json.dumps(example))
    assert parse_manifest(dump_manifest(manifest)) == manifest
    assert json.loads(dump_manifest(manifest)) == example


def test_keys_are_written_in_the_order_of_the_specification(example):
    written = json.loads(dump_manifest(parse_manifest(json.dumps(example))))
    assert list(written) == list(example)


def test_what_is_not_measured_may_be_absent(example):
    del example["quality"], example["quantization"]
    manifest = parse_manifest(json.dumps(example))
    assert manifest.quality is None
    assert manifest.quantization is None


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (FORMAT_VERSION + 1, "upgrade onnxlm"),
        (FORMAT_VERSION - len(READABLE_VERSIONS), "export the model again"),
        (-1, "export the model again"),
    ],
)
def test_another_version_is_refused_by_number(example, version, words):
    with pytest.raises(FormatVersionError, match=f"format_version {version} is not readable.*{words}"):
        parse_manifest(json.dumps(example | {"format_version": version}))


def test_a_newer_version_is_named_even_when_its_keys_are_unknown():
    with pytest.raises(FormatVersionError, match="format_version 99"):
        parse_manifest('{"format_version": 99, "streams": []}')


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "3", '"x"', '{"format_version": true}', "\x00", "{" * 100_000]
)
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        parse_manifest(text)


def set_at(document, path, value):
    """Replace the value at a dotted path; a number walks into a list."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in parents:
        document = document[part]
    document[last] = value


LAYER = "architecture/layers/0"
PREFILL, DECODE = "graphs/prefill", "graphs/decode"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("producer/version", 1, "producer.version: expected a string"),
        ("architecture/vocab_size", 0, "vocab_size must be at least 1"),
        ("architecture/parameters", -5, "parameters must be at least 1"),
        ("architecture/layers", [], "layers must be at least 1"),
        (f"{LAYER}/kv_heads", 3, "not a multiple"),
        (f"{LAYER}/kv_heads", 0, "kv_heads must be at least 1"),
        (f"{LAYER}/attention", "sliding", "window must be given"),
        (f"{LAYER}/window", 8, "window must be given for sliding attention, and only for it"),
        (f"{LAYER}/head_dim", 32, r"has shape \['batch', 2, 'capacity', 16\], not \['batch', 2, 'capacity', 32\]"),
        ("kv_cache/bytes_per_token", 255, "bytes_per_token is 255, but the layers need 256 in float32"),
        ("kv_cache/bytes_per_token", -256, "bytes_per_token"),
        ("kv_cache/dtype", "float16", "past_key_values.0.key is float32, not float16"),
        ("kv_cache/layout", "batch,capacity", "kv_cache.layout: expected one of"),
        ("tokens/eos", [300], "id 300 is outside the vocabulary of 300"),
        ("tokens/bos", -1, "id -1 is outside"),
        ("target/provider", "TPU 5", "provider must be a name such as cpu or cuda"),
        ("target/min_onnxruntime", "latest", "must look like 1.31"),
        ("source/sha256", "abc", "64 lower-case hexadecimal"),
        ("quantization/calibration/tokens", -1, "tokens must not be negative"),
        ("quantization/tensors/0/bits", 0, "bits must be at least 1"),
        ("quantization/tensors/0/outliers", -1, "outliers must not be negative"),
        ("files/weights.bin/size", -1, "size must not be negative"),
        ("files/weights.bin/sha256", "A" * 64, "64 lower-case hexadecimal"),
    ],
)
def test_a_value_that_cannot_be_is_refused(example, path, value, words):
    set_at(example, path, value)
    with pytest.raises(ManifestError, match=words):
        parse_manifest(json.dumps(example))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (f"{PREFILL}/inputs/3/role", "input_ids", r"graphs.prefill.inputs: 2 ports of role input_ids, not 1"),
        (f"{PREFILL}/inputs/3/role", "logits", "logits_index has the role logits, which does not belong here"),
        (f"{PREFILL}/inputs/0/name", "seqlens_k", "the name 'seqlens_k' appears twice"),
        (f"{PREFILL}/inputs/0/name", "", "a port needs a name"),
        (f"{PREFILL}/inputs/0/dtype", "int32", "input_ids is int32, not int64"),
        (f"{PREFILL}/inputs/1/shape", ["batch", 1], r"seqlens_k has shape \['batch', 1\], not \['batch'\]"),
        (f"{PREFILL}/inputs/1/shape", [0], "sizes that are symbols or at least 1"),
        (f"{PREFILL}/inputs", [], "0 ports of role input_ids, not 1"),
        (f"{DECODE}/inputs/0/shape", ["batch", "sequence"], r"graphs.decode.inputs: input_ids has shape"),
        (f"{DECODE}/outputs/0/shape", ["batch", 299], r"logits has shape \['batch', 299\]"),
        (f"{DECODE}/outputs/0/dtype", "int64", "logits is int64, not float32 or float16"),
        (f"{DECODE}/outputs/1/dtype", "int8", "present.0.key is int8, not float32"),
    ],
)
def test_a_graph_without_exactly_its_ports_is_refused(example, path, value, words):
    set_at(example, path, value)
    with pytest.raises(ManifestError, match=words):
        parse_manifest(json.dumps(example))


def test_decode_has_no_logits_index(example):
    example["graphs"]["decode"]["inputs"].append(example["graphs"]["prefill"]["inputs"][3])
    with pytest.raises(ManifestError, match="logits_index has the role logits_index, which does not belong here"):
        parse_manifest(json.dumps(example))


def test_every_layer_has_its_cache(example):
    example["architecture"]["layers"] *= 2
    example["kv_cache"]["bytes_per_token"] *= 2
    with pytest.raises(ManifestError, match="1 ports of role past_key, not 2"):
        parse_manifest(json.dumps(example))


BAD_NAMES = [
    "../weights.bin", "/etc/passwd", "a/../b", "./a", "a//b", "a/", "a\\b", "C:weights.bin", "", ".", "..", "a\x00b",
    "a\nb", "-rf", ".hidden", "~/a", "ä.bin", "manifest.json", "Manifest.JSON", "x" * 201, "a b", "a/.b",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_leave_the_folder_is_refused(example, name):
    example["files"][name] = example["files"]["weights.bin"]
    with pytest.raises(ManifestError, match="is not a plain path inside the bundle"):
        parse_manifest(json.dumps(example))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_graph_file_obeys_the_same_rule(example, name):
    example["graphs"]["decode"]["file"] = name
    with pytest.raises(ManifestError, match="is not a plain path inside the bundle"):
        parse_manifest(json.dumps(example))


def test_names_that_differ_in_case_only_are_refused(example):
    example["files"]["Weights.bin"] = example["files"]["weights.bin"]
    with pytest.raises(ManifestError, match="differ only in case"):
        parse_manifest(json.dumps(example))


def test_a_file_in_a_folder_of_the_bundle_is_fine(example):
    example["files"]["extra/notes-1.txt"] = example["files"]["weights.bin"]
    assert "extra/notes-1.txt" in parse_manifest(json.dumps(example)).files


def test_the_writer_obeys_the_rules_too(example):
    manifest = parse_manifest(json.dumps(example))
    with pytest.raises(ValueError, match="not a plain path"):
        replace(manifest, files={"../x": FileEntry(1, "0" * 64)})


def test_manifest_errors_are_bundle_errors():
    assert issubclass(FormatVersionError, ManifestError)
    assert issubclass(ManifestError, BundleError)
