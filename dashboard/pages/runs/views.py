"""The list of runs in all projects that the user may see."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.runs import columns as run_columns
from dashboard.pages.runs import groups as run_groups
from dashboard.pages.runs.columns import (
    BUILT_IN_COLUMNS,
    CONFIG_PREFIX,
    LAST_VALUE_PREFIX,
    RunColumn,
    RunRow,
    find_header,
)
from dashboard.pages.runs.default_columns import find_default_columns
from dashboard.pages.runs.groups import RunRowGroup
from dashboard.pages.runs.sparklines import add_sparklines
from dashboard.pages.runs.table_export import render_csv
from dashboard.pages.runs.url_state import COLUMNS_COOKIE, RunsUrlState, parse_columns_cookie, serialize_columns_cookie
from dashboard.pages.runs.view_chips import build_view_chips
from dashboard.pages.saved_views import find_views
from rolloutdeck.trainer_api import TRAINERS
from rollouts.models import Project, SavedView
from rollouts.query import InvalidQueryError
from rollouts.runs import MAX_SEARCHED_RUNS, RunResult, count_config_values, find_runs

PANELS = {"runs": "runs/table.html", "columns": "runs/columns.html"}
PAGE_ROWS = 100  # lines: runs and groups
MAX_OPEN_RUNS = 40  # in a longer list, groups are folded
MAX_PICKER_RUNS = 200  # newest runs whose config keys and metrics are offered as columns
# With an error, htmx shows only the message and leaves the last result on the page.
KEEP_RESULT_HEADERS = {"HX-Retarget": "#q-error", "HX-Reswap": "innerHTML", "HX-Replace-Url": "false"}


@login_required
@require_safe
def runs_page(request: HttpRequest) -> HttpResponseBase:
    """`?q=` is a query about runs, `col=` once per column, `sort=`, `group=`, `show=archived|bin`, `export=csv`.

    A URL without columns is redirected to one with the columns that were last chosen in this browser.
    """
    url_state = RunsUrlState.from_query(request.GET)
    panel = common.get_requested_panel(request)
    if "remember" in request.GET:
        return save_columns_view(request, url_state)
    exports = request.GET.get("export") == "csv"
    if not url_state.col and not panel and not exports and (saved := parse_columns_cookie(request)):
        return redirect(reverse("runs") + url_state.link(col=saved))
    roles = permissions.visible_projects(request).load_with_roles(request.user)
    result, error = search_runs(request, url_state, {project.pk: project for project in roles})
    if exports:
        return export_runs(result, url_state)

    views = list(find_views(common.get_signed_in_user(request), "runs"))

    def build_context(panel: str) -> dict[str, Any]:
        if error and panel == "runs":
            return {"result": {"error": error}, "template": "step/error.html", "headers": KEEP_RESULT_HEADERS}
        if panel == "columns":
            return build_column_picker_context(url_state, result)
        return build_runs_context(request, url_state, result, roles, views) | {"error": error}

    statuses = result.table.statuses
    state: list[tuple[Any, ...]] = [(run.uid, run.version, statuses[run.pk]) for run in result.matches]
    # The counts of views and of all runs depend on runs that do not match, too.
    state += [(len(result.table.runs), sum(run.version for run in result.table.runs))]
    state += sorted(Counter(statuses.values()).items())
    state += [(view.pk, view.updated_at) for view in views]
    return common.render_page_or_panel(request, "runs/page.html", PANELS, build_context, *state, *roles.items())


def save_columns_view(request: HttpRequest, url_state: RunsUrlState) -> HttpResponse:
    """Saves the columns of the picker in a cookie; the button for the default columns deletes the cookie."""
    columns = () if "usual" in request.GET else url_state.col
    path = reverse("runs")
    response = redirect(path + url_state.link(col=columns))
    if columns:
        response.set_cookie(
            COLUMNS_COOKIE, serialize_columns_cookie(columns), max_age=common.YEAR_SECONDS, path=path, samesite="Lax"
        )
    else:
        response.delete_cookie(COLUMNS_COOKIE, path=path, samesite="Lax")
    return response


def search_runs(
    request: HttpRequest, url_state: RunsUrlState, projects: Mapping[int, Project]
) -> tuple[RunResult, SafeString | str]:
    """The runs of the URL, and the message about a query that cannot be answered: then without the query."""
    in_trash = url_state.show == "bin"
    runs = permissions.trashed_runs(request) if in_trash else permissions.visible_runs(request)
    if url_state.project:
        runs = runs.filter(project__slug=url_state.project)
        used = next((project for project in projects.values() if project.slug == url_state.project), None)
        permissions.remember_last_project(request, used)
    archived = None if in_trash else url_state.show == "archived"
    reader = common.get_signed_in_user(request).pk
    try:
        return find_runs(runs, url_state.q, reader=reader, archived=archived, projects=projects), ""
    except InvalidQueryError as problem:
        error = common.render_query_error(url_state.q, problem)
        return find_runs(runs, reader=reader, archived=archived, projects=projects), error


def sort_rows(result: RunResult, url_state: RunsUrlState) -> list[RunRow]:
    rows = [RunRow(run, result.table) for run in result.matches]
    return run_columns.sort_run_rows(rows, url_state.order, descending=url_state.descending)


def export_runs(result: RunResult, url_state: RunsUrlState) -> HttpResponse:
    rows = sort_rows(result, url_state)
    return render_csv(rows, run_columns.find_columns(url_state.col) or find_default_columns(rows))


def build_runs_context(
    request: HttpRequest,
    url_state: RunsUrlState,
    result: RunResult,
    roles: Mapping[Project, str],
    views: Sequence[SavedView],
) -> dict[str, Any]:
    rows = sort_rows(result, url_state)
    columns = run_columns.find_columns(url_state.col) or find_default_columns(rows)
    entries = run_groups.build_groups(rows, url_state.group_keys, url_state.order, descending=url_state.descending)
    usually_open = len(rows) <= MAX_OPEN_RUNS

    def is_open(group: RunRowGroup) -> bool:
        return group.key not in url_state.shut if usually_open else group.key in url_state.open

    lines = list(run_groups.iter_visible_lines(entries, is_open))
    start, end = url_state.start, url_state.start + PAGE_ROWS
    rank = max((permissions.ROLE_RANKS[role] for role in roles.values()), default=0)
    filtered = bool(url_state.q or url_state.project or url_state.show)
    own_project = url_state.project if not (rows or url_state.q or url_state.show) else ""
    is_new_project = own_project in {project.slug for project in roles} and not (
        permissions.visible_runs(request).filter(project__slug=own_project).exists()
    )
    shown = add_sparklines(lines[start:end])
    return {
        "headers": {"HX-Replace-Url": reverse("runs") + url_state.link()},
        "url_state": url_state,
        "columns": [
            (column, find_header(column, columns), url_state.column_link(column.key), get_sort_arrow(url_state, column))
            for column in columns
        ],
        "name_column": (url_state.column_link("name"), get_sort_arrow(url_state, run_columns.NAME_COLUMN)),
        "lines": build_lines(shown, columns, url_state, is_open, usually_open=usually_open),
        "count": len(rows),
        "group_count": run_groups.count_groups(entries),
        "searched": len(result.table.runs),
        "view_chips": build_view_chips(views, result, url_state),
        "first": start + 1,
        "last": min(end, len(lines)),
        "line_count": len(lines),
        "before": url_state.link(start=max(0, start - PAGE_ROWS)) if start else "",
        "after": url_state.link(start=end) if end < len(lines) else "",
        "more": result.has_more,
        "max_runs": MAX_SEARCHED_RUNS,
        "explanation": [(effect, url_state.link(q=effect.rest, start=0)) for effect in result.explanation],
        "export": url_state.link(col=tuple(column.key for column in columns), start=0) + "&export=csv",
        "projects": list(roles),
        "groupings": list_groupings(url_state, columns),
        "maintains": rank >= permissions.ROLE_RANKS["maintainer"],
        "owns": rank >= permissions.ROLE_RANKS["owner"],
        "shows": [("", _("active")), ("archived", _("archived")), ("bin", _("trash"))],
        "new_project": own_project if is_new_project else "",
        "empty": not rows and not filtered and not permissions.visible_runs(request).exists(),
        "address": settings.PUBLIC_URL,
        "trainers": TRAINERS,
        "tags": sorted({str(tag) for row in rows for tag in row.run.tags})[:200],
    }


def get_sort_arrow(url_state: RunsUrlState, column: RunColumn) -> str:
    return "" if url_state.order.key != column.key else " ↓" if url_state.descending else " ↑"


def list_groupings(url_state: RunsUrlState, columns: Sequence[RunColumn]) -> list[tuple[str, str, bool]]:
    """[(value, label, is selected)] of the usual groups, and of the shown config keys."""
    config_keys = [column.key for column in columns if column.key.startswith(CONFIG_PREFIX)]
    keys = dict.fromkeys(["model", "algorithm", "tags", "status", "owner", "framework", "project", *config_keys])
    by_column = _("by {name}")
    options = {key: _(name) for key, name in run_groups.GROUP_NAMES.items()}
    selected = ",".join(url_state.group_keys)
    for key in (*keys, selected):
        columns_of_key = [run_columns.find_column(part) for part in key.split(",")]
        name = ", ".join(column.label for column in columns_of_key if column)
        options.setdefault(key, by_column.format(name=name))
    return [(key, label, key == selected) for key, label in options.items()]


def build_lines(
    lines: Sequence[RunRowGroup | RunRow],
    columns: Sequence[RunColumn],
    url_state: RunsUrlState,
    is_open: Any,
    *,
    usually_open: bool,
) -> list[dict[str, Any]]:
    """What the template shows of each line: a run, or a group with the values of its runs summed up. A cell is (CSS
    classes, label on narrow screens, content)."""
    result: list[dict[str, Any]] = []
    levels: list[RunRowGroup] = []
    heads = [(column, find_cell_style(column), common.render_text(find_header(column, columns))) for column in columns]
    for line in lines:
        if isinstance(line, RunRowGroup):
            levels = [*levels[: line.level], line]
            opened = is_open(line)
            cells = [(style, label, summarize_column(column, line)) for column, style, label in heads]
            link = url_state.fold_link(line.key, is_open=opened, usually_open=usually_open)
            result.append({"group": line, "open": opened, "link": link, "cells": cells})
        else:
            while levels and all(row.run.pk != line.run.pk for row in levels[-1].rows):
                levels.pop()
            cells = [(style, label, column.render(line)) for column, style, label in heads]
            result.append({"run": line.run, "level": len(levels), "cells": cells})
    return result


def find_cell_style(column: RunColumn) -> str:
    return f"{column.style} k-{column.key}" if column.key in BUILT_IN_COLUMNS else column.style


def summarize_column(column: RunColumn, group: RunRowGroup) -> SafeString | str:
    if column.key == "curve":
        return run_columns.render_sparkline(group.points)
    return column.summarize([column.value(row) for row in group.rows])


def build_column_picker_context(url_state: RunsUrlState, result: RunResult) -> dict[str, Any]:
    """All columns that have values in the newest runs. In each section, selected columns are first."""
    newest = result.matches[:MAX_PICKER_RUNS]
    counts = count_config_values(result.table.configs[run.pk] for run in newest)
    rows = [RunRow(run, result.table) for run in newest]
    selected = set(url_state.col or [column.key for column in find_default_columns(rows)])

    def build_options(keys: Sequence[str], prefix: str = "") -> list[tuple[str, str, bool]]:
        columns = [column for key in keys if (column := run_columns.find_column(prefix + key))]
        options = [
            (column.key, column.key.removeprefix(prefix) if prefix else column.label, column.key in selected)
            for column in columns
        ]
        return sorted(options, key=lambda option: not option[2])

    different, equal = ([key for key in sorted(counts) if (counts[key] > 1) == differs] for differs in (True, False))
    return {
        "url_state": url_state,
        "sections": [
            (_("run fields"), build_options(list(BUILT_IN_COLUMNS))),
            (_("config: differs between runs"), build_options(different, CONFIG_PREFIX)),
            (_("metrics: last value"), build_options(result.table.metric_names, LAST_VALUE_PREFIX)),
            (_("config: same in all runs"), build_options(equal, CONFIG_PREFIX)),
        ],
        "max_columns": run_columns.MAX_COLUMNS,
    }
