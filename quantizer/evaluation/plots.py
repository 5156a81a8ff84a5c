"""The plots of reports: lines, stacked bars, and points with their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .svg import INK, SERIES, Tips, as_svg, page_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (7.2, 3.2)  # inches of 72 pixels; the page scales it
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_FULLEST = 16  # names on the axis under bars
_OFFSETS = (
    (6, 4, "left"),
    (6, -10, "left"),
    (-6, 4, "right"),
    (-6, -10, "right"),
    (0, 9, "center"),
    (0, -15, "center"),
)


@dataclass(frozen=True)
class Point:
    """A named point; points of one `who` share a colour and a mark."""

    name: str
    who: str
    x: float
    y: float


@dataclass(frozen=True)
class Labels:
    """What a plot shows, with units on both axes."""

    title: str
    x: str
    y: str


def line_plot(labels: Labels, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """One line of `(xs, ys)` for each name; y begins at zero."""
    with page_style():
        axes = _axes(labels)
        for number, (name, (xs, ys)) in enumerate(lines.items()):
            axes.plot(xs, ys, color=_colour(number), marker=_mark(number), markersize=3, label=name)
        axes.set_ylim(bottom=0)
        _legend(axes, len(lines))
        return as_svg(_figure(axes), labels.title, Tips())


def bar_plot(labels: Labels, names: Sequence[str], stacks: Mapping[str, Sequence[float]]) -> str:
    """One bar for each name; the values of all `stacks` lie on top of each other."""
    tips = Tips()
    with page_style():
        axes = _axes(labels)
        bottoms = [0.0] * len(names)
        for number, (stack, heights) in enumerate(stacks.items()):
            bars = axes.bar(range(len(names)), heights, 0.8, bottoms, color=_colour(number), label=stack)
            for bar, name, height in zip(bars, names, heights, strict=True):
                tips.add(bar, f"{name}, {stack}: {height:.4g}" if len(stacks) > 1 else f"{name}: {height:.4g}")
            bottoms = [low + height for low, height in zip(bottoms, heights, strict=True)]
        _name_bars(axes, names)
        axes.grid(axis="x", visible=False)
        _legend(axes, len(stacks))
        return as_svg(_figure(axes), labels.title, tips)


def point_plot(labels: Labels, points: Sequence[Point]) -> str:
    """Named points; the y axis is logarithmic if all values are positive."""
    tips = Tips()
    whose = list(dict.fromkeys(point.who for point in points))
    with page_style():
        axes = _axes(labels)
        if all(point.y > 0 for point in points):
            _log_scale(axes)
        for point in points:
            number = whose.index(point.who)
            (mark,) = axes.plot(point.x, point.y, _mark(number), color=_colour(number), markersize=6)
            tips.add(mark, f"{point.who} {point.name}: {point.x:.4g}, {point.y:.4g}")
        for number, who in enumerate(whose):
            axes.plot([], [], _mark(number), color=_colour(number), label=who)
        axes.margins(x=0.16, y=0.14)
        _legend(axes, len(whose))
        _name_points(axes, points)
        return as_svg(_figure(axes), labels.title, tips)


def _axes(labels: Labels) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure(figsize=_SIZE, layout="constrained").add_subplot()
    axes.set(xlabel=labels.x, ylabel=labels.y)
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _log_scale(axes: "Axes") -> None:
    """Ticks at 1, 2 and 5 of each power of ten, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _figure(axes: "Axes") -> Any:
    return axes.get_figure()


def _name_bars(axes: "Axes", names: Sequence[str]) -> None:
    """As many names as there is room for, the first and the last among them."""
    step = max(1, -(-len(names) // _FULLEST))
    words = [i for i, name in enumerate(names) if not name.isdigit()]
    numbers = [i for i, name in enumerate(names) if name.isdigit() and int(name) % step == 0]
    shown = sorted([*words, *(i for i in numbers if step == 1 or all(abs(i - word) > 1 for word in words))])
    axes.set_xticks(shown, [names[i] for i in shown])
    axes.margins(x=0.01)


def _name_points(axes: "Axes", points: Sequence[Point]) -> None:
    """Each name beside its point, where it covers no other name if there is such a place."""
    canvas = _figure(axes).canvas
    _figure(axes).draw_without_rendering()  # limits and layout are known from now on
    taken: list[Any] = []
    for point in points:
        for dx, dy, align in _OFFSETS:
            place: dict[str, Any] = {
                "xytext": (dx, dy),
                "textcoords": "offset points",
                "ha": align,
                "fontsize": 8,
                "color": INK,
            }
            text = axes.annotate(point.name, (point.x, point.y), **place)
            box = text.get_window_extent(canvas.get_renderer() if hasattr(canvas, "get_renderer") else None)
            if not any(box.overlaps(other) for other in taken):
                break
            if (dx, dy, align) != _OFFSETS[-1]:
                text.remove()
        taken.append(box)


def _legend(axes: "Axes", count: int) -> None:
    if count > 1:
        axes.legend(fontsize=8)


def _colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _mark(number: int) -> str:
    return _MARKS[number % len(_MARKS)]
