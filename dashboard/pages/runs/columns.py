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

from dashboard.pages.common.formatting import ago, num, percent, plain
from dashboard.pages.common.sparklines import Spark
from rollouts.models import Run
from rollouts.runs.listing import flat, written

CONFIG: Final = "config:"
LAST: Final = "last:"
LONGEST: Final = 200
STATUSES: Final = (N_("running"), N_("silent"), N_("finished"), N_("failed"))
MOST: Final = 24


@dataclass(frozen=True, slots=True)
class Line:
    """A run and what is known of it."""

    run: Run
    status: str
    spark: Spark
    config: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, float | None] = field(default_factory=dict)


def status(line: Line) -> SafeString:
    muted = mark_safe(' class="muted"') if line.status == "finished" else ""
    return format_html('<span class="dot {}"></span> <span{}>{}</span>', line.status, muted, _(line.status))


def step(line: Line) -> SafeString | str:
    if not line.spark.last:
        return ""
    address = reverse("step", args=[line.run.uid, "latest"])
    return format_html('<a class="quiet" href="{}">{}</a>', address, num(line.spark.last.step, 0))


def score(line: Line) -> SafeString | str:
    last = line.spark.last
    value = "" if last is None or last.score_mean is None else num(last.score_mean)
    told = format_html('<span class="spark-value">{}</span>', value) if value else mark_safe("")
    return told + drawn(line.spark.points) if line.spark.points else told


def drawn(points: str) -> SafeString:
    return format_html(
        '<svg class="spark" width="100" height="20" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><polyline points="{}" vector-effect="non-scaling-stroke"/></svg>',
        _("Mean score over steps"),
        points,
    )


def truncated(line: Line) -> str:
    last = line.spark.last
    return percent(last.truncated, last.samples) if last else ""


def flagged(line: Line) -> SafeString:
    if not line.spark.flags:
        return mark_safe('<span class="muted">0</span>')
    return format_html('<span class="tag flag">⚑ {}</span>', num(line.spark.flags, 0))


def tags(line: Line) -> SafeString:
    """Each a link to the runs that have it."""
    root = reverse("runs")
    told = ((root, asked(str(tag)), plain(str(tag))) for tag in line.run.tags)
    return format_html_join(" ", '<a class="tag plain" href="{}?name=tag:{}">{}</a>', told)


def asked(tag: str) -> str:
    return quote(f'"{tag}"' if any(sign.isspace() for sign in tag) else tag)


def project(line: Line) -> SafeString:
    slug = line.run.project.slug
    return format_html('<a class="quiet muted" href="{}?project={}">{}</a>', reverse("runs"), slug, slug)


def framework(line: Line) -> SafeString:
    return plain(line.run.framework)


def owner(line: Line) -> str:
    return line.run.owner.get_username() if line.run.owner else ""


@dataclass(frozen=True, slots=True)
class Column:
    """`shown` draws the cell, `value` is what it sorts and groups by; None stands last either way."""

    key: str
    title: str
    shown: Callable[[Line], SafeString | str]
    value: Callable[[Line], Any]
    style: str = ""
    about: str = ""

    @property
    def called(self) -> str:
        """The title in the reader's language; keys of configs and metrics stay as they are."""
        return self.title if self.key.startswith((CONFIG, LAST)) else _(self.title)

    @property
    def hint(self) -> str:
        return _(self.about) if self.about and self.key in FACTS else self.about


def truncated_share(line: Line) -> float | None:
    last = line.spark.last
    return None if last is None or last.truncated is None else last.truncated / max(1, last.samples)


def tag_words(line: Line) -> str | None:
    return ", ".join(map(str, line.run.tags)) or None


TIME: Final = "num muted nowrap"
FACTS: Final = {
    one.key: one
    for one in (
        Column("status", N_("status"), status, lambda line: line.status, "nowrap"),
        Column("step", N_("step"), step, lambda line: line.spark.last and line.spark.last.step, "num"),
        Column("score", N_("score"), score, lambda line: line.spark.last and line.spark.last.score_mean, "nowrap"),
        Column("trunc", N_("trunc"), truncated, truncated_share, "num", N_("truncated at the last step")),
        Column("flagged", N_("flagged"), flagged, lambda line: line.spark.flags, "num"),
        Column("owner", N_("owner"), owner, lambda line: owner(line) or None, "muted nowrap"),
        Column("tags", N_("tags"), tags, tag_words, "tags"),
        Column("framework", N_("framework"), framework, lambda line: line.run.framework or None, "muted"),
        Column("project", N_("project"), project, lambda line: line.run.project.slug),
        Column("created", N_("created"), lambda line: ago(line.run.created_at), lambda line: line.run.created_at, TIME),
        Column("updated", N_("updated"), lambda line: ago(line.run.seen_at), lambda line: line.run.seen_at, TIME),
    )
}
NAME: Final = Column("name", N_("run"), lambda line: line.run.name, lambda line: line.run.name.lower())
USUAL: Final = ("status", "step", "score", "trunc", "flagged", "owner", "tags", "framework", "project", "updated")


def column(key: str) -> Column | None:
    """One that is asked for by name; None for what is no column."""
    if key in FACTS:
        return FACTS[key]
    if key == NAME.key:
        return NAME
    if key.startswith(CONFIG) and len(key) > len(CONFIG):
        return of_config(key)
    if key.startswith(LAST) and len(key) > len(LAST):
        return of_metric(key)
    return None


def of_config(key: str) -> Column:
    name = key.removeprefix(CONFIG)
    return Column(
        key,
        ended(name),
        lambda line: config_cell(line, name),
        lambda line: config_value(line, name),
        "num clip mono",
        name,
    )


def config_value(line: Line, name: str) -> Any:
    value = line.config.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if value is None or number else written(value)


def config_cell(line: Line, name: str) -> SafeString | str:
    if name not in line.config:
        return ""
    value = written(line.config[name])
    return plain(value if len(value) <= LONGEST else value[: LONGEST - 1] + "…")


def of_metric(key: str) -> Column:
    name = key.removeprefix(LAST)
    return Column(
        key,
        ended(name),
        lambda line: num(line.last.get(name), 3),
        lambda line: line.last.get(name),
        "num mono",
        _("last value of {name}").format(name=name),
    )


def ended(name: str, most: int = 24) -> str:
    """As many of a long dotted name's last parts as fit: they tell more than its first."""
    if len(name) <= most:
        return name
    parts = name.split(".")
    kept = parts.pop()[-most:]
    while parts and len(kept) + len(parts[-1]) < most:
        kept = f"{parts.pop()}.{kept}"
    return f"…{kept}"


def chosen(keys: Sequence[str]) -> list[Column]:
    found = [column(key) for key in dict.fromkeys(keys)]
    return [one for one in found if one is not None and one is not NAME][:MOST]


def lines(
    runs: Sequence[Run],
    states: Mapping[int, str],
    sparks: Mapping[int, Spark],
    last: Mapping[str, Mapping[str, float | None]],
    *,
    deep: bool,
) -> list[Line]:
    return [
        Line(run, states[run.pk], sparks.get(run.pk, Spark()), flat(run.config) if deep else {}, last.get(run.uid, {}))
        for run in runs
    ]


def ordered(found: Sequence[Line], by: Column, *, down: bool) -> list[Line]:
    """Numbers apart from words, what has no value last; equal ones stay in their order."""
    ranked = [(rank(by.value(line)), line) for line in found]
    known = [(place, line) for place, line in ranked if place is not None]
    known.sort(key=itemgetter(0), reverse=down)
    return [line for _, line in known] + [line for place, line in ranked if place is None]


MOST_NUMBER = 10**300  # a whole number of a config may be larger than any float


def rank(value: Any) -> tuple[int, float, str] | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < MOST_NUMBER):
        return 0, float(value), ""
    return 1, 0.0, str(value).lower()
