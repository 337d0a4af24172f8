"""The curves of an asynchronous run: how much of a step generation and trainer work at once, and the trainer waits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.timeline.step_columns import StepColumn
from rollouts.metrics import StepTimes

WIDTH, HEIGHT = 1000, 60  # of the drawing; the browser stretches its width
LINE_NAMES = {"overlap": N_("both at once"), "waiting": N_("trainer waits")}

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OverlapLine:
    """`shown` is the value at the selected column, `path` the SVG path, with a gap where nothing was recorded."""

    kind: str
    name: str
    path: str
    shown: str


@dataclass(frozen=True, slots=True)
class OverlapChart:
    """`links` are the columns; `selected` is the center of the selected one in percent."""

    lines: Sequence[OverlapLine]
    links: SafeString
    selected: float | None


def build_overlap_chart(
    times: StepTimes, columns: Sequence[StepColumn], selected: int, link: str
) -> OverlapChart | None:
    """None for a synchronous run, which has neither overlap nor a phase of waiting. `link` has `STEP` where the number
    of a step goes."""
    waiting = times.column("waiting")
    curves: dict[str, Shares] = {}
    if (times.overlap > 0).any():
        curves["overlap"] = compute_shares(times, columns, times.overlap)
    if (waiting > 0).any():
        curves["waiting"] = compute_shares(times, columns, waiting)
    if not curves:
        return None
    here = next((at for at, column in enumerate(columns) if column.has_row(selected)), None)
    lines = [
        OverlapLine(
            kind,
            _(LINE_NAMES[kind]),
            build_line_path(columns, shares),
            format_share(shares[here]) if here is not None else "",
        )
        for kind, shares in curves.items()
    ]
    return OverlapChart(
        lines, render_links(times, columns, curves, link), None if here is None else columns[here].center
    )


def compute_shares(times: StepTimes, columns: Sequence[StepColumn], seconds: Shares) -> Shares:
    """The share of each column's seconds; NaN where none of its steps recorded it."""
    shares = np.full(len(columns), np.nan)
    for at, column in enumerate(columns):
        part = slice(column.bin.first, column.bin.last + 1)
        total = float(times.total[part].sum())
        if total > 0 and not np.isnan(seconds[part]).all():
            shares[at] = min(1.0, float(np.nansum(seconds[part])) / total)
    return shares


def build_line_path(columns: Sequence[StepColumn], shares: Shares) -> str:
    """A section of one column is a dot."""
    parts, is_open = [], False
    for column, share in zip(columns, shares.tolist(), strict=True):
        if np.isnan(share):
            is_open = False
            continue
        point = f"{column.center * WIDTH / 100:.1f} {HEIGHT * (1 - share):.1f}"
        parts.append(f"L{point}" if is_open else f"M{point}h0")
        is_open = True
    return "".join(parts)


def render_links(times: StepTimes, columns: Sequence[StepColumn], curves: dict[str, Shares], link: str) -> SafeString:
    """For the mouse, with the values of each column. The columns of the chart above are the links of the keyboard."""
    before, _step, after = escape(link).partition("STEP")
    links = []
    for at, column in enumerate(columns):
        steps = _("step {step}").format(step=column.last)
        if column.first != column.last:
            steps = _("steps {first} to {last}").format(first=column.first, last=column.last)
        values = [f"{_(LINE_NAMES[kind])} {format_share(shares[at])}" for kind, shares in curves.items()]
        links.append(
            f'<a href="{before}{int(times.steps[column.bin.row])}{after}" tabindex="-1">'
            f"<title>{escape(' · '.join([steps, *values]))}</title>"
            f'<rect x="{column.x * WIDTH / 100:.1f}" width="{column.width * WIDTH / 100:.2f}" height="{HEIGHT}"/></a>'
        )
    return mark_safe("".join(links))


def format_share(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.0f} %"
