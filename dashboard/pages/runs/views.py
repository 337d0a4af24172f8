"""The runs of all projects that a person may see. One run is listed too: a list with one row says where you are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    format_number,
    format_run_status,
    get_requested_panel,
    get_signed_in_user,
    load_run_sparklines,
    render_page_or_panel,
)
from dashboard.pages.runs import columns as run_columns
from dashboard.pages.runs.columns import CONFIG_PREFIX, LAST_VALUE_PREFIX, RunColumn, RunRow
from dashboard.pages.runs.url_state import COLUMNS_COOKIE, RunsUrlState, parse_columns_cookie, serialize_columns_cookie
from rolloutdeck.trainer_api import TRAINERS
from rollouts.lib import MAX_LAST_VALUES, Cache
from rollouts.metrics import list_recent_metric_names, load_last_values
from rollouts.models import Membership, Run
from rollouts.runs import compare_config_keys, filter_runs, load_run_statuses, parse_run_filter

PANELS = {"runs": "runs/table.html", "columns": "runs/columns.html"}
MAX_LISTED_RUNS = 1000
PAGE_ROWS = 200
MAX_PICKER_RUNS = 60  # newest runs whose config keys and metrics are offered as columns
YEAR = 31_536_000


@login_required
@require_safe
def runs_page(request: HttpRequest) -> HttpResponseBase:
    """`?name=` filters (words as in `run_list.terms`), `col=` once per column, `sort=`, `group=`, `show=archived|bin`.

    An address without columns takes those of the browser's last choice, and then says so.
    """
    asked = RunsUrlState.of(request.GET)
    panel = get_requested_panel(request)
    if "remember" in request.GET:
        return save_columns_view(request, asked)
    if not asked.col and not panel and (kept := parse_columns_cookie(request)):
        return redirect(reverse("runs") + asked.link(col=kept))
    found = load_listed_runs(request, asked)
    states = load_run_statuses(found)
    shown = filter_runs(found, parse_run_filter(asked.name), states)
    state = [(run.uid, run.version, states[run.pk]) for run in shown]
    roles = load_roles(request)
    if panel == "columns":
        return render_page_or_panel(
            request, "runs/page.html", PANELS, lambda panel: build_column_picker_context(asked, shown), *state
        )
    return render_page_or_panel(
        request,
        "runs/page.html",
        PANELS,
        lambda panel: build_runs_context(request, asked, shown, states, roles),
        *state,
        str(roles),
    )


def save_columns_view(request: HttpRequest, asked: RunsUrlState) -> HttpResponse:
    """The picker was sent: its columns are the browser's from now on; none are the usual ones."""
    columns = () if "usual" in request.GET else asked.col
    answer = redirect(reverse("runs") + asked.link(col=columns))
    path = reverse("runs")
    if columns:
        answer.set_cookie(COLUMNS_COOKIE, serialize_columns_cookie(columns), max_age=YEAR, path=path, samesite="Lax")
    else:
        answer.delete_cookie(COLUMNS_COOKIE, path=path, samesite="Lax")
    return answer


def load_listed_runs(request: HttpRequest, asked: RunsUrlState) -> list[Run]:
    """The runs with the latest news, at most one more than `MOST`; what is large only where it is needed."""
    rows: QuerySet[Run] = permissions.visible_runs(request).filter(archived_at__isnull=asked.show != "archived")
    if asked.show == "bin":
        rows = permissions.trashed_runs(request)
    if asked.project:
        rows = rows.filter(project__slug=asked.project)
    wanted = parse_run_filter(asked.name)
    for term in wanted:
        if not term.name and not term.negated:
            rows = rows.filter(name__icontains=term.value)
    deep = (
        any(term.of_config for term in wanted)
        or bool(asked.needs(CONFIG_PREFIX))
        or get_requested_panel(request) == "columns"
    )
    rows = rows.select_related("project", "owner").order_by("-seen_at", "-pk")
    return list(rows.defer("facts", "pollers", *([] if deep else ["config"]))[: MAX_LISTED_RUNS + 1])


def load_roles(request: HttpRequest) -> dict[int, str]:
    """The person's role by project."""
    if request.user.is_superuser:
        return dict.fromkeys(permissions.visible_projects(request).values_list("pk", flat=True), Membership.Role.OWNER)
    return dict(Membership.objects.filter(user=get_signed_in_user(request)).values_list("project", "role"))


def build_runs_context(
    request: HttpRequest, asked: RunsUrlState, shown: list[Run], states: dict[int, str], roles: dict[int, str]
) -> dict[str, Any]:
    few = shown[:MAX_LISTED_RUNS]
    found = load_run_sparklines(few)
    last = last_values(few, asked.needs(LAST_VALUE_PREFIX))
    lines = run_columns.build_run_rows(few, states, found, last, deep=bool(asked.needs(CONFIG_PREFIX)))
    lines = run_columns.sort_run_rows(lines, asked.order, down=asked.down)
    columns = run_columns.find_columns(asked.col) or find_default_columns(lines)
    page = lines[asked.start : asked.start + PAGE_ROWS]
    following = asked.start + PAGE_ROWS
    ranks = [permissions.ROLE_RANKS[role] for role in roles.values()]
    filtered = bool(asked.name or asked.project or asked.show)
    return {
        "headers": {"HX-Replace-Url": reverse("runs") + asked.link()},
        "asked": asked,
        "columns": [(one, asked.turned(one.key), get_sort_arrow(asked, one)) for one in columns],
        "name_column": (asked.turned("name"), get_sort_arrow(asked, run_columns.NAME_COLUMN)),
        "width": len(columns) + 2,
        "groups": group_run_rows(page, run_columns.find_column(asked.group), columns),
        "count": len(lines),
        "first": asked.start + 1,
        "last": min(following, len(lines)),
        "before": asked.link(start=max(0, asked.start - PAGE_ROWS)) if asked.start else "",
        "after": asked.link(start=following) if following < len(lines) else "",
        "more": len(shown) > MAX_LISTED_RUNS,
        "most": MAX_LISTED_RUNS,
        "projects": list(permissions.visible_projects(request).order_by("slug")),
        "grouping": list_groupings(asked, columns),
        "maintains": max(ranks, default=0) >= permissions.ROLE_RANKS["maintainer"],
        "owns": max(ranks, default=0) >= permissions.ROLE_RANKS["owner"],
        "shows": [("", _("active")), ("archived", _("archived")), ("bin", _("trash"))],
        "empty": not shown and not filtered and not permissions.visible_runs(request).exists(),
        "address": settings.PUBLIC_URL,
        "trainers": TRAINERS,
        "tags": sorted({str(tag) for line in lines for tag in line.run.tags})[:200],
    }


def get_sort_arrow(asked: RunsUrlState, one: RunColumn) -> str:
    return "" if asked.order.key != one.key else " ↓" if asked.down else " ↑"


def find_default_columns(lines: Sequence[RunRow]) -> list[RunColumn]:
    """The columns without a choice; those that say nothing of any run are left out."""
    optional = {"trunc", "owner", "tags", "framework"}
    told = {key for key in optional if any(run_columns.BUILT_IN_COLUMNS[key].value(line) is not None for line in lines)}
    return [
        run_columns.BUILT_IN_COLUMNS[key]
        for key in run_columns.DEFAULT_COLUMN_KEYS
        if key not in optional or key in told
    ]


def list_groupings(asked: RunsUrlState, columns: Sequence[RunColumn]) -> list[tuple[str, str]]:
    """What the list can be grouped by: facts, and the config keys that are shown."""
    facts = ["status", "owner", "tags", "framework", "project"]
    configs = [one.key for one in columns if one.key.startswith(CONFIG_PREFIX)]
    keys = dict.fromkeys([*facts, *configs, *([asked.group] if asked.group else [])])
    return [(key, one.called) for key in keys if (one := run_columns.find_column(key))]


def group_run_rows(page: Sequence[RunRow], by: RunColumn | None, columns: Sequence[RunColumn]) -> list[dict[str, Any]]:
    """The page's lines in groups of one value each, in their order; one group without a title where none is asked."""
    if by is None:
        return [{"title": "", "lines": build_row_cells(page, columns)}]
    groups: dict[Any, list[RunRow]] = {}
    for line in run_columns.sort_run_rows(page, by, down=False):
        groups.setdefault(by.value(line), []).append(line)
    return [
        {
            "title": format_group_title(value, by),
            "said": by.called,
            "count": len(found),
            "score": mean_score(found),
            "lines": build_row_cells(found, columns),
        }
        for value, found in groups.items()
    ]


def format_group_title(value: Any, by: RunColumn) -> str:
    if value is None:
        return _("not reported")
    if by.key == "status":
        return format_run_status(value)
    return format_number(value, 4) if isinstance(value, float) else str(value)


def mean_score(found: Sequence[RunRow]) -> float | None:
    known = [line.spark.last.score_mean for line in found if line.spark.last]
    told = [score for score in known if score is not None]
    return fmean(told) if told else None


def build_row_cells(page: Sequence[RunRow], columns: Sequence[RunColumn]) -> list[tuple[Run, list[tuple[str, str]]]]:
    return [(line.run, [(one.style, one.shown(line)) for one in columns]) for line in page]


# --- values of metrics ------------------------------------------------------------------------------------------------

Mark = tuple[int, datetime, int, str]
kept: Cache[Mark, float | None] = Cache(MAX_LAST_VALUES)


def last_values(found: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """By run uid and metric; a run's version names its content, so only runs that changed are asked for."""
    marks = {mark(run, name): run for run in found for name in names}
    values = kept.get_many(marks, lambda missing: made({marks[one] for one in missing}, names))
    return {run.uid: {name: values[mark(run, name)] for name in names} for run in found}


def made(runs: Collection[Run], names: Sequence[str]) -> dict[Mark, float | None]:
    fresh = load_last_values(list(runs), names)
    return {mark(run, name): fresh[run.uid].get(name) for run in runs for name in names}


def mark(run: Run, name: str) -> Mark:
    return run.pk, run.created_at, run.version, name


# --- the picker -------------------------------------------------------------------------------------------------------


def build_column_picker_context(asked: RunsUrlState, shown: Sequence[Run]) -> dict[str, Any]:
    """Every column that the newest of these runs could fill, those that are on first."""
    newest = shown[:MAX_PICKER_RUNS]
    differ, alike = compare_config_keys(newest)
    on = set(asked.col or run_columns.DEFAULT_COLUMN_KEYS)
    metrics = list_recent_metric_names(newest)

    def offered(keys: Sequence[str], prefix: str = "") -> list[tuple[str, str, bool]]:
        columns = [one for key in keys if (one := run_columns.find_column(prefix + key))]
        rows = [(one.key, one.key.removeprefix(prefix) if prefix else one.called, one.key in on) for one in columns]
        return sorted(rows, key=lambda row: not row[2])

    return {
        "asked": asked,
        "sections": [
            (_("run fields"), offered(list(run_columns.BUILT_IN_COLUMNS))),
            (_("config: differs between runs"), offered(differ, CONFIG_PREFIX)),
            (_("metrics: last value"), offered(metrics, LAST_VALUE_PREFIX)),
            (_("config: same in all runs"), offered(alike, CONFIG_PREFIX)),
        ],
        "most": run_columns.MAX_COLUMNS,
    }
