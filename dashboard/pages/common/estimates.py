"""Numbers with a 95 % interval: as text, and as a dot and a line on a scale from 0 to 1."""

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from rollouts.agreement import Estimate

SCALE_WIDTH = 180
MARGIN = 5  # of the scale, for half a dot
USUAL_LINES = (0.67, 0.8)  # Krippendorff's: below the first one conclusions are not safe, from the second one they are


def format_estimate(estimate: Estimate) -> SafeString:
    """`0.74 [0.61, 0.85]`; a dash with the reason if there is no value."""
    if estimate.value is None:
        return format_html('<span class="muted" title="{}">–</span>', estimate.explanation)
    if not estimate.has_interval:
        return format_html('<span title="{}"><b>{}</b></span>', estimate.explanation, f"{estimate.value:.2f}")
    return format_html("<b>{}</b> [{}, {}]", *(f"{n:.2f}" for n in (estimate.value, estimate.low, estimate.high)))


def format_change(change: Estimate) -> SafeString:
    """`+0.02 [-0.01, +0.05]`; a dash with the reason if there is no value."""
    if change.value is None:
        return format_html('<span class="muted" title="{}">–</span>', change.explanation)
    numbers = [change.value, change.low, change.high] if change.has_interval else [change.value]
    value, *interval = [f"{number:+.2f}" for number in numbers if number is not None]
    return format_html("<b>{}</b>{}", value, f" [{', '.join(interval)}]" if interval else "")


def format_share(estimate: Estimate) -> str:
    """`89 %`, or a dash."""
    return "–" if estimate.value is None else f"{100 * estimate.value:.0f} %"


def render_estimate_scale(estimate: Estimate, *, graded: bool = True) -> SafeString:
    """The drawing; empty if there is no value. Values below 0 are at 0, their number says which they are. `graded`:
    with the usual lines, and a colour for the part of the scale."""
    if estimate.value is None:
        return SafeString("")
    places = [(locate_on_scale(at),) for at in USUAL_LINES if graded]
    lines = format_html_join("", '<line class="usual" x1="{0}" x2="{0}" y1="1" y2="17"/>', places)
    span = SafeString("")
    if estimate.low is not None and estimate.high is not None:
        span = format_html(
            '<line x1="{}" x2="{}" y1="9" y2="9"/>', locate_on_scale(estimate.low), locate_on_scale(estimate.high)
        )
    return format_html(
        '<svg class="estimate-scale {}" width="{}" height="18" role="img" aria-label="{}">'
        '<line class="axis" x1="{}" x2="{}" y1="9" y2="9"/>{}{}<circle cx="{}" cy="9" r="3.5"/></svg>',
        grade_estimate(estimate.value) if graded else "", SCALE_WIDTH, format_interval(estimate), MARGIN,
        SCALE_WIDTH - MARGIN, lines, span, locate_on_scale(estimate.value),
    )  # fmt: skip


def locate_on_scale(value: float) -> float:
    """The pixel of a value."""
    return round(MARGIN + min(1.0, max(0.0, value)) * (SCALE_WIDTH - 2 * MARGIN), 1)


def grade_estimate(value: float) -> str:
    return "bad" if value < USUAL_LINES[0] else "partial" if value < USUAL_LINES[1] else "good"


def format_interval(estimate: Estimate) -> str:
    """`0.74 [0.61, 0.85]`."""
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f}{interval}"
