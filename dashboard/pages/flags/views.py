"""Flags one sample or many, withdraws flags, and undoes either. Without script, a form redirects back to its page."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.sample import build_flags_context, load_sample_labels
from dashboard.pages.step import search_step
from rolloutdeck.protocol import SPLITS
from rollouts.errors import RolloutError
from rollouts.flags import collect_sample_ids, flag_samples, withdraw_flag
from rollouts.lib import parse_choice, parse_integer
from rollouts.models import Label, Run, Sample
from rollouts.review import undo_review_action


@login_required
@require_POST
def raise_flag_view(request: HttpRequest, pk: str) -> HttpResponse:
    sample = permissions.sample_or_404(request, pk)
    permissions.require_role(request, sample.step.run.project, "annotator")
    error = ""
    try:
        flag_samples(sample.step.run, [sample.pk], common.get_signed_in_user(request), **parse_flag_form(request))
    except RolloutError as problem:
        error = str(problem)
    if common.is_script_request(request):
        return JsonResponse({"message": error}, status=400 if error else 200)
    return respond_with_flags(request, sample, error)


def parse_flag_form(request: HttpRequest) -> dict[str, str]:
    form = request.POST
    return {
        "label": form.get("label") or "bad", "reason": form.get("reason", ""), "text": form.get("text", "").strip(),
    }  # fmt: skip


@login_required
@require_POST
def withdraw_flag_view(request: HttpRequest, pk: int) -> HttpResponse:
    visible = Label.objects.flags().readable_by(request.user).filter(run__in=permissions.visible_runs(request))
    flag = visible.select_related("run__project", "user").filter(pk=pk).first()
    if flag is None:
        raise Http404(_("Flag not found, or you have no access to it."))
    is_own = flag.user_id == request.user.pk or flag.author == request.user.get_username()
    role = "annotator" if is_own else "maintainer"
    permissions.require_role(request, flag.run.project, role)
    withdraw_flag(flag, common.get_signed_in_user(request))
    return respond_with_flags(request, permissions.sample_or_404(request, flag.sample), "")


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def flag_samples_view(request: HttpRequest, uid: str) -> HttpResponse:
    """The form that flags a selection. A post flags `samples`, or with `all` the samples that the query `q` matches."""
    run = permissions.run_or_404(request, uid, role="annotator")
    if request.method != "POST":
        context = {"run": run, "reasons": run.project.reasons}
        return common.set_cache_headers(render(request, "flags/bulk.html", context), "")
    try:
        ids = find_requested_samples(request, run)
        action = flag_samples(run, ids, common.get_signed_in_user(request), **parse_flag_form(request))
    except RolloutError as error:
        return common.respond_error(request, error, "run", run.uid)
    message = _("No change: all these samples already have this flag.")
    if action.pk:
        message = _("Flagged: {action}.").format(action=action.description)
    return common.respond_success(request, message, "run", run.uid, undoable=action.pk is not None)


def find_requested_samples(request: HttpRequest, run: Run) -> list[str]:
    """The ids that the form lists, or those that its query matches. Raises InvalidInputError."""
    form = request.POST
    if not form.get("all"):
        return [pk for pk in form.get("samples", "").split(",") if pk]
    state = common.StepUrlState.from_query(form)
    split = parse_choice(form.get("split"), "split", SPLITS, default="")
    step = common.find_named_step(run, split, form.get("step", ""), state.attempt)
    result = search_step(run, split, step, state, form.get("q", ""), reader=request.user.pk)
    return collect_sample_ids(result, parse_integer(form.get("seen"), "seen"))


@login_required
@require_POST
def undo_last_action_view(request: HttpRequest, uid: str) -> HttpResponse:
    """Undoes the user's last action on samples of this run."""
    run = permissions.run_or_404(request, uid, role="annotator")
    try:
        result = undo_review_action(run, common.get_signed_in_user(request))
    except RolloutError as error:
        return common.respond_error(request, error, "run", run.uid)
    message = _("Undone: {action}.")
    if result.unchanged_count:
        message = ngettext(
            "Undone: {action}. {count} flag was changed since then and was not reverted.",
            "Undone: {action}. {count} flags were changed since then and were not reverted.",
            result.unchanged_count,
        )
    message = message.format(action=result.description, count=result.unchanged_count)
    return common.respond_success(request, message, "run", run.uid, sample=result.sample)


def respond_with_flags(request: HttpRequest, sample: Sample, error: str) -> HttpResponse:
    """The sample's flags for the panel that requested them; otherwise a redirect back to the page."""
    if common.get_requested_panel(request) != "flags":
        if error:
            messages.error(request, error)
        return common.redirect_see_other(common.get_return_url(request, "sample", sample.pk))
    role = sample.step.run.project.role_of(request.user)
    context = build_flags_context(request, sample, load_sample_labels(sample, request.user), role)
    return common.set_cache_headers(render(request, "sample/flags.html", context | {"flag_error": error}), "")
