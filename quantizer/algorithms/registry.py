"""The registry of algorithms: a row here, and a file beside it with a function `quantize_rows`.

Nothing is imported before it is used, so that recipes and command lines can ask for the names.
"""

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
    "rtn": Method("rtn", False, "each weight to the nearest level"),
    "search": Method("grid_search", False, "the best grid for each group"),
    "gptq": Method("gptq", True, "errors passed on to the inputs that follow"),
}
