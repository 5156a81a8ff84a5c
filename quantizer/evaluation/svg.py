"""matplotlib's figures as SVG inside a page: text stays text, colours are the page's, nothing is loaded."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from runtime.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#0a0b0c", "#0a0b0d"  # stand for variables of the page's style until the figure is text
SERIES = tuple(f"#0a0b{number:02x}" for number in range(0x10, 0x18))
_VARIABLES = {INK: "--ink", FAINT: "--faint", **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)}}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK),
    "grid.color": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_TIP = "tip-"


def require_matplotlib() -> None:
    """Refuse a report that could not be drawn, before anything is computed.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--html draws its plots with matplotlib, which is not installed: pip install 'onnxlm[report]'. "
            "Without --html the same figures are printed, and with --json all of them."
        ) from error


@contextmanager
def page_style() -> Iterator[None]:
    """matplotlib's settings for figures of a report, while one is drawn."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


class Tips:
    """Words that a browser shows while the mouse is over a mark."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def add(self, artist: Any, words: str) -> None:
        """Give `artist` of a figure its words."""
        artist.set_gid(f"{_TIP}{len(self._words)}")
        self._words.append(words)

    def title(self, match: re.Match[str]) -> str:
        """The group that a match of `id="tip-N"` opens, with its words inside."""
        return f"<g><title>{escape(self._words[int(match[1])])}</title>"


def as_svg(figure: "Figure", title: str, tips: Tips) -> str:
    """The figure under its title as elements for a page."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata=_NO_METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg\b[^>]*viewBox=\"([^\"]*)\"[^>]*>", _opening(title), text, count=1)
    text = re.sub(rf'<g id="{_TIP}(\d+)">', tips.title, text)
    text = _with_own_names(_with_variables(text, _VARIABLES), re.sub(r"\W+", "-", title.lower()))
    return f"<h2>{escape(title)}</h2>\n{text.strip()}"


def _opening(title: str) -> str:
    return rf'<svg viewBox="\1" role="img" aria-label="{escape(title)}">'.replace("\\&", "&")


def _with_variables(text: str, variables: Mapping[str, str]) -> str:
    """Colours that stand for a variable become it, in styles and in attributes."""
    return re.sub("|".join(variables), lambda match: f"var({variables[match[0]]})", text)


def _with_own_names(text: str, prefix: str) -> str:
    """Names of clip paths and marks that no other figure of the page has; others are dropped."""
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
    return re.sub(r"(url\(|href=\")#([\w-]+)", rf"\1#{prefix}-\2", text)
