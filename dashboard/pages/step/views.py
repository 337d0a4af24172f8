"""A step, or all steps of a split: statistics, the table of samples, and the selected sample next to it."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.pins import build_pin_box
from dashboard.pages.sample import build_pane_context
from dashboard.pages.step.query_result import (
    KEEP_RESULT_HEADERS,
    MAX_RESULT_ROWS,
    ResultPage,
    StepQueryResult,
    load_query_result,
)
from dashboard.pages.step.table_controls import build_result_chips, build_sort_menu
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
    return common.render_page_or_panel(
        request,
        "step/page.html",
        PANELS,
        lambda panel: build_step_context(request, run, step, role, reader, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons, reader),
    )


def build_step_context(
    request: HttpRequest, run: Run, requested_step: str, role: str, reader: ViewerState, panel: str
) -> dict[str, Any]:
    """The context of a panel, or of the page if `panel` is empty."""
    url_state = common.StepUrlState.from_query(request.GET)
    attempt = common.attempt_or_404(run, url_state.attempt)
    split = url_state.split or common.find_default_split(run)
    row = find_requested_step(run, split, requested_step, attempt)
    strip = common.load_step_strip(run, split, attempt)
    context = {
        "run": run, "project": run.project, "role": role, "url_state": url_state, "split": split, "row": row,
        "requested_step": requested_step, "strip": strip, "current": row.step if row else None, "tab": "samples",
    }  # fmt: skip
    if not strip.count or panel in {"strip", "alive"}:
        return context
    if panel == "empty":  # the first samples have arrived, so the page changes completely
        return context | {"headers": {"HX-Refresh": "true"}}
    if panel == "pin":
        return context | build_pin_box(run, row, role)
    cursor = common.parse_step_number(request.GET.get("beyond", ""))
    result = load_query_result(run, split, row, url_state, cursor, reader)
    if panel == "result" and result.error:
        return context | {"result": result, "template": "step/error.html", "headers": KEEP_RESULT_HEADERS}
    return context | build_result_context(request, run, result, role, panel)


def build_result_context(
    request: HttpRequest, run: Run, result: StepQueryResult, role: str, panel: str
) -> dict[str, Any]:
    """The table, and what the panel needs of the charts and the selected sample."""
    url_state, start = result.url_state, common.parse_row_offset(request.GET.get("start", ""))
    context: dict[str, Any] = {
        "result": result, "rows_link": url_state.link(sel="") or "?", "order": result.order,
        "default_order": result.default_order, "may_show": common.role_allows(role, "annotator"),
    }  # fmt: skip
    if panel.startswith("more"):
        columns = request.GET.get("columns", "").split(",")
        page = result.load_page(start, common.NEXT_PAGE_ROWS)
        return context | {"page": page, "columns": [name for name in common.SAMPLE_COLUMNS if name in columns]}
    page = result.load_page(0, max(common.FIRST_PAGE_ROWS, min(start, MAX_RESULT_ROWS)))
    context |= {"page": page, "columns": common.find_filled_columns(page.rows)}
    if panel != "table":
        context |= {
            "statistics": result.statistics(), "scatter": result.scatter(), "before": find_previous_step(result.row),
            "chips": build_result_chips(result), "sorts": build_sort_menu(result),
        }  # fmt: skip
    if panel == "result":
        context["headers"] = {"HX-Replace-Url": f"{request.path}{url_state.link(sel='')}"}
    if not panel:
        context |= build_pin_box(run, result.row, role)
    if panel in {"", "sample"}:
        context |= build_selected_sample_context(request, run, url_state, page, role)
    return context


def build_selected_sample_context(
    request: HttpRequest, run: Run, url_state: common.StepUrlState, page: ResultPage, role: str
) -> dict[str, Any]:
    """The sample that the URL names, else the first of the table."""
    if url_state.sel:
        return build_pane_context(request, permissions.sample_or_404(request, url_state.sel), url_state, role)
    if not page.rows:
        return {}
    sample = page.rows[0].sample
    sample.step.run = run
    return build_pane_context(request, sample, url_state, role)


def find_requested_step(run: Run, split: str, step: str, attempt: Attempt | None) -> Step | None:
    """None for `all`, and for `latest` if there is no step. Raises Http404."""
    if step == "all":
        return None
    number = common.parse_step_number(step)
    if number is None and step != "latest":
        raise Http404(_("The step must be a number, latest or all."))
    row = common.find_step(run, split, number, attempt)
    if row is None and step != "latest":
        raise Http404(_("This run has no {split} step {step}.").format(split=split, step=step))
    return row


def find_previous_step(row: Step | None) -> Step | None:
    """For the change of the mean score."""
    if row is None:
        return None
    steps = Step.objects.filter(run=row.run_id, split=row.split, superseded=False, step_kind=row.step_kind)
    return steps.filter(step__lt=row.step).order_by("-step").first()
