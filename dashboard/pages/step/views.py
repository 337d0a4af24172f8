"""A step: its figures, the table of its samples and one sample beside it. Also all steps of a split at once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    FIRST_PAGE_ROWS,
    NEXT_PAGE_ROWS,
    SAMPLE_COLUMNS,
    StepUrlState,
    attempt_or_404,
    find_default_split,
    find_filled_columns,
    find_step,
    load_step_strip,
    parse_row_offset,
    parse_step_number,
    render_page_or_panel,
    role_allows,
)
from dashboard.pages.pins import build_pin_box
from dashboard.pages.sample import build_pane_context
from dashboard.pages.step import filter_chips, query_result, sort_menu
from rollouts.models import Attempt, Run, Step
from rollouts.review import ViewerState, load_viewer_state

PANELS = {
    "strip": "common/strip.html",
    "figures": "step/figures.html",
    "table": "step/table.html",
    "more": "step/rows.html",
    "result": "step/result.html",
    "sample": "sample/pane.html",
    "alive": "common/last_update.html",
    "empty": "step/empty.html",
    "pin": "step/pin.html",
}


@login_required
@require_safe
def step_page(request: HttpRequest, uid: str, step: str) -> HttpResponseBase:
    """`step` is a number, `latest`, or `all`."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    reader = load_viewer_state(run, request.user.pk)
    return render_page_or_panel(
        request,
        "step/page.html",
        PANELS,
        lambda panel: build_step_context(request, run, step, role, reader, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons, reader),
    )


def build_step_context(
    request: HttpRequest, run: Run, word: str, role: str, reader: ViewerState, panel: str
) -> dict[str, Any]:
    ask = StepUrlState.from_query(request.GET)
    attempt = attempt_or_404(run, ask.attempt)
    split = ask.split or find_default_split(run)
    row = find_requested_step(run, split, word, attempt)
    track = load_step_strip(run, split, attempt)
    shown = {
        "run": run, "project": run.project, "role": role, "url_state": ask, "split": split, "word": word, "row": row,
        "strip": track, "current": row.step if row else None, "tab": "samples",
    }  # fmt: skip
    if track.count:
        shown |= build_panel_context(request, run, row, split, ask, role, reader, panel)
    return shown


def build_panel_context(
    request: HttpRequest,
    run: Run,
    row: Step | None,
    split: str,
    ask: StepUrlState,
    role: str,
    reader: ViewerState,
    panel: str,
) -> dict[str, Any]:
    """Only what the asking panel needs."""
    if panel in {"strip", "alive"}:
        return {}
    if panel == "empty":  # the first samples are here: another page altogether
        return {"headers": {"HX-Refresh": "true"}}
    if panel == "pin":
        return build_pin_box(run, row, role)
    result = query_result.load_query_result(
        run, split, row, ask, parse_step_number(request.GET.get("beyond", "")), reader
    )
    if panel == "result" and result.error:
        return {"result": result, "template": "step/error.html", "headers": query_result.KEEP_RESULT_HEADERS}
    more = panel.startswith("more")
    page = load_result_page(result, parse_row_offset(request.GET.get("start", "")), more)
    columns = parse_columns(request) if more else find_filled_columns(page.rows)
    shown = {**build_table_context(ask, row, result, role), "page": page, "columns": columns}
    if more:
        return shown
    if panel != "table":
        shown |= build_charts_context(ask, row, result)
    if panel == "result":
        shown["headers"] = {"HX-Replace-Url": f"{request.path}{ask.link(sel='')}"}
    if not panel:
        shown |= build_pin_box(run, row, role)
    if panel in {"", "sample"}:
        shown |= build_selected_sample_context(request, run, ask, page, role)
    return shown


def load_result_page(result: query_result.StepQueryResult, start: int, more: bool) -> query_result.ResultPage:
    """Returns the rows from `start` that a table asks for as `more`; else all rows up to about `start`."""
    if more:
        return result.page(start, NEXT_PAGE_ROWS)
    return result.page(0, max(FIRST_PAGE_ROWS, min(start, query_result.MAX_RESULT_ROWS)))


def build_table_context(
    ask: StepUrlState, row: Step | None, result: query_result.StepQueryResult, role: str
) -> dict[str, Any]:
    """Returns what the table needs besides its page of rows and its columns."""
    return {
        "result": result, "rows_link": ask.link(sel="") or "?",
        "usual": query_result.choose_default_order(row), "order": query_result.choose_order(ask, row),
        "may_show": role_allows(role, "annotator"),
    }  # fmt: skip


def build_charts_context(ask: StepUrlState, row: Step | None, result: query_result.StepQueryResult) -> dict[str, Any]:
    """Returns the charts over the table, and the chips and the sort menu that change it."""
    return {
        "figures": result.figures(), "scatter": result.scatter(), "before": find_previous_step(row),
        "chips": filter_chips.build_result_chips(ask, row, result),
        "sorts": sort_menu.build_sort_menu(ask, row, result),
    }  # fmt: skip


def build_selected_sample_context(
    request: HttpRequest, run: Run, ask: StepUrlState, page: query_result.ResultPage, role: str
) -> dict[str, Any]:
    """The sample beside the table: the one that the URL names, else the table's first."""
    if ask.sel:
        return build_pane_context(request, permissions.sample_or_404(request, ask.sel), ask, role)
    if not page.rows:
        return {}
    sample = page.rows[0].sample
    sample.step.run = run
    return build_pane_context(request, sample, ask, role)


def find_requested_step(run: Run, split: str, word: str, attempt: Attempt | None) -> Step | None:
    if word == "all":
        return None
    number = parse_step_number(word)
    if number is None and word != "latest":
        raise Http404(_("The step must be a number, latest or all."))
    found = find_step(run, split, number, attempt)
    if found is None and word != "latest":
        raise Http404(_("This run has no {split} step {step}.").format(split=split, step=word))
    return found


def find_previous_step(row: Step | None) -> Step | None:
    """The step before, for the change in mean score."""
    if row is None:
        return None
    steps = Step.objects.filter(run=row.run_id, split=row.split, superseded=False, step_kind=row.step_kind)
    return steps.filter(step__lt=row.step).order_by("-step").first()


def parse_columns(request: HttpRequest) -> list[str]:
    asked = request.GET.get("columns", "").split(",")
    return [name for name in SAMPLE_COLUMNS if name in asked]
