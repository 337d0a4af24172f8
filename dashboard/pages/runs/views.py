"""The list of runs in all projects that the user may see."""

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
    RunSparkline,
    format_number,
    format_run_status,
    get_requested_panel,
    get_signed_in_user,
    load_run_sparklines,
    render_page_or_panel,
)
from dashboard.pages.runs import columns as run_columns
from dashboard.pages.runs.columns import BUILT_IN_COLUMNS, CONFIG_PREFIX, LAST_VALUE_PREFIX, RunColumn, RunRow
from dashboard.pages.runs.url_state import COLUMNS_COOKIE, RunsUrlState, parse_columns_cookie, serialize_columns_cookie
from rolloutdeck.trainer_api import TRAINERS
from rollouts.lib import MAX_LAST_VALUES, Cache
from rollouts.metrics import list_recent_metric_names, load_last_values
from rollouts.models import Membership, Run
from rollouts.runs import compare_config_keys, filter_runs, flatten_config, load_run_statuses, parse_run_filter

PANELS = {"runs": "runs/table.html", "columns": "runs/columns.html"}
OPTIONAL_COLUMN_KEYS = ("trunc", "owner", "tags", "framework")  # default columns that are left out if they are empty
MAX_LISTED_RUNS = 1000
PAGE_ROWS = 200
MAX_PICKER_RUNS = 60  # newest runs whose config keys and metrics are offered as columns
YEAR = 31_536_000

LastValueKey = tuple[int, datetime, int, str]  # a run's id, birth and version, which name its content; a metric
last_values_cache: Cache[LastValueKey, float | None] = Cache(MAX_LAST_VALUES)


@login_required
@require_safe
def runs_page(request: HttpRequest) -> HttpResponseBase:
    """`?name=` filters (see `parse_run_filter`), `col=` once per column, `sort=`, `group=`, `show=archived|bin`.

    A URL without columns is redirected to one with the columns that were last chosen in this browser.
    """
    url_state = RunsUrlState.from_query(request.GET)
    panel = get_requested_panel(request)
    if "remember" in request.GET:
        return save_columns_view(request, url_state)
    if not url_state.col and not panel and (saved := parse_columns_cookie(request)):
        return redirect(reverse("runs") + url_state.link(col=saved))
    listed = load_listed_runs(request, url_state)
    statuses = load_run_statuses(listed)
    runs = filter_runs(listed, parse_run_filter(url_state.name), statuses)
    roles = load_roles(request)

    def build_context(panel: str) -> dict[str, Any]:
        if panel == "columns":
            return build_column_picker_context(url_state, runs)
        return build_runs_context(request, url_state, runs, statuses, roles)

    state = [(run.uid, run.version, statuses[run.pk]) for run in runs]
    return render_page_or_panel(request, "runs/page.html", PANELS, build_context, *state, str(roles))


def save_columns_view(request: HttpRequest, url_state: RunsUrlState) -> HttpResponse:
    """Saves the columns of the picker in a cookie; the button for the default columns deletes the cookie."""
    columns = () if "usual" in request.GET else url_state.col
    path = reverse("runs")
    response = redirect(path + url_state.link(col=columns))
    if columns:
        response.set_cookie(COLUMNS_COOKIE, serialize_columns_cookie(columns), max_age=YEAR, path=path, samesite="Lax")
    else:
        response.delete_cookie(COLUMNS_COOKIE, path=path, samesite="Lax")
    return response


def load_listed_runs(request: HttpRequest, url_state: RunsUrlState) -> list[Run]:
    """The most recently updated runs, at most one more than `MAX_LISTED_RUNS`. Configs are loaded only if needed."""
    runs: QuerySet[Run] = permissions.visible_runs(request).filter(archived_at__isnull=url_state.show != "archived")
    if url_state.show == "bin":
        runs = permissions.trashed_runs(request)
    if url_state.project:
        runs = runs.filter(project__slug=url_state.project)
    terms = parse_run_filter(url_state.name)
    for term in terms:
        if not term.name and not term.negated:
            runs = runs.filter(name__icontains=term.value)
    needs_config = url_state.find_names(CONFIG_PREFIX) or get_requested_panel(request) == "columns"
    if not needs_config and not any(term.needs_config for term in terms):
        runs = runs.defer("config")
    runs = runs.select_related("project", "owner").defer("facts", "pollers").order_by("-seen_at", "-pk")
    return list(runs[: MAX_LISTED_RUNS + 1])


def load_roles(request: HttpRequest) -> dict[int, str]:
    """The user's role by project id."""
    if request.user.is_superuser:
        return dict.fromkeys(permissions.visible_projects(request).values_list("pk", flat=True), Membership.Role.OWNER)
    return dict(Membership.objects.filter(user=get_signed_in_user(request)).values_list("project", "role"))


def build_runs_context(
    request: HttpRequest, url_state: RunsUrlState, runs: list[Run], statuses: dict[int, str], roles: dict[int, str]
) -> dict[str, Any]:
    rows = build_run_rows(runs[:MAX_LISTED_RUNS], statuses, url_state)
    rows = run_columns.sort_run_rows(rows, url_state.order, descending=url_state.descending)
    columns = run_columns.find_columns(url_state.col) or find_default_columns(rows)
    start, end = url_state.start, url_state.start + PAGE_ROWS
    rank = max((permissions.ROLE_RANKS[role] for role in roles.values()), default=0)
    filtered = bool(url_state.name or url_state.project or url_state.show)
    return {
        "headers": {"HX-Replace-Url": reverse("runs") + url_state.link()},
        "url_state": url_state,
        "columns": [
            (column, url_state.column_link(column.key), get_sort_arrow(url_state, column)) for column in columns
        ],
        "name_column": (url_state.column_link("name"), get_sort_arrow(url_state, run_columns.NAME_COLUMN)),
        "width": len(columns) + 2,
        "groups": group_run_rows(rows[start:end], run_columns.find_column(url_state.group), columns),
        "count": len(rows),
        "first": start + 1,
        "last": min(end, len(rows)),
        "before": url_state.link(start=max(0, start - PAGE_ROWS)) if start else "",
        "after": url_state.link(start=end) if end < len(rows) else "",
        "more": len(runs) > MAX_LISTED_RUNS,
        "most": MAX_LISTED_RUNS,
        "projects": list(permissions.visible_projects(request).order_by("slug")),
        "groupings": list_groupings(url_state, columns),
        "maintains": rank >= permissions.ROLE_RANKS["maintainer"],
        "owns": rank >= permissions.ROLE_RANKS["owner"],
        "shows": [("", _("active")), ("archived", _("archived")), ("bin", _("trash"))],
        "empty": not runs and not filtered and not permissions.visible_runs(request).exists(),
        "address": settings.PUBLIC_URL,
        "trainers": TRAINERS,
        "tags": sorted({str(tag) for row in rows for tag in row.run.tags})[:200],
    }


def build_run_rows(runs: Sequence[Run], statuses: dict[int, str], url_state: RunsUrlState) -> list[RunRow]:
    sparklines = load_run_sparklines(runs)
    last = load_cached_last_values(runs, url_state.find_names(LAST_VALUE_PREFIX))
    needs_config = bool(url_state.find_names(CONFIG_PREFIX))
    return [
        RunRow(
            run,
            statuses[run.pk],
            sparklines.get(run.pk, RunSparkline()),
            flatten_config(run.config) if needs_config else {},
            last.get(run.uid, {}),
        )
        for run in runs
    ]


def get_sort_arrow(url_state: RunsUrlState, column: RunColumn) -> str:
    return "" if url_state.order.key != column.key else " ↓" if url_state.descending else " ↑"


def find_default_columns(rows: Sequence[RunRow]) -> list[RunColumn]:
    """The columns if none were chosen, without optional ones that no run has a value for."""
    return [
        BUILT_IN_COLUMNS[key]
        for key in run_columns.DEFAULT_COLUMN_KEYS
        if key not in OPTIONAL_COLUMN_KEYS or any(BUILT_IN_COLUMNS[key].value(row) is not None for row in rows)
    ]


def list_groupings(url_state: RunsUrlState, columns: Sequence[RunColumn]) -> list[tuple[str, str]]:
    """[(key, label)] of the run fields and of the shown config keys that the list can be grouped by."""
    config_keys = [column.key for column in columns if column.key.startswith(CONFIG_PREFIX)]
    keys = dict.fromkeys(["status", "owner", "tags", "framework", "project", *config_keys, url_state.group])
    return [(key, column.label) for key in keys if (column := run_columns.find_column(key))]


def group_run_rows(rows: Sequence[RunRow], by: RunColumn | None, columns: Sequence[RunColumn]) -> list[dict[str, Any]]:
    """The rows in groups with one value each. Without `by`, one group without a title."""
    if by is None:
        return [{"title": "", "rows": build_row_cells(rows, columns)}]
    groups: dict[Any, list[RunRow]] = {}
    for row in run_columns.sort_run_rows(rows, by, descending=False):
        groups.setdefault(by.value(row), []).append(row)
    return [
        {
            "title": format_group_title(value, by),
            "label": by.label,
            "count": len(members),
            "score": compute_mean_score(members),
            "rows": build_row_cells(members, columns),
        }
        for value, members in groups.items()
    ]


def format_group_title(value: Any, by: RunColumn) -> str:
    if value is None:
        return _("not reported")
    if by.key == "status":
        return format_run_status(value)
    return format_number(value, 4) if isinstance(value, float) else str(value)


def compute_mean_score(rows: Sequence[RunRow]) -> float | None:
    scores = [row.step.score_mean for row in rows if row.step and row.step.score_mean is not None]
    return fmean(scores) if scores else None


def build_row_cells(rows: Sequence[RunRow], columns: Sequence[RunColumn]) -> list[tuple[Run, list[tuple[str, str]]]]:
    return [(row.run, [(column.style, column.render(row)) for column in columns]) for row in rows]


def load_cached_last_values(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """By run uid and metric. Only runs that changed are queried."""

    def key(run: Run, name: str) -> LastValueKey:
        return run.pk, run.created_at, run.version, name

    def load(missing: Collection[LastValueKey]) -> dict[LastValueKey, float | None]:
        changed = list({run_by_key[missing_key] for missing_key in missing})
        values = load_last_values(changed, names)
        return {key(run, name): values[run.uid].get(name) for run in changed for name in names}

    run_by_key = {key(run, name): run for run in runs for name in names}
    values = last_values_cache.get_many(run_by_key, load)
    return {run.uid: {name: values[key(run, name)] for name in names} for run in runs}


def build_column_picker_context(url_state: RunsUrlState, runs: Sequence[Run]) -> dict[str, Any]:
    """All columns that have values in the newest runs. In each section, selected columns are first."""
    newest = runs[:MAX_PICKER_RUNS]
    different, equal = compare_config_keys(newest)
    selected = set(url_state.col or run_columns.DEFAULT_COLUMN_KEYS)

    def build_options(keys: Sequence[str], prefix: str = "") -> list[tuple[str, str, bool]]:
        columns = [column for key in keys if (column := run_columns.find_column(prefix + key))]
        options = [
            (column.key, column.key.removeprefix(prefix) if prefix else column.label, column.key in selected)
            for column in columns
        ]
        return sorted(options, key=lambda option: not option[2])

    return {
        "url_state": url_state,
        "sections": [
            (_("run fields"), build_options(list(BUILT_IN_COLUMNS))),
            (_("config: differs between runs"), build_options(different, CONFIG_PREFIX)),
            (_("metrics: last value"), build_options(list_recent_metric_names(newest), LAST_VALUE_PREFIX)),
            (_("config: same in all runs"), build_options(equal, CONFIG_PREFIX)),
        ],
        "most": run_columns.MAX_COLUMNS,
    }
