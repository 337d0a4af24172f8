"""A step: its figures, the table of its samples and one sample beside it. Also all steps of a split at once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions as access
from dashboard.pages.common import lookups as opened
from dashboard.pages.common import panels
from dashboard.pages.common import sample_rows as listing
from dashboard.pages.common import step_strip as strip
from dashboard.pages.common.url_state import Ask, step_number
from dashboard.pages.pins import pin_box as pinning
from dashboard.pages.sample import pane as reading
from dashboard.pages.step import query_result as asking
from dashboard.pages.step import sort_menu as sorting
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
    run = access.run_or_404(request, uid)
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
    attempt = opened.attempt_of(run, ask.attempt)
    split = ask.split or strip.first_split(run)
    row = wanted(run, split, word, attempt)
    track = strip.of(run, split, attempt)
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
        return pinning.box(run, row, role)
    result = asking.find(run, split, row, ask, step_number(request.GET.get("beyond", "")), reader)
    start = asking.start_of(request.GET.get("start", ""))
    if panel == "result" and result.error:
        return {"result": result, "template": "step/error.html", "headers": asking.KEEP_LAST}
    more = panel.startswith("more")
    page = (
        result.page(start, listing.MORE) if more else result.page(0, max(listing.FIRST, min(start, asking.MOST_ROWS)))
    )
    columns = given_columns(request) if more else listing.columns(page.rows)
    shown: dict[str, Any] = {
        "result": result, "page": page, "columns": columns, "rows_link": ask.link(sel="") or "?",
        "usual": asking.usual(row), "order": asking.order(ask, row),
        "may_show": opened.may(role, "annotator"),
    }  # fmt: skip
    if more:
        return shown
    if panel != "table":
        shown |= {
            "figures": result.figures(), "scatter": result.scatter(), "before": before(row),
            "chips": asking.offered(ask, row, result), "sorts": sorting.offered(ask, row, result),
        }  # fmt: skip
    if panel == "result":
        shown["headers"] = {"HX-Replace-Url": f"{request.path}{ask.link(sel='')}"}
    if not panel:
        shown |= pinning.box(run, row, role)
    if panel in {"", "sample"}:
        shown |= chosen(request, run, ask, page, role)
    return shown


def chosen(request: HttpRequest, run: Run, ask: Ask, page: asking.Page, role: str) -> dict[str, Any]:
    """The sample beside the table: the one that the URL names, else the table's first."""
    if ask.sel:
        return reading.shown(request, access.sample_or_404(request, ask.sel), ask, role)
    if not page.rows:
        return {}
    sample = page.rows[0].sample
    sample.step.run = run
    return reading.shown(request, sample, ask, role)


def wanted(run: Run, split: str, word: str, attempt: Attempt | None) -> Step | None:
    if word == "all":
        return None
    number = step_number(word)
    if number is None and word != "latest":
        raise Http404(_("A step is a number, latest, or all."))
    found = opened.step_of(run, split, number, attempt)
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
    return [name for name in listing.COLUMNS if name in asked]
