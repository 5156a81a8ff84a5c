"""What an execution provider can do, as far as graphs and their export ask."""

from dataclasses import dataclass
from typing import Literal

Element = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Provider:
    """One provider; its kernels are in kernels.json.

    Args:
        name: of the target, as users write it.
        title: what messages call it.
        dtypes: that graphs compute in; the first is the default.
        runs_here: graphs for it run wherever they are exported, so that they can be verified at once.
    """

    name: str
    title: str
    dtypes: tuple[Element, ...]
    runs_here: bool = False
