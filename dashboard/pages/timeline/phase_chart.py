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
from rollouts.metrics import StepTimes, TimeBin, bin_step_times

MAX_COLUMNS = 240
WIDTH, HEIGHT = 1000, 150  # of the drawing; the browser stretches its width
MAX_TICKS = 10
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


def build_phase_chart(times: StepTimes, phases: Sequence[str], selected: int, link: str, *, shares: bool) -> PhaseChart:
    """`link` has `STEP` where the number of a step goes; a column opens its slowest step."""
    bins = bin_step_times(times, MAX_COLUMNS)
    rows = np.array([each.row for each in bins])
    totals, peaks = times.total[rows], times.total[[each.slowest for each in bins]]
    top = 1.0 if shares else choose_top(peaks)
    scale = np.full(len(rows), 1 / top)
    if shares:
        scale = np.divide(1.0, totals, out=np.zeros(len(totals)), where=totals > 0)
    width = WIDTH / len(bins)
    paths = build_paths(times, phases, rows, scale, width)
    if not shares:
        paths.append(("peak", build_peak_path(totals / top, peaks / top, width)))
    every = max(1, -(-len(bins) // MAX_TICKS))
    centre = 100 / len(bins)
    return PhaseChart(
        paths,
        render_links(times, bins, selected, link, width),
        [(round(centre * (at + 0.5), 2), int(times.steps[bins[at].first])) for at in range(0, len(bins), every)],
        [(25.0, "75 %"), (50.0, "50 %"), (75.0, "25 %")] if shares else build_ticks(top),
        [] if shares else [
            (round(centre * (at + 0.5), 2), format_seconds(float(peak))) for at, peak in enumerate(peaks) if peak > top
        ],
        -(-len(times) // len(bins)),
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
    rows: npt.NDArray[np.int64],
    scale: Numbers,
    width: float,
) -> list[tuple[str, str]]:
    """Stacks the phases from the bottom in the order of `phases`."""
    base = np.zeros(len(rows))
    paths = []
    for phase in phases:
        heights = np.nan_to_num(times.column(phase)[rows]) * scale
        ends = np.minimum(base + heights, 1.0)
        parts = [
            render_bar(at * width, 0.9 * width, low, high)
            for at, (low, high) in enumerate(zip(base.tolist(), ends.tolist(), strict=True))
            if high > low
        ]
        paths.append((phase, "".join(parts)))
        base = ends
    return paths


def build_peak_path(
    totals: Numbers,
    peaks: Numbers,
    width: float,
) -> str:
    """A thin line up to the slowest step of each column."""
    return "".join(
        render_bar((at + 0.35) * width, 0.2 * width, low, min(high, 1.0))
        for at, (low, high) in enumerate(zip(totals.tolist(), peaks.tolist(), strict=True))
        if high > low * 1.001 and low < 1
    )


def render_bar(x: float, width: float, low: float, high: float) -> str:
    return f"M{x:.1f} {HEIGHT * (1 - low):.1f}h{width:.2f}V{HEIGHT * (1 - high):.1f}h-{width:.2f}z"


def render_links(times: StepTimes, bins: Sequence[TimeBin], selected: int, link: str, width: float) -> SafeString:
    """In Python: a template takes ten times as long."""
    before, _step, after = escape(link).partition("STEP")
    one, many = (
        _("step {step}: {seconds}"),
        _("steps {first} to {last}: median {median}, slowest step {step}: {seconds}"),
    )
    links = []
    for at, each in enumerate(bins):
        step = int(times.steps[each.slowest])
        values = {
            "step": step, "first": int(times.steps[each.first]), "last": int(times.steps[each.last]),
            "median": format_seconds(float(times.total[each.row])),
            "seconds": format_seconds(float(times.total[each.slowest])),
        }  # fmt: skip
        title = escape((one if each.first == each.last else many).format(**values))
        here = ' aria-current="true"' if each.first <= selected <= each.last else ""
        links.append(
            f'<a href="{before}{step}{after}"{here} aria-label="{title}"><title>{title}</title>'
            f'<rect x="{at * width:.1f}" width="{width:.2f}" height="{HEIGHT}"/></a>'
        )
    return mark_safe("".join(links))
