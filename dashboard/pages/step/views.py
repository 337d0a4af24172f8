"""A step, or all steps of a split: statistics, the table of samples, and the selected sample next to it."""

from dataclasses import replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.pins import build_pin_box
from dashboard.pages.sample import build_pane_context
from dashboard.pages.step import query_result
from dashboard.pages.step.alike import build_alike_rows, count_templates
from dashboard.pages.step.reward_parts import build_part_choices
from dashboard.pages.step.table_controls import build_result_chips, build_sort_menu
from rollouts.models import Attempt, Run, Sample, Step, StepTotals, load_step_totals
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
    reader = load_viewer_state(run, request.user.pk, common.load_blind_queues(request))
    selected = find_selected_sample(request)
    if selected and (link := find_link_to_its_step(request, run, step, selected)):
        return redirect(link)
    return common.render_page_or_panel(
        request,
        "step/page.html",
        PANELS,
        lambda panel: build_step_context(request, run, step, role, reader, panel, selected) | {"status": status},
        *(run.version, status, role, run.project.reasons, reader),
    )


def build_step_context(
    request: HttpRequest,
    run: Run,
    requested_step: str,
    role: str,
    reader: ViewerState,
    panel: str,
    selected: Sample | None = None,
) -> dict[str, Any]:
    """The context of a panel, or of the page if `panel` is empty. List, sample, strip and pin are of one step: with a
    selected sample the latest step is the step of that sample, if a newer one has arrived since."""
    url_state = common.StepUrlState.from_query(request.GET)
    attempt = common.attempt_or_404(run, url_state.attempt)
    split = url_state.split or common.find_default_split(run)
    shown = common.get_shown_step(request)
    if selected and not panel and (selected.step.run_id, selected.step.split) == (run.pk, split):
        shown = selected.step.step
    row = find_requested_step(run, split, requested_step, attempt, shown)
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
    result = query_result.load_query_result(run, split, row, url_state, cursor, reader)
    if panel == "result" and result.error:
        return context | {"result": result, "template": "step/error.html", "headers": query_result.KEEP_RESULT_HEADERS}
    return context | build_result_context(request, run, result, role, panel, selected)


def build_result_context(
    request: HttpRequest,
    run: Run,
    result: query_result.StepQueryResult,
    role: str,
    panel: str,
    selected: Sample | None,
) -> dict[str, Any]:
    """The table, and what the panel needs of the charts and the selected sample."""
    url_state, start = result.url_state, common.parse_row_offset(request.GET.get("start", ""))
    context: dict[str, Any] = {
        "url_state": url_state, "result": result, "rows_link": url_state.link(sel="") or "?", "order": result.order,
        "default_order": result.default_order, "totals": result.totals,
        "may_show": permissions.role_allows(role, "annotator"),
    }  # fmt: skip
    if panel.startswith("more"):
        columns = request.GET.get("columns", "").split(",")
        page = result.load_page(start, common.NEXT_PAGE_ROWS)
        known = [name for name in common.SAMPLE_COLUMNS if name in columns]
        return context | {"page": page, "columns": [*known, *result.reward_parts.build_columns(url_state)]}
    page = result.load_page(0, max(common.FIRST_PAGE_ROWS, min(start, query_result.MAX_RESULT_ROWS)))
    parts = result.reward_parts
    context |= {"page": page, "columns": [*common.find_filled_columns(page.rows), *parts.build_columns(url_state)]}
    context["part_columns"] = [(name, name in parts.rescores) for name in parts.select(url_state)]
    if panel != "table":
        row_versions = tuple((row.pk, row.version) for row in result.rows)
        context |= {
            "statistics": result.statistics(), "scatter": result.scatter(), "before": find_previous_totals(result.row),
            "chips": build_result_chips(result), "sorts": build_sort_menu(result),
            "is_evaluating": bool(result.totals and result.totals.rules != {run.project.rule}),
            "part_choices": build_part_choices(parts, url_state),
            "guided_link": url_state.link(q="is:guided", sel=""),
            "alike_link": url_state.link(top="" if url_state.top else "alike", sel="") or "?",
            "alike_count": count_templates(row_versions, run.version) if result.row else 0,
            "alike": build_alike_rows(row_versions, run.version, url_state) if result.row and url_state.top else None,
        }  # fmt: skip
    if not panel:
        context |= build_pin_box(run, result.row, role)
    if panel in {"", "sample"}:
        sample = selected or (page.rows[0].sample if page.rows else None)
        if sample and not selected:
            sample.step = result.row if result.row and result.row.pk == sample.step_id else sample.step
            sample.step.run = run
        context |= build_pane_context(request, sample, url_state, role) if sample else {}
    return context


def find_selected_sample(request: HttpRequest) -> Sample | None:
    """The sample that the URL names, for the page and for the panel of the sample."""
    pk = common.StepUrlState.from_query(request.GET).sel
    return (
        permissions.sample_or_404(request, pk) if pk and common.get_requested_panel(request) in {"", "sample"} else None
    )


def find_link_to_its_step(request: HttpRequest, run: Run, requested_step: str, sample: Sample) -> str:
    """The page of the sample's step, if the URL names another step or split of the run: a page shows one step. Else
    empty."""
    state, step = common.StepUrlState.from_query(request.GET), sample.step
    number = common.parse_step_number(requested_step)
    if common.get_requested_panel(request) or number is None or step.run_id != run.pk:
        return ""
    default = common.find_default_split(run)
    if (number, state.split or default) == (step.step, step.split):
        return ""
    split = "" if step.split == default else step.split
    return reverse("step", args=[run.uid, step.step]) + replace(state, split=split).link()


def find_requested_step(
    run: Run, split: str, step: str, attempt: Attempt | None, shown: int | None = None
) -> Step | None:
    """None for `all`, and for `latest` if there is no step. `shown` is the step that a page of the latest step shows,
    if it is no longer the latest. Raises Http404."""
    if step == "all":
        return None
    if step == "latest" and shown is not None and (row := common.find_step(run, split, shown, attempt)):
        return row
    number = common.parse_step_number(step)
    if number is None and step != "latest":
        raise Http404(_("The step must be a number, latest or all."))
    row = common.find_step(run, split, number, attempt)
    if row is None and step != "latest":
        raise Http404(_("This run has no {split} step {step}.").format(split=split, step=step))
    return row


def find_previous_totals(row: Step | None) -> StepTotals | None:
    """For the change of the mean score."""
    if row is None:
        return None
    steps = Step.objects.current().filter(run=row.run_id, split=row.split, step_kind=row.step_kind)
    before = steps.filter(step__lt=row.step).select_related("attempt").order_by("-step").first()
    return load_step_totals(before) if before else None
