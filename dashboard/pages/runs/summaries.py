"""The cells of a group of runs: what its runs have in common, or how their values are spread."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.pages.common import format_number, format_percent, format_run_status, render_text, render_time

STATUS_ORDER: Final = ("failed", "silent", "running", "planned", "finished")  # the worst first
MAX_HINT_VALUES: Final = 12
MAX_VALUE_CHARS: Final = 60


def list_known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def render_common_value(values: Sequence[Any]) -> SafeString | str:
    """The value, if all runs have the same, else how many there are."""
    counts = Counter(values)
    if len(counts) == 1:
        (value,) = counts
        return "" if value is None else render_text(cut(str(value)))
    names = ", ".join(
        "–" if value is None else cut(str(value)) for value, _count in counts.most_common(MAX_HINT_VALUES)
    )
    text = ngettext("{count} value", "{count} values", len(counts)).format(count=len(counts))
    return format_html('<span class="muted" title="{}">{}</span>', names, text)


def cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def render_statuses(values: Sequence[str]) -> SafeString | str:
    """The worst status and all that are not finished: `1 failed, 2 running`."""
    counts = Counter(values)
    worst = next(status for status in STATUS_ORDER if counts[status])
    open_statuses = [status for status in STATUS_ORDER if counts[status] and status != "finished"]
    label = ", ".join(f"{counts[status]} {format_run_status(status)}" for status in open_statuses)
    muted = mark_safe(' class="muted"') if worst == "finished" else ""
    text = label or format_run_status("finished")
    return format_html('<span class="dot {}"></span> <span{}>{}</span>', worst, muted, text)


def render_mean(values: Sequence[float | None]) -> SafeString | str:
    """Mean ± standard deviation (n − 1)."""
    known = list_known(values)
    if not known:
        return ""
    mean = format_number(fmean(known))
    if len(known) < 2:
        return format_html("<b>{}</b>", mean)
    hint = _("mean ± standard deviation (n − 1) of {count} runs").format(count=len(known))
    return format_html(
        '<span title="{}"><b>{}</b> <span class="muted">± {}</span></span>', hint, mean, format_number(stdev(known))
    )


def render_best(values: Sequence[float | None]) -> str:
    return format_number(max(list_known(values), default=None))


def render_mean_share(values: Sequence[float | None]) -> str:
    known = list_known(values)
    return format_percent(fmean(known), 1) if known else ""


def render_sum(values: Sequence[int | None]) -> SafeString | str:
    total = sum(list_known(values))
    return format_html('<span class="tag flag">⚑ {}</span>', format_number(total, 0)) if total else ""


def render_range(values: Sequence[int | None]) -> str:
    known = list_known(values)
    if not known:
        return ""
    ends = [format_number(value, 0) for value in (min(known), max(known))]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def render_newest(values: Sequence[Any]) -> str:
    return render_time(max(list_known(values), default=None))
