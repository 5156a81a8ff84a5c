"""A report as one HTML file that needs nothing else, light or dark as the reader's screen is."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from runtime.errors import QuantizationError

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2328; --faint: #d8dee4;
  --series-0: #0b6bcb; --series-1: #c4441f; --series-2: #6b7a1e; --series-3: #8250df;
  --series-4: #b35900; --series-5: #0f766e; --series-6: #bf3989; --series-7: #57606a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #dfe4ea; --faint: #343b44;
  --series-0: #58a6ff; --series-1: #ff8f6b; --series-2: #b5c95a; --series-3: #bc9bff;
  --series-4: #f0a04b; --series-5: #4fd1c5; --series-6: #ff8ac4; --series-7: #a0a8b2; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink); }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid var(--faint); }
td:first-child, th:first-child { text-align: left; }
svg { display: block; width: 100%; height: auto; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The document around its parts."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, figures to the right."""
    names = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<tr>{names}</tr>\n{lines}</table></div>'


def paragraph(words: str) -> str:
    """A sentence."""
    return f"<p>{escape(words)}</p>"


def require_writable(path: Path) -> None:
    """Refuse a report that could not be written, before anything is computed.

    Raises:
        QuantizationError: its folder does not exist or cannot be written, or a folder is in its place.
    """
    folder = path.absolute().parent
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise QuantizationError(f"{path}: cannot be written. Name a file in a folder that exists and is writable.")


def write_page(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        QuantizationError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise QuantizationError(f"{path}: cannot be written ({error.strerror or error}).") from error
