"""Tiny models of every family, exported once."""

import pytest
from tiny_families import CASES, save_random


@pytest.fixture(scope="session")
def make_family(tmp_path_factory, make_bundle):
    """The float bundle of one of the tiny models, by what its case is called."""
    made = {}

    def make_family(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("family")
            save_random(next(case for case in CASES if str(case) == name), folder)
            made[name] = make_bundle(folder)
        return made[name]

    return make_family
