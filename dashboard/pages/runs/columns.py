"""The columns of the run list: what each shows of a run, and what it sorts and groups by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import (
    RunSparkline,
    format_number,
    format_percent,
    format_run_status,
    render_text,
    render_time,
)
from rollouts.models import Run
from rollouts.runs import flatten_config, format_config_value

CONFIG_PREFIX: Final = "config:"
LAST_VALUE_PREFIX: Final = "last:"
MAX_CONFIG_CHARS: Final = 200
MAX_COLUMNS: Final = 24
MAX_NAME_LENGTH: Final = 24  # of a metric or config key in a header


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and what is known of it."""

    run: Run
    status: str
    spark: RunSparkline
    config: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, float | None] = field(default_factory=dict)


def render_status_cell(line: RunRow) -> SafeString:
    muted = mark_safe(' class="muted"') if line.status == "finished" else ""
    return format_html(
        '<span class="dot {}"></span> <span{}>{}</span>', line.status, muted, format_run_status(line.status)
    )


def render_step_cell(line: RunRow) -> SafeString | str:
    if not line.spark.last:
        return ""
    address = reverse("step", args=[line.run.uid, "latest"])
    return format_html('<a class="quiet" href="{}">{}</a>', address, format_number(line.spark.last.step, 0))


def render_score_cell(line: RunRow) -> SafeString | str:
    last = line.spark.last
    value = "" if last is None or last.score_mean is None else format_number(last.score_mean)
    told = format_html('<span class="spark-value">{}</span>', value) if value else mark_safe("")
    return told + render_sparkline(line.spark.points) if line.spark.points else told


def render_sparkline(points: str) -> SafeString:
    return format_html(
        '<svg class="spark" width="100" height="20" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><polyline points="{}" vector-effect="non-scaling-stroke"/></svg>',
        _("Mean score over steps"),
        points,
    )


def format_truncated_cell(line: RunRow) -> str:
    last = line.spark.last
    return format_percent(last.truncated, last.samples) if last else ""


def render_flags_cell(line: RunRow) -> SafeString:
    if not line.spark.flags:
        return mark_safe('<span class="muted">0</span>')
    return format_html('<span class="tag flag">⚑ {}</span>', format_number(line.spark.flags, 0))


def render_tags_cell(line: RunRow) -> SafeString:
    """Each a link to the runs that have it."""
    root = reverse("runs")
    told = ((root, quote_tag(str(tag)), render_text(str(tag))) for tag in line.run.tags)
    return format_html_join(" ", '<a class="tag plain" href="{}?name=tag:{}">{}</a>', told)


def quote_tag(tag: str) -> str:
    return quote(f'"{tag}"' if any(sign.isspace() for sign in tag) else tag)


def render_project_cell(line: RunRow) -> SafeString:
    slug = line.run.project.slug
    return format_html('<a class="quiet muted" href="{}?project={}">{}</a>', reverse("runs"), slug, slug)


def render_framework_cell(line: RunRow) -> SafeString:
    return render_text(line.run.framework)


def format_owner_cell(line: RunRow) -> str:
    return line.run.owner.get_username() if line.run.owner else ""


@dataclass(frozen=True, slots=True)
class RunColumn:
    """`shown` draws the cell, `value` is what it sorts and groups by; None stands last either way."""

    key: str
    title: str
    shown: Callable[[RunRow], SafeString | str]
    value: Callable[[RunRow], Any]
    style: str = ""
    about: str = ""

    @property
    def called(self) -> str:
        """The title in the reader's language; keys of configs and metrics stay as they are."""
        return self.title if self.key.startswith((CONFIG_PREFIX, LAST_VALUE_PREFIX)) else _(self.title)

    @property
    def hint(self) -> str:
        return _(self.about) if self.about and self.key in BUILT_IN_COLUMNS else self.about


def compute_truncated_share(line: RunRow) -> float | None:
    last = line.spark.last
    return None if last is None or last.truncated is None else last.truncated / max(1, last.samples)


def format_tags(line: RunRow) -> str | None:
    return ", ".join(map(str, line.run.tags)) or None


TIME_STYLE: Final = "num muted nowrap"
BUILT_IN_COLUMNS: Final = {
    one.key: one
    for one in (
        RunColumn("status", N_("status"), render_status_cell, lambda line: line.status, "nowrap"),
        RunColumn("step", N_("step"), render_step_cell, lambda line: line.spark.last and line.spark.last.step, "num"),
        RunColumn(
            "score",
            N_("score"),
            render_score_cell,
            lambda line: line.spark.last and line.spark.last.score_mean,
            "nowrap",
        ),
        RunColumn(
            "trunc",
            N_("trunc"),
            format_truncated_cell,
            compute_truncated_share,
            "num",
            N_("truncated at the latest step"),
        ),
        RunColumn("flagged", N_("flagged"), render_flags_cell, lambda line: line.spark.flags, "num"),
        RunColumn(
            "owner", N_("owner"), format_owner_cell, lambda line: format_owner_cell(line) or None, "muted nowrap"
        ),
        RunColumn("tags", N_("tags"), render_tags_cell, format_tags, "tags"),
        RunColumn(
            "framework", N_("framework"), render_framework_cell, lambda line: line.run.framework or None, "muted"
        ),
        RunColumn("project", N_("project"), render_project_cell, lambda line: line.run.project.slug),
        RunColumn(
            "created",
            N_("created"),
            lambda line: render_time(line.run.created_at),
            lambda line: line.run.created_at,
            TIME_STYLE,
        ),
        RunColumn(
            "updated",
            N_("updated"),
            lambda line: render_time(line.run.seen_at),
            lambda line: line.run.seen_at,
            TIME_STYLE,
        ),
    )
}
NAME_COLUMN: Final = RunColumn("name", N_("run"), lambda line: line.run.name, lambda line: line.run.name.lower())
DEFAULT_COLUMN_KEYS: Final = (
    "status",
    "step",
    "score",
    "trunc",
    "flagged",
    "owner",
    "tags",
    "framework",
    "project",
    "updated",
)


def find_column(key: str) -> RunColumn | None:
    """One that is asked for by name; None for what is no column."""
    if key in BUILT_IN_COLUMNS:
        return BUILT_IN_COLUMNS[key]
    if key == NAME_COLUMN.key:
        return NAME_COLUMN
    if key.startswith(CONFIG_PREFIX) and len(key) > len(CONFIG_PREFIX):
        return build_config_column(key)
    if key.startswith(LAST_VALUE_PREFIX) and len(key) > len(LAST_VALUE_PREFIX):
        return build_metric_column(key)
    return None


def build_config_column(key: str) -> RunColumn:
    name = key.removeprefix(CONFIG_PREFIX)
    return RunColumn(
        key,
        shorten_dotted_name(name),
        lambda line: render_config_cell(line, name),
        lambda line: get_config_value(line, name),
        "num clip mono",
        name,
    )


def get_config_value(line: RunRow, name: str) -> Any:
    value = line.config.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if value is None or number else format_config_value(value)


def render_config_cell(line: RunRow, name: str) -> SafeString | str:
    if name not in line.config:
        return ""
    value = format_config_value(line.config[name])
    return render_text(value if len(value) <= MAX_CONFIG_CHARS else value[: MAX_CONFIG_CHARS - 1] + "…")


def build_metric_column(key: str) -> RunColumn:
    name = key.removeprefix(LAST_VALUE_PREFIX)
    return RunColumn(
        key,
        shorten_dotted_name(name),
        lambda line: format_number(line.last.get(name), 3),
        lambda line: line.last.get(name),
        "num mono",
        _("last value of {name}").format(name=name),
    )


def shorten_dotted_name(name: str) -> str:
    """As many of a long dotted name's last parts as fit: they tell more than its first."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    parts = name.split(".")
    kept = parts.pop()[-MAX_NAME_LENGTH:]
    while parts and len(kept) + len(parts[-1]) < MAX_NAME_LENGTH:
        kept = f"{parts.pop()}.{kept}"
    return f"…{kept}"


def find_columns(keys: Sequence[str]) -> list[RunColumn]:
    found = [find_column(key) for key in dict.fromkeys(keys)]
    return [one for one in found if one is not None and one is not NAME_COLUMN][:MAX_COLUMNS]


def build_run_rows(
    runs: Sequence[Run],
    states: Mapping[int, str],
    sparks: Mapping[int, RunSparkline],
    last: Mapping[str, Mapping[str, float | None]],
    *,
    deep: bool,
) -> list[RunRow]:
    return [
        RunRow(
            run,
            states[run.pk],
            sparks.get(run.pk, RunSparkline()),
            flatten_config(run.config) if deep else {},
            last.get(run.uid, {}),
        )
        for run in runs
    ]


def sort_run_rows(found: Sequence[RunRow], by: RunColumn, *, down: bool) -> list[RunRow]:
    """Numbers apart from words, what has no value last; equal ones stay in their order."""
    ranked = [(build_column_sort_key(by.value(line)), line) for line in found]
    known = [(place, line) for place, line in ranked if place is not None]
    known.sort(key=itemgetter(0), reverse=down)
    return [line for _, line in known] + [line for place, line in ranked if place is None]


MAX_NUMBER = 10**300  # a whole number of a config may be larger than any float


def build_column_sort_key(value: Any) -> tuple[int, float, str] | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < MAX_NUMBER):
        return 0, float(value), ""
    return 1, 0.0, str(value).lower()
