"""SmolLM 3."""

from collections.abc import Mapping

from ..family import GgufFamily, standard
from ..orders import HALVES

ARCHITECTURES: Mapping[str, GgufFamily] = {
    "smollm3": GgufFamily("smollm3", {}, standard, HALVES),
}
