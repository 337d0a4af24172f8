"""Curves as an SVG without script, for snapshots and exported files."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 8, 20
COLOURS = 8


@dataclass(slots=True)
class SvgLine:
    """`paths`: the points of each section without a gap; `dots`: sections of one point; `last`: the last value;
    `bands`: the outlines of the ranges of a group of runs."""

    name: str
    colour: int
    paths: list[str] = field(default_factory=list)
    dots: list[tuple[float, float]] = field(default_factory=list)
    bands: list[str] = field(default_factory=list)
    last: float | None = None


@dataclass(slots=True)
class SvgChart:
    """`steps` and `values` are the ends of the axes: (pixels, label)."""

    lines: list[SvgLine]
    steps: list[tuple[float, int]]
    values: list[tuple[float, float]]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def last_values(self) -> str:
        lines = [line for line in self.lines if line.last is not None]
        return ", ".join(f"{line.name} {format_short_number(line.last)}" for line in lines)


def build_svg_chart(
    curves: Sequence[Mapping[str, Any]], *, log: bool = False, zoom: Sequence[float] | None = None
) -> SvgChart:
    """The chart of one metric's curves {run, steps, values}, a line for each; a run keeps its colour. With `low` and
    `high` a curve has a band. `zoom` is a range of steps; a logarithmic chart has no points from 0 down."""
    curves = [select_points(curve, log=log, zoom=zoom) for curve in curves]
    steps = [step for curve in curves for step in curve["steps"]]
    columns = [curve[name] for curve in curves for name in ("values", "low", "high") if name in curve]
    values = [value for column in columns for value in column if value is not None]
    first, last = min(steps, default=0), max(steps, default=1)
    low, high = min(values, default=0.0), max(values, default=1.0)
    get_x, get_y = scale_axis(first, last, LEFT, WIDTH - RIGHT), scale_axis(low, high, HEIGHT - BOTTOM, TOP, log=log)
    colours: dict[str, int] = {}
    lines: list[SvgLine] = []
    for curve in curves:
        name = curve["run"]["name"]
        line = SvgLine(name, colours.setdefault(name, curve["run"].get("colour") or len(colours) % COLOURS + 1))
        for section in split_at_gaps(curve):
            points = [(round(get_x(step), 1), round(get_y(value), 1)) for step, value in section]
            if len(points) == 1:
                line.dots += points
            else:
                line.paths.append(" ".join(f"{x},{y}" for x, y in points))
            line.last = section[-1][1]
        if "low" in curve:
            line.bands = build_bands(curve, get_x, get_y)
        lines.append(line)
    return SvgChart(lines, build_axis_ends(first, last, get_x), build_axis_ends(low, high, get_y))


def split_at_gaps(curve: Mapping[str, Any]) -> list[list[tuple[int, float]]]:
    """Sections of points; a value that was not logged, or logged as NaN, is a gap."""
    sections: list[list[tuple[int, float]]] = [[]]
    for step, value in zip(curve["steps"], curve["values"], strict=True):
        if value is None:
            sections.append([])
        else:
            sections[-1].append((step, value))
    return [section for section in sections if section]


def select_points(curve: Mapping[str, Any], *, log: bool, zoom: Sequence[float] | None) -> dict[str, Any]:
    """The curve within the zoom; values that a logarithmic axis does not have become gaps."""
    kept = [at for at, step in enumerate(curve["steps"]) if zoom is None or zoom[0] <= step <= zoom[1]]

    def select(name: str) -> list[float | None]:
        values = [curve[name][at] for at in kept]
        return [value if value is not None and (value > 0 or not log) else None for value in values]

    columns = {name: select(name) for name in ("values", "low", "high") if name in curve}
    return {**curve, "steps": [curve["steps"][at] for at in kept], **columns}


def build_bands(
    curve: Mapping[str, Any], get_x: Callable[[float], float], get_y: Callable[[float], float]
) -> list[str]:
    """An outline for each section in which the range is known."""
    upper = dict(zip(curve["steps"], curve["high"], strict=True))
    bands = []
    for section in split_at_gaps({"steps": curve["steps"], "values": curve["low"]}):
        lower = [(step, low) for step, low in section if upper[step] is not None]
        outline = [*lower, *((step, upper[step]) for step, _ in reversed(lower))]
        bands.append(" ".join(f"{get_x(step):.1f},{get_y(value):.1f}" for step, value in outline))
    return bands


def scale_axis(low: float, high: float, start: float, end: float, *, log: bool = False) -> Callable[[float], float]:
    """Maps [low, high] to [start, end]; a range of one value is mapped to the middle."""
    if high == low:
        return lambda value: (start + end) / 2
    if log and low > 0:
        ratio = math.log(high / low)
        return lambda value: start + (end - start) * math.log(value / low) / ratio
    return lambda value: start + (end - start) * (value - low) / (high - low)


def format_short_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def build_axis_ends(low: Any, high: Any, scale: Callable[[float], float]) -> list[tuple[float, Any]]:
    return [(round(scale(value), 1), value) for value in dict.fromkeys((low, high))]
