"""The chart of seconds per step: one path for each phase, and a link over each column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import format_seconds
from dashboard.pages.timeline.step_columns import StepColumn, find_ticks
from rollouts.metrics import StepTimes

WIDTH, HEIGHT = 1000, 150  # of the drawing; the browser stretches its width
COLUMN_RATIO = 0.9  # of a column that is filled
CLIP_RATIO = 4.0  # an outlier that is this much longer than nearly all steps is cut, with its seconds above it
PHASE_NAMES = {
    "generation": N_("generation"), "tool": N_("tools"), "reward": N_("reward"), "old_log_prob": N_("old log-prob"),
    "reference": N_("reference"), "advantage": N_("advantage"), "update": N_("update"),
    "weight_sync": N_("weight sync"), "evaluation": N_("evaluation"), "checkpoint": N_("checkpoint"),
    "waiting": N_("waiting"), "other": N_("other"),
}  # fmt: skip

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhaseChart:
    """`paths` are (phase, SVG path). `links` are the columns. `ticks_y` are (percent from the top, text), `ticks_x`
    (percent from the left, step), `cut` (percent from the left, text) of columns that are taller than the chart."""

    paths: Sequence[tuple[str, str]]
    links: SafeString
    ticks_x: Sequence[tuple[float, int]]
    ticks_y: Sequence[tuple[float, str]]
    cut: Sequence[tuple[float, str]]
    bin_size: int


def build_phase_chart(
    times: StepTimes, columns: Sequence[StepColumn], phases: Sequence[str], selected: int, link: str, *, shares: bool
) -> PhaseChart:
    """`link` has `STEP` where the number of a step goes; a column opens its slowest step."""
    rows = np.array([column.bin.row for column in columns])
    totals, peaks = times.total[rows], times.total[[column.bin.slowest for column in columns]]
    top = 1.0 if shares else choose_top(peaks)
    scale = np.full(len(rows), 1 / top)
    if shares:
        scale = np.divide(1.0, totals, out=np.zeros(len(totals)), where=totals > 0)
    paths = build_paths(times, phases, columns, scale)
    if not shares:
        paths.append(("peak", build_peak_path(totals / top, peaks / top, columns)))
    return PhaseChart(
        paths,
        render_links(times, columns, selected, link),
        find_ticks(columns),
        [(25.0, "75 %"), (50.0, "50 %"), (75.0, "25 %")] if shares else build_ticks(top),
        [] if shares else [
            (column.center, format_seconds(float(peak)))
            for column, peak in zip(columns, peaks, strict=True)
            if peak > top
        ],
        -(-len(times) // len(columns)),
    )  # fmt: skip


def choose_top(peaks: Numbers) -> float:
    """The seconds at the top of the chart."""
    highest, usual = float(peaks.max()), float(np.percentile(peaks, 95))
    return max(highest if highest <= CLIP_RATIO * usual else 1.5 * usual, 1e-6)


def build_ticks(top: float) -> list[tuple[float, str]]:
    """Two to five round numbers of seconds, as (percent from the top, text)."""
    size = 10.0 ** np.floor(np.log10(top))
    step = next(size * each for each in (0.2, 0.5, 1.0, 2.0) if top / (size * each) <= 5)
    values = [step * number for number in range(1, int(top / step) + 1)]
    return [(round(100 - 100 * value / top, 2), format_seconds(value)) for value in values]


def build_paths(
    times: StepTimes,
    phases: Sequence[str],
    columns: Sequence[StepColumn],
    scale: Numbers,
) -> list[tuple[str, str]]:
    """Stacks the phases from the bottom in the order of `phases`."""
    rows = np.array([column.bin.row for column in columns])
    base = np.zeros(len(rows))
    paths = []
    for phase in phases:
        heights = np.nan_to_num(times.column(phase)[rows]) * scale
        ends = np.minimum(base + heights, 1.0)
        parts = [
            render_bar(column.x, COLUMN_RATIO * column.width, low, high)
            for column, low, high in zip(columns, base.tolist(), ends.tolist(), strict=True)
            if high > low
        ]
        paths.append((phase, "".join(parts)))
        base = ends
    return paths


def build_peak_path(totals: Numbers, peaks: Numbers, columns: Sequence[StepColumn]) -> str:
    """A thin line up to the slowest step of each column."""
    return "".join(
        render_bar(column.x + 0.35 * column.width, 0.2 * column.width, low, min(high, 1.0))
        for column, low, high in zip(columns, totals.tolist(), peaks.tolist(), strict=True)
        if high > low * 1.001 and low < 1
    )


def render_bar(x: float, width: float, low: float, high: float) -> str:
    """`x width` are in percent."""
    x, width = x * WIDTH / 100, width * WIDTH / 100
    return f"M{x:.1f} {HEIGHT * (1 - low):.1f}h{width:.2f}V{HEIGHT * (1 - high):.1f}h-{width:.2f}z"


def render_links(times: StepTimes, columns: Sequence[StepColumn], selected: int, link: str) -> SafeString:
    """In Python: a template takes ten times as long."""
    before, _step, after = escape(link).partition("STEP")
    one, many = (
        _("step {step}: {seconds}"),
        _("steps {first} to {last}: median {median}, slowest step {step}: {seconds}"),
    )
    links = []
    for column in columns:
        step = int(times.steps[column.bin.slowest])
        values = {
            "step": step, "first": column.first, "last": column.last,
            "median": format_seconds(float(times.total[column.bin.row])),
            "seconds": format_seconds(float(times.total[column.bin.slowest])),
        }  # fmt: skip
        title = escape((one if column.first == column.last else many).format(**values))
        here = ' aria-current="true"' if column.has_row(selected) else ""
        links.append(
            f'<a href="{before}{step}{after}"{here} aria-label="{title}"><title>{title}</title>'
            f'<rect x="{column.x * WIDTH / 100:.1f}" width="{column.width * WIDTH / 100:.2f}" height="{HEIGHT}"/></a>'
        )
    return mark_safe("".join(links))
