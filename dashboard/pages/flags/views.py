"""Flagging samples, one or many, taking a flag back, and undoing either. Without script a form post answers 303 to the
page it came from."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import permissions
from dashboard.pages.common import (
    StepUrlState,
    find_named_step,
    get_requested_panel,
    get_return_url,
    get_signed_in_user,
    redirect_see_other,
    respond_error,
    respond_success,
    set_cache_headers,
)
from dashboard.pages.sample import build_flags_context, load_sample_flags
from dashboard.pages.step import search_step
from rolloutdeck.protocol import SPLITS
from rollouts.errors import RolloutError
from rollouts.flags import collect_sample_ids, flag_samples, withdraw_flag
from rollouts.lib import parse_choice, parse_integer
from rollouts.models import Flag, Run, Sample
from rollouts.review import undo_review_action


@login_required
@require_POST
def raise_flag_view(request: HttpRequest, pk: str) -> HttpResponse:
    sample = permissions.sample_or_404(request, pk)
    permissions.require_role(request, sample.step.run.project, "annotator")
    problem = ""
    try:
        flag_samples(sample.step.run, [sample.pk], get_signed_in_user(request), **parse_flag_form(request))
    except RolloutError as error:
        problem = str(error)
    return respond_with_flags(request, sample, problem)


def parse_flag_form(request: HttpRequest) -> dict[str, str]:
    """Label, reason and text of the form."""
    given = request.POST
    return {
        "label": given.get("label") or "bad",
        "reason": given.get("reason", ""),
        "text": given.get("text", "").strip(),
    }


@login_required
@require_POST
def withdraw_flag_view(request: HttpRequest, pk: int) -> HttpResponse:
    visible = Flag.objects.filter(run__in=permissions.visible_runs(request)).select_related("run__project", "user")
    flag = visible.filter(pk=pk).first()
    if flag is None:
        raise Http404(_("Flag not found, or you have no access to it."))
    permissions.require_role(
        request, flag.run.project, "annotator" if flag.user_id == request.user.pk else "maintainer"
    )
    withdraw_flag(flag, get_signed_in_user(request))
    return respond_with_flags(request, permissions.sample_or_404(request, flag.sample), "")


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def flag_samples_view(request: HttpRequest, uid: str) -> HttpResponse:
    """The box for flagging a selection; a post flags `samples`, or all that `q` finds."""
    run = permissions.run_or_404(request, uid)
    permissions.require_role(request, run.project, "annotator")
    if request.method != "POST":
        return set_cache_headers(render(request, "flags/bulk.html", {"run": run, "reasons": run.project.reasons}), "")
    try:
        act = flag_samples(
            run, find_requested_samples(request, run), get_signed_in_user(request), **parse_flag_form(request)
        )
    except RolloutError as error:
        return respond_error(request, error, "run", run.uid)
    words = _("No change: all these samples already have this flag.")
    if act.pk:
        words = _("Flagged: {act}.").format(act=act.said)
    return respond_success(request, words, "run", run.uid, undoable=act.pk is not None)


def find_requested_samples(request: HttpRequest, run: Run) -> list[str]:
    """The ids that the form lists, or those of its query. Raises BadInput."""
    given = request.POST
    if not given.get("all"):
        return [pk for pk in given.get("samples", "").split(",") if pk]
    ask = StepUrlState.from_query(given)
    split = parse_choice(given.get("split"), "split", SPLITS, default="")
    row = find_named_step(run, split, given.get("step", ""), ask.attempt)
    found = search_step(run, split, row, ask, given.get("q", ""), reader=request.user.pk)
    return collect_sample_ids(found, parse_integer(given.get("seen"), "seen"))


@login_required
@require_POST
def undo_last_action_view(request: HttpRequest, uid: str) -> HttpResponse:
    """Undoes the person's newest act on samples of this run."""
    run = permissions.run_or_404(request, uid)
    permissions.require_role(request, run.project, "annotator")
    try:
        undone = undo_review_action(run, get_signed_in_user(request))
    except RolloutError as error:
        return respond_error(request, error, "run", run.uid)
    words = _("Undone: {act}.")
    if undone.unchanged_count:
        words = ngettext(
            "Undone: {act}. {count} flag was changed since then and was not reverted.",
            "Undone: {act}. {count} flags were changed since then and were not reverted.",
            undone.unchanged_count,
        )
    words = words.format(act=undone.description, count=undone.unchanged_count)
    return respond_success(request, words, "run", run.uid, sample=undone.sample)


def respond_with_flags(request: HttpRequest, sample: Sample, problem: str) -> HttpResponse:
    """The sample's flags for the panel that asked; else back to the page."""
    if get_requested_panel(request) != "flags":
        if problem:
            messages.error(request, problem)
        return redirect_see_other(get_return_url(request, "sample", sample.pk))
    role = sample.step.run.project.role_of(request.user)
    shown = build_flags_context(request, sample, load_sample_flags(sample), role)
    return set_cache_headers(render(request, "sample/flags.html", shown | {"said": problem}), "")
