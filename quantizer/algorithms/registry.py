"""The registry of algorithms: a row here, and a file beside it with a function `quantize_rows`.

Nothing is imported before it is used, so that recipes and command lines can ask for the names.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """How codes are chosen.

    Attributes:
        module: the file, in this folder.
        needs_text: whether it asks for the Hessian of a matrix's inputs, which comes from calibration text.
        help: in a few words.
    """

    module: str
    needs_text: bool
    help: str


METHODS = {
    "rtn": Method("rtn", False, "each weight to the nearest level, fastest"),
    "search": Method("grid_search", False, "the best grid for each group"),
    "gptq": Method("gptq", True, "errors passed on to the inputs that follow"),
}
# Meant where no method is named: without text, and where only text tells what is wanted.
DEFAULT, CALIBRATED = "search", "gptq"


def method_names(*, needs_text: bool) -> list[str]:
    """The algorithms that need calibration text, or those that need none."""
    return [name for name, method in METHODS.items() if method.needs_text is needs_text]


def explain_methods(names: Iterable[str] = METHODS) -> str:
    """A line of help: each algorithm and what it does."""
    return "; ".join(f"{name}: {METHODS[name].help}" for name in names) + "."
