"""What a person says of a sample by looking at it, or by one word: seen, fine, or flagged for a reason."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import get_signed_in_user, respond_error, respond_success
from dashboard.pages.flags import parse_flag_form
from rollouts.errors import RolloutError
from rollouts.flags import flag_samples
from rollouts.review import approve_sample, mark_viewed


@login_required
@require_POST
def mark_viewed_view(request: HttpRequest, uid: str) -> HttpResponse:
    """`samples`, ids with commas between them, were open for a second. Who may read has marks of their own."""
    run = permissions.run_or_404(request, uid)
    wanted = [pk for pk in request.POST.get("samples", "").split(",") if pk]
    try:
        return JsonResponse({"seen": mark_viewed(run, wanted, get_signed_in_user(request))})
    except RolloutError as error:
        return JsonResponse({"said": str(error)}, status=400)


@login_required
@require_POST
def save_decision_view(request: HttpRequest, pk: str) -> HttpResponse:
    """`fine`, else a flag with label, reason and text; either way the sample has been looked at."""
    sample = permissions.sample_or_404(request, pk)
    run, by = sample.step.run, get_signed_in_user(request)
    permissions.require_role(request, run.project, "annotator")
    try:
        if request.POST.get("fine"):
            approve_sample(run, pk, by)
            words = _("Marked as OK.")
        else:
            act = flag_samples(run, [pk], by, **parse_flag_form(request))
            mark_viewed(run, [pk], by)
            words = _("Flagged: {act}.").format(act=act.said)
    except RolloutError as error:
        return respond_error(request, error, "sample", pk)
    return respond_success(request, words, "sample", pk)
