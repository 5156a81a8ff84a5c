"""Small plots as SVG text: no library, no script, nothing loaded from elsewhere."""

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 640, 260, 56
_INK, _LINE = "#333", "#1668b8"


def line_plot(title: str, xs: Sequence[float], ys: Sequence[float], x_name: str, y_name: str) -> str:
    """Points joined by a line."""
    frame = _Frame(xs, ys)
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(xs, ys, strict=True))
    return _svg(title, frame, x_name, y_name, f'<polyline points="{path}" fill="none" stroke="{_LINE}"/>')


def scatter_plot(
    title: str, xs: Sequence[float], ys: Sequence[float], names: Sequence[str], x_name: str, y_name: str
) -> str:
    """Points with their names."""
    frame = _Frame(xs, ys)
    marks = [
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="4" fill="{_LINE}"/>'
        f'<text x="{frame.x(x) + 7:.1f}" y="{frame.y(y) - 5:.1f}" font-size="11" fill="{_INK}">{escape(name)}</text>'
        for x, y, name in zip(xs, ys, names, strict=True)
    ]
    return _svg(title, frame, x_name, y_name, "".join(marks))


def bar_plot(title: str, names: Sequence[str], ys: Sequence[float], y_name: str) -> str:
    """One bar for each name; hovering shows it."""
    frame = _Frame([-0.5, len(ys) - 0.5], [0.0, *ys])
    width = max(1.0, 0.8 * (_WIDTH - 2 * _MARGIN) / max(1, len(ys)))
    bars = [
        f'<rect x="{frame.x(i) - width / 2:.1f}" y="{frame.y(y):.1f}" width="{width:.1f}" fill="{_LINE}" '
        f'height="{frame.y(0) - frame.y(y):.1f}"><title>{escape(name)}: {y:.4g}</title></rect>'
        for i, (name, y) in enumerate(zip(names, ys, strict=True))
    ]
    return _svg(title, frame, "in order of the graph", y_name, "".join(bars))


class _Frame:
    """Data coordinates to those of the picture; y begins at zero."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.low, self.high = min(xs, default=0.0), max(xs, default=1.0)
        self.top = max(ys, default=1.0) or 1.0

    def x(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return _MARGIN + (value - self.low) / span * (_WIDTH - 2 * _MARGIN)

    def y(self, value: float) -> float:
        return _HEIGHT - _MARGIN - value / self.top * (_HEIGHT - 2 * _MARGIN)


def _svg(title: str, frame: _Frame, x_name: str, y_name: str, marks: str) -> str:
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    axes = f'<path d="M{_MARGIN},{_MARGIN} V{bottom} H{right}" fill="none" stroke="{_INK}"/>'
    labels = [
        (_WIDTH / 2, 20, "middle", title),
        (_WIDTH / 2, _HEIGHT - 12, "middle", x_name),
        (_MARGIN, bottom + 18, "middle", f"{frame.low:.4g}"),
        (right, bottom + 18, "middle", f"{frame.high:.4g}"),
        (_MARGIN - 6, _MARGIN + 4, "end", f"{frame.top:.3g}"),
        (_MARGIN - 6, bottom, "end", "0"),
        (_MARGIN, _MARGIN - 10, "start", y_name),
    ]
    texts = "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="12" fill="{_INK}">{escape(text)}</text>'
        for x, y, anchor, text in labels
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">{axes}{texts}{marks}</svg>'
