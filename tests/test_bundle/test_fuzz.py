"""Two thousand broken manifests and cut files: always an error of ours, never another, never a hang."""

import contextlib
import copy
import json
import random

import pytest

from runtime.bundle.bundle import open_bundle
from runtime.bundle.manifest import dump_manifest, parse_manifest
from runtime.errors import BundleError, ManifestError

VALUES = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, "", "x", "\x00", "\ud800",
    "../x", "float64", "9" * 5000, [], {}, [[]], [None], {"": None}, ["batch"] * 50, {"name": "x"},
]  # fmt: skip


def spots(node, path=()):
    """The path of every value in a JSON document."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from spots(item, (*path, key))


def mutate(document, rng):
    """Replace, remove, duplicate or rename one value somewhere in the document."""
    *parents, last = rng.choice([path for path in spots(document) if path])
    for part in parents:
        document = document[part]
    kind = rng.randrange(4)
    if kind == 0:
        document[last] = rng.choice(VALUES)
    elif kind == 1:
        del document[last]
    elif isinstance(document, list):
        document.insert(last, document[rng.randrange(len(document))] if kind == 2 else rng.choice(VALUES))
    else:
        document[rng.choice(["", "x", last + "x", last.upper(), "é", "a/../b"])] = document.pop(last)


def scramble(text, rng):
    """Cut, flip or repeat characters of the text, where JSON itself breaks."""
    at = rng.randrange(len(text))
    kind = rng.randrange(3)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + chr(rng.choice([0, 34, 44, 91, 92, 123, 0xD800, 0x1F600])) + text[at + 1 :]
    return text[:at] + text[at : at + rng.randrange(1, 200)] * rng.randrange(2, 50) + text[at:]


@pytest.mark.timeout(60)
def test_mutated_manifests_raise_our_errors_only(example):
    rng, messages = random.Random(1), []
    for _ in range(1500):
        document = copy.deepcopy(example)
        for _ in range(rng.randrange(1, 4)):
            mutate(document, rng)
        try:
            manifest = parse_manifest(json.dumps(document))
        except ManifestError as error:
            messages.append(str(error))
        else:  # what is accepted must be writable, and mean the same again
            assert parse_manifest(dump_manifest(manifest)) == manifest
    assert len(messages) > 1000
    assert all(message.encode() for message in messages)  # printable: no half surrogate gets through


@pytest.mark.timeout(60)
def test_scrambled_text_raises_our_errors_only(example):
    rng, text, refused = random.Random(2), json.dumps(example, indent=1), 0
    for _ in range(500):
        try:
            parse_manifest(scramble(text, rng))
        except ManifestError:
            refused += 1
    assert refused > 300


@pytest.mark.timeout(60)
def test_scrambled_and_cut_files_raise_our_errors_only(folder):
    rng = random.Random(3)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(500):
        name = rng.choice(list(whole))
        data = bytearray(whole[name])
        if rng.random() < 0.5:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        (folder / name).write_bytes(data)
        if bytes(data) != whole[name] and name != "manifest.json":
            with pytest.raises(BundleError):
                open_bundle(folder, verify=True)
        else:
            open_or_refuse(folder)
        (folder / name).write_bytes(whole[name])
    assert open_bundle(folder, verify=True)


def open_or_refuse(folder):
    """A flipped bit may leave the manifest valid (a name, a measured number): then it opens, and that is fine."""
    with contextlib.suppress(BundleError):
        open_bundle(folder)
