"""The columns of the run list: the cell of each, the value it sorts and groups by, and how a group sums it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

from dashboard.pages.common import format_number, format_percent, format_run_status, render_text, render_time
from dashboard.pages.runs import summaries
from rollouts.models import Run
from rollouts.runs import ConfigValue, RunConfig, RunStatistics, RunTable, format_config_value

CONFIG_PREFIX: Final = "config:"
LAST_VALUE_PREFIX: Final = "last:"
MAX_CONFIG_CHARS: Final = 200
MAX_COLUMNS: Final = 24
MAX_NAME_LENGTH: Final = 24  # of a metric or config key in a header
MAX_NUMBER: Final = 10**300  # a larger integer of a config does not fit into a float


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, and the table that has its statistics, config and metrics. `points` is its sparkline."""

    run: Run
    table: RunTable
    points: str = ""

    @property
    def status(self) -> str:
        return self.table.statuses[self.run.pk]

    @property
    def statistics(self) -> RunStatistics:
        return self.table.statistics[self.run.pk]

    @property
    def config(self) -> RunConfig:
        return self.table.configs[self.run.pk]

    def last_value(self, name: str) -> float | None:
        return self.table.load_metric(name)[self.run.pk]


def render_status_cell(row: RunRow) -> SafeString:
    muted = mark_safe(' class="muted"') if row.status == "finished" else ""
    label = format_run_status(row.status)
    return format_html('<span class="dot {}"></span> <span{}>{}</span>', row.status, muted, label)


def render_step_cell(row: RunRow) -> SafeString | str:
    if row.statistics.step is None:
        return ""
    url = reverse("step", args=[row.run.uid, "latest"])
    return format_html('<a class="quiet" href="{}">{}</a>', url, format_number(row.statistics.step, 0))


def render_sparkline(points: str) -> SafeString:
    if not points:
        return mark_safe("")
    return format_html(
        '<svg class="spark" width="92" height="20" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><polyline points="{}" vector-effect="non-scaling-stroke"/></svg>',
        _("Mean score over steps"),
        points,
    )


def render_flags_cell(row: RunRow) -> SafeString:
    if not row.statistics.flags:
        return mark_safe('<span class="muted">0</span>')
    return format_html('<span class="tag flag">⚑ {}</span>', format_number(row.statistics.flags, 0))


def render_tags_cell(row: RunRow) -> SafeString:
    """Each tag is a link to the runs that have it."""
    url = reverse("runs")
    tags = ((url, quote_tag(str(tag)), render_text(str(tag))) for tag in row.run.tags)
    return format_html_join(" ", '<a class="tag plain" href="{}?q=tag:{}">{}</a>', tags)


def quote_tag(tag: str) -> str:
    return quote(tag if tag.isalnum() else '"' + tag.replace("\\", "\\\\").replace('"', '\\"') + '"')


def render_project_cell(row: RunRow) -> SafeString:
    slug = row.run.project.slug
    return format_html('<a class="quiet muted" href="{}?project={}">{}</a>', reverse("runs"), slug, slug)


def get_owner(row: RunRow) -> str | None:
    return row.run.owner.get_username() if row.run.owner else None


def get_tags(row: RunRow) -> str | None:
    return ", ".join(map(str, row.run.tags)) or None


@dataclass(frozen=True, slots=True)
class RunColumn:
    """`render` gives the cell. `value` gives what the column sorts and groups by; None is last in both orders.
    `summarize` gives the cell of a group from the values of its runs."""

    key: str
    title: str
    render: Callable[[RunRow], SafeString | str]
    value: Callable[[RunRow], Any]
    style: str = ""
    description: str = ""
    summarize: Callable[[Sequence[Any]], SafeString | str] = summaries.render_common_value

    @property
    def label(self) -> str:
        """The translated title. Keys of configs and metrics are not translated."""
        return self.title if self.key.startswith((CONFIG_PREFIX, LAST_VALUE_PREFIX)) else _(self.title)

    @property
    def hint(self) -> str:
        return _(self.description) if self.description and self.key in BUILT_IN_COLUMNS else self.description


def build_time_column(key: str, title: str, get_time: Callable[[RunRow], datetime]) -> RunColumn:
    return RunColumn(
        key, title, lambda row: render_time(get_time(row)), get_time, "num muted nowrap", "", summaries.render_newest
    )


def build_text_column(key: str, title: str, get_text: Callable[[RunRow], Any], style: str = "muted") -> RunColumn:
    return RunColumn(key, title, lambda row: render_text(str(get_text(row) or "")), get_text, style)


def get_field(name: str) -> Callable[[RunRow], ConfigValue]:
    return lambda row: row.config.find_field(name)


def get_short_model(row: RunRow) -> str | None:
    """The last part of a path or of `owner/model`."""
    model = row.config.find_field("model")
    return model.rstrip("/").rpartition("/")[2] or model if isinstance(model, str) else None


COLUMNS: Final = (
    RunColumn(
        "status", N_("status"), render_status_cell, lambda row: row.status, "nowrap", "", summaries.render_statuses
    ),
    RunColumn(
        "step", N_("step"), render_step_cell, lambda row: row.statistics.step, "num", "", summaries.render_range
    ),
    RunColumn(
        "score", N_("score"), lambda row: format_number(row.statistics.score), lambda row: row.statistics.score,
        "num nowrap", N_("mean score of the latest step"), summaries.render_mean,
    ),
    RunColumn(
        "best", N_("best"), lambda row: format_number(row.statistics.best), lambda row: row.statistics.best,
        "num muted", N_("highest mean score of a step"), summaries.render_best,
    ),
    RunColumn("curve", N_("over steps"), lambda row: render_sparkline(row.points), lambda row: row.statistics.score),
    RunColumn(
        "trunc", N_("trunc"), lambda row: format_percent(row.statistics.truncated, 1),
        lambda row: row.statistics.truncated, "num", N_("truncated at the latest step"), summaries.render_mean_share,
    ),
    RunColumn(
        "flagged", N_("flagged"), render_flags_cell, lambda row: row.statistics.flags, "num", "", summaries.render_sum
    ),
    build_text_column("model", N_("model"), get_short_model, "muted nowrap"),
    build_text_column("algorithm", N_("algorithm"), get_field("algorithm"), "muted nowrap"),
    build_text_column("seed", N_("seed"), get_field("seed"), "num"),
    build_text_column("owner", N_("owner"), get_owner, "muted nowrap"),
    RunColumn("tags", N_("tags"), render_tags_cell, get_tags, "tags"),
    build_text_column("framework", N_("framework"), lambda row: row.run.framework or None),
    RunColumn("project", N_("project"), render_project_cell, lambda row: row.run.project.slug),
    build_time_column("created", N_("created"), lambda row: row.run.created_at),
    build_time_column("updated", N_("updated"), lambda row: row.run.seen_at),
)  # fmt: skip
BUILT_IN_COLUMNS: Final = {column.key: column for column in COLUMNS}
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
    if not row.config.has(name):
        return ""
    value = format_config_value(row.config.get(name))
    return render_text(value if len(value) <= MAX_CONFIG_CHARS else value[: MAX_CONFIG_CHARS - 1] + "…")


def build_metric_column(key: str, name: str) -> RunColumn:
    return RunColumn(
        key,
        shorten_dotted_name(name),
        lambda row: format_number(row.last_value(name), 3),
        lambda row: row.last_value(name),
        "num mono",
        _("last value of {name}").format(name=name),
        summaries.render_mean,
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


def find_header(column: RunColumn, columns: Sequence[RunColumn]) -> str:
    """The title in the table: of a config key its last part, unless another column has the same."""
    if not column.key.startswith(CONFIG_PREFIX):
        return column.label
    names = [other.key.removeprefix(CONFIG_PREFIX) for other in columns if other.key.startswith(CONFIG_PREFIX)]
    end = column.key.removeprefix(CONFIG_PREFIX).rpartition(".")[2]
    is_unique = [name.rpartition(".")[2] for name in names].count(end) == 1
    return shorten_dotted_name(end) if is_unique else column.label


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
