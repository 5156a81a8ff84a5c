"""What an execution provider can do, as far as graphs and their export ask."""

from dataclasses import dataclass
from typing import Literal

Element = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Provider:
    """One provider; its kernels are in kernels.json. Where it runs, runtime/ort/providers.py says what it is called.

    Args:
        name: of the target, as users write it.
        title: what messages call it.
        dtypes: that graphs compute in; the first is the default.
        runs_here: graphs for it run wherever they are exported, so that they can be verified at once.
        halves_in_single: what it has no float16 kernel for, it computes in float32, casting before and behind.
        pages: it has PagedAttention.
        kernels: the provider that takes the nodes it has no kernel for, such as "cpu"; "" where there is none.
    """

    name: str
    title: str
    dtypes: tuple[Element, ...]
    runs_here: bool = False
    halves_in_single: bool = False
    pages: bool = False
    kernels: str = ""

    @property
    def kernel_column(self) -> str:
        """Whose kernels it has in kernels.json."""
        return self.kernels or self.name
