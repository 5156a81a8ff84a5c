"""`__all__` is what a package offers: no more, no less."""

import importlib
from types import ModuleType

import pytest

import runtime

PACKAGES = ["exporter", "models", "quantizer", "runtime", "exporter.checkpoint"]


def public_names(package: ModuleType) -> set[str]:
    """What a user sees without an underscore, submodules aside."""
    members = vars(package).items()
    return {name for name, value in members if not name.startswith("_") and not isinstance(value, ModuleType)}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_every_public_name(name):
    package = importlib.import_module(name)
    for offered in getattr(package, "__all__", ()):  # some are imported when they are first used
        getattr(package, offered)
    assert set(getattr(package, "__all__", ())) == public_names(package)


@pytest.mark.parametrize("name", PACKAGES)
def test_everything_offered_is_documented(name):
    package = importlib.import_module(name)
    offered = [getattr(package, each) for each in getattr(package, "__all__", ())]
    assert [each for each in offered if not (each.__doc__ or "").strip()] == []


def test_errors_are_offered_where_they_are_raised():
    import runtime
    from runtime import errors

    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert raised <= set(runtime.__all__)


def test_an_old_name_still_works_and_says_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"runtime\.OutputDelta"):
        assert runtime.Delta is runtime.OutputDelta
