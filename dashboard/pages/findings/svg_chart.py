"""Curves as a picture without script: an SVG of lines, for pages that must stay as they are and for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 8, 20
COLOURS = 8


@dataclass(slots=True)
class ChartLine:
    """`paths` are the points of each stretch without a gap; `dots` those that stand alone. `last` is the last value."""

    name: str
    colour: int
    paths: list[str] = field(default_factory=list)
    dots: list[tuple[float, float]] = field(default_factory=list)
    last: float | None = None


@dataclass(slots=True)
class SvgChart:
    """`steps` and `values` are the ends of the axes, each with its place."""

    lines: list[ChartLine]
    steps: list[tuple[float, int]]
    values: list[tuple[float, float]]
    width: int = WIDTH
    height: int = HEIGHT


def build_svg_chart(curves: Sequence[Mapping[str, Any]]) -> SvgChart:
    """The picture of one metric's curves {run, steps, values}, a line for each; a run keeps its colour."""
    steps = [step for curve in curves for step in curve["steps"]]
    values = [value for curve in curves for value in curve["values"] if value is not None]
    first, last = min(steps, default=0), max(steps, default=1)
    low, high = min(values, default=0.0), max(values, default=1.0)
    across, up = scale_axis(first, last, LEFT, WIDTH - RIGHT), scale_axis(low, high, HEIGHT - BOTTOM, TOP)
    names: dict[str, int] = {}
    lines: list[ChartLine] = []
    for curve in curves:
        name = curve["run"]["name"]
        colour = names.setdefault(name, curve["run"].get("colour") or len(names) % COLOURS + 1)
        line = ChartLine(name, colour)
        for stretch in split_at_gaps(curve):
            places = [(round(across(step), 1), round(up(value), 1)) for step, value in stretch]
            if len(places) == 1:
                line.dots += places
            else:
                line.paths.append(" ".join(f"{x},{y}" for x, y in places))
            line.last = stretch[-1][1]
        lines.append(line)
    return SvgChart(lines, build_axis_ends(first, last, across), build_axis_ends(low, high, up))


def split_at_gaps(curve: Mapping[str, Any]) -> list[list[tuple[int, float]]]:
    """The points between gaps: what was not logged, or logged as NaN, is not joined over."""
    found: list[list[tuple[int, float]]] = [[]]
    for step, value in zip(curve["steps"], curve["values"], strict=True):
        if value is None:
            found.append([])
        else:
            found[-1].append((step, value))
    return [stretch for stretch in found if stretch]


def scale_axis(low: float, high: float, start: float, end: float) -> Any:
    """Where a value of [low, high] lies between two places; one value lies in the middle."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (end - start) * (value - low) / (high - low)


def format_short_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def build_axis_ends(low: Any, high: Any, place: Any) -> list[tuple[float, Any]]:
    return [(round(place(one), 1), one) for one in dict.fromkeys((low, high))]
