"""A step: its figures, the table of its samples and one sample beside it. Also all steps of a split at once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import lookups, panels, query_messages, sample_rows, step_strip
from dashboard.pages.common.url_state import Ask, step_number
from dashboard.pages.pins import pin_box
from dashboard.pages.sample import pane
from dashboard.pages.step import query_result, sort_menu
from rollouts.models import Attempt, Run, Step
from rollouts.review import viewed
from rollouts.review.viewed import Reader

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
def step(request: HttpRequest, uid: str, step: str) -> HttpResponseBase:
    """`step` is a number, `latest`, or `all`."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    reader = viewed.reader(run, request.user.pk)
    return panels.answer(
        request,
        "step/page.html",
        PANELS,
        lambda: context(request, run, step, role, reader) | {"status": status},
        *(run.version, status, role, run.project.reasons, reader),
    )


def context(request: HttpRequest, run: Run, word: str, role: str, reader: Reader) -> dict[str, Any]:
    ask = Ask.of(request.GET)
    attempt = lookups.attempt_of(run, ask.attempt)
    split = ask.split or step_strip.first_split(run)
    row = wanted(run, split, word, attempt)
    track = step_strip.of(run, split, attempt)
    shown = {
        "run": run, "project": run.project, "role": role, "ask": ask, "split": split, "word": word, "row": row,
        "strip": track, "current": row.step if row else None, "tab": "samples",
    }  # fmt: skip
    if track.count:
        shown |= parts(request, run, row, split, ask, role, reader)
    return shown


def parts(
    request: HttpRequest, run: Run, row: Step | None, split: str, ask: Ask, role: str, reader: Reader
) -> dict[str, Any]:
    """Only what the asking panel needs."""
    panel = panels.target(request)
    if panel in {"strip", "alive"}:
        return {}
    if panel == "empty":  # the first samples are here: another page altogether
        return {"headers": {"HX-Refresh": "true"}}
    if panel == "pin":
        return pin_box.box(run, row, role)
    result = query_result.find(run, split, row, ask, step_number(request.GET.get("beyond", "")), reader)
    start = query_messages.start_of(request.GET.get("start", ""))
    if panel == "result" and result.error:
        return {"result": result, "template": "step/error.html", "headers": query_result.KEEP_LAST}
    more = panel.startswith("more")
    page = (
        result.page(start, sample_rows.MORE)
        if more
        else result.page(0, max(sample_rows.FIRST, min(start, query_result.MOST_ROWS)))
    )
    columns = given_columns(request) if more else sample_rows.columns(page.rows)
    shown: dict[str, Any] = {
        "result": result, "page": page, "columns": columns, "rows_link": ask.link(sel="") or "?",
        "usual": query_result.usual(row), "order": query_result.order(ask, row),
        "may_show": lookups.may(role, "annotator"),
    }  # fmt: skip
    if more:
        return shown
    if panel != "table":
        shown |= {
            "figures": result.figures(), "scatter": result.scatter(), "before": before(row),
            "chips": query_result.offered(ask, row, result), "sorts": sort_menu.offered(ask, row, result),
        }  # fmt: skip
    if panel == "result":
        shown["headers"] = {"HX-Replace-Url": f"{request.path}{ask.link(sel='')}"}
    if not panel:
        shown |= pin_box.box(run, row, role)
    if panel in {"", "sample"}:
        shown |= chosen(request, run, ask, page, role)
    return shown


def chosen(request: HttpRequest, run: Run, ask: Ask, page: query_result.Page, role: str) -> dict[str, Any]:
    """The sample beside the table: the one that the URL names, else the table's first."""
    if ask.sel:
        return pane.shown(request, permissions.sample_or_404(request, ask.sel), ask, role)
    if not page.rows:
        return {}
    sample = page.rows[0].sample
    sample.step.run = run
    return pane.shown(request, sample, ask, role)


def wanted(run: Run, split: str, word: str, attempt: Attempt | None) -> Step | None:
    if word == "all":
        return None
    number = step_number(word)
    if number is None and word != "latest":
        raise Http404(_("A step is a number, latest, or all."))
    found = lookups.step_of(run, split, number, attempt)
    if found is None and word != "latest":
        raise Http404(_("This run has no {split} step {step}.").format(split=split, step=word))
    return found


def before(row: Step | None) -> Step | None:
    """The step before, for the change in mean score."""
    if row is None:
        return None
    steps = Step.objects.filter(run=row.run_id, split=row.split, superseded=False, step_kind=row.step_kind)
    return steps.filter(step__lt=row.step).order_by("-step").first()


def given_columns(request: HttpRequest) -> list[str]:
    asked = request.GET.get("columns", "").split(",")
    return [name for name in sample_rows.COLUMNS if name in asked]
