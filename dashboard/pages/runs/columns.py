"""The columns of the run list: the cell of each, and the value it sorts and groups by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
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
from rollouts.models import Run, Step
from rollouts.runs import format_config_value

CONFIG_PREFIX: Final = "config:"
LAST_VALUE_PREFIX: Final = "last:"
MAX_CONFIG_CHARS: Final = 200
MAX_COLUMNS: Final = 24
MAX_NAME_LENGTH: Final = 24  # of a metric or config key in a header
MAX_NUMBER: Final = 10**300  # a larger integer of a config does not fit into a float


@dataclass(frozen=True, slots=True)
class RunRow:
    """`last` maps the name of a metric to its last value."""

    run: Run
    status: str
    sparkline: RunSparkline
    config: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def step(self) -> Step | None:
        """The latest step."""
        return self.sparkline.last


def render_status_cell(row: RunRow) -> SafeString:
    muted = mark_safe(' class="muted"') if row.status == "finished" else ""
    label = format_run_status(row.status)
    return format_html('<span class="dot {}"></span> <span{}>{}</span>', row.status, muted, label)


def render_step_cell(row: RunRow) -> SafeString | str:
    if not row.step:
        return ""
    url = reverse("step", args=[row.run.uid, "latest"])
    return format_html('<a class="quiet" href="{}">{}</a>', url, format_number(row.step.step, 0))


def render_score_cell(row: RunRow) -> SafeString | str:
    score = row.step.score_mean if row.step else None
    value = mark_safe("") if score is None else format_html('<span class="spark-value">{}</span>', format_number(score))
    return value + render_sparkline(row.sparkline.points) if row.sparkline.points else value


def render_sparkline(points: str) -> SafeString:
    return format_html(
        '<svg class="spark" width="100" height="20" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><polyline points="{}" vector-effect="non-scaling-stroke"/></svg>',
        _("Mean score over steps"),
        points,
    )


def format_truncated_cell(row: RunRow) -> str:
    return format_percent(row.step.truncated, row.step.samples) if row.step else ""


def compute_truncated_share(row: RunRow) -> float | None:
    step = row.step
    return None if step is None or step.truncated is None else step.truncated / max(1, step.samples)


def render_flags_cell(row: RunRow) -> SafeString:
    if not row.sparkline.flags:
        return mark_safe('<span class="muted">0</span>')
    return format_html('<span class="tag flag">⚑ {}</span>', format_number(row.sparkline.flags, 0))


def render_tags_cell(row: RunRow) -> SafeString:
    """Each tag is a link to the runs that have it."""
    url = reverse("runs")
    tags = ((url, quote_tag(str(tag)), render_text(str(tag))) for tag in row.run.tags)
    return format_html_join(" ", '<a class="tag plain" href="{}?name=tag:{}">{}</a>', tags)


def quote_tag(tag: str) -> str:
    return quote(f'"{tag}"' if any(character.isspace() for character in tag) else tag)


def render_project_cell(row: RunRow) -> SafeString:
    slug = row.run.project.slug
    return format_html('<a class="quiet muted" href="{}?project={}">{}</a>', reverse("runs"), slug, slug)


def format_owner_cell(row: RunRow) -> str:
    return row.run.owner.get_username() if row.run.owner else ""


@dataclass(frozen=True, slots=True)
class RunColumn:
    """`render` gives the cell. `value` gives what the column sorts and groups by; None is last in both orders."""

    key: str
    title: str
    render: Callable[[RunRow], SafeString | str]
    value: Callable[[RunRow], Any]
    style: str = ""
    description: str = ""

    @property
    def label(self) -> str:
        """The translated title. Keys of configs and metrics are not translated."""
        return self.title if self.key.startswith((CONFIG_PREFIX, LAST_VALUE_PREFIX)) else _(self.title)

    @property
    def hint(self) -> str:
        return _(self.description) if self.description and self.key in BUILT_IN_COLUMNS else self.description


def build_time_column(key: str, title: str, get_time: Callable[[RunRow], datetime]) -> RunColumn:
    return RunColumn(key, title, lambda row: render_time(get_time(row)), get_time, "num muted nowrap")


COLUMNS: Final = (
    RunColumn("status", N_("status"), render_status_cell, lambda row: row.status, "nowrap"),
    RunColumn("step", N_("step"), render_step_cell, lambda row: row.step and row.step.step, "num"),
    RunColumn("score", N_("score"), render_score_cell, lambda row: row.step and row.step.score_mean, "nowrap"),
    RunColumn(
        "trunc", N_("trunc"), format_truncated_cell, compute_truncated_share, "num", N_("truncated at the latest step")
    ),
    RunColumn("flagged", N_("flagged"), render_flags_cell, lambda row: row.sparkline.flags, "num"),
    RunColumn("owner", N_("owner"), format_owner_cell, lambda row: format_owner_cell(row) or None, "muted nowrap"),
    RunColumn("tags", N_("tags"), render_tags_cell, lambda row: ", ".join(map(str, row.run.tags)) or None, "tags"),
    RunColumn(
        "framework",
        N_("framework"),
        lambda row: render_text(row.run.framework),
        lambda row: row.run.framework or None,
        "muted",
    ),
    RunColumn("project", N_("project"), render_project_cell, lambda row: row.run.project.slug),
    build_time_column("created", N_("created"), lambda row: row.run.created_at),
    build_time_column("updated", N_("updated"), lambda row: row.run.seen_at),
)
BUILT_IN_COLUMNS: Final = {column.key: column for column in COLUMNS}
DEFAULT_COLUMN_KEYS: Final = tuple(key for key in BUILT_IN_COLUMNS if key != "created")
NAME_COLUMN: Final = RunColumn("name", N_("run"), lambda row: row.run.name, lambda row: row.run.name.lower())


def find_column(key: str) -> RunColumn | None:
    """The column with this key. None if there is no such column."""
    if key in BUILT_IN_COLUMNS:
        return BUILT_IN_COLUMNS[key]
    if key == NAME_COLUMN.key:
        return NAME_COLUMN
    for prefix, build_column in ((CONFIG_PREFIX, build_config_column), (LAST_VALUE_PREFIX, build_metric_column)):
        if key.startswith(prefix) and key != prefix:
            return build_column(key, key.removeprefix(prefix))
    return None


def build_config_column(key: str, name: str) -> RunColumn:
    render, value = partial(render_config_cell, name=name), partial(get_config_value, name=name)
    return RunColumn(key, shorten_dotted_name(name), render, value, "num clip mono", name)


def get_config_value(row: RunRow, name: str) -> Any:
    value = row.config.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if value is None or is_number else format_config_value(value)


def render_config_cell(row: RunRow, name: str) -> SafeString | str:
    if name not in row.config:
        return ""
    value = format_config_value(row.config[name])
    return render_text(value if len(value) <= MAX_CONFIG_CHARS else value[: MAX_CONFIG_CHARS - 1] + "…")


def build_metric_column(key: str, name: str) -> RunColumn:
    return RunColumn(
        key,
        shorten_dotted_name(name),
        lambda row: format_number(row.last.get(name), 3),
        lambda row: row.last.get(name),
        "num mono",
        _("last value of {name}").format(name=name),
    )


def shorten_dotted_name(name: str) -> str:
    """As many of the last parts of a dotted name as fit."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    parts = name.split(".")
    end = parts.pop()[-MAX_NAME_LENGTH:]
    while parts and len(end) + len(parts[-1]) < MAX_NAME_LENGTH:
        end = f"{parts.pop()}.{end}"
    return f"…{end}"


def find_columns(keys: Sequence[str]) -> list[RunColumn]:
    columns = [find_column(key) for key in dict.fromkeys(keys)]
    return [column for column in columns if column is not None and column is not NAME_COLUMN][:MAX_COLUMNS]


def sort_run_rows(rows: Sequence[RunRow], by: RunColumn, *, descending: bool) -> list[RunRow]:
    """A stable sort: numbers before words, rows without a value last."""
    keyed = [(build_column_sort_key(by.value(row)), row) for row in rows]
    known = [(key, row) for key, row in keyed if key is not None]
    known.sort(key=itemgetter(0), reverse=descending)
    return [row for _, row in known] + [row for key, row in keyed if key is None]


def build_column_sort_key(value: Any) -> tuple[int, float, str] | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < MAX_NUMBER):
        return 0, float(value), ""
    return 1, 0.0, str(value).lower()
