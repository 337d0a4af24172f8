"""What a person says of a sample by looking at it, or by one word: seen, fine, or flagged for a reason."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import lookups, responses
from dashboard.pages.flags import views as flags
from rollouts.errors import RolloutError
from rollouts.flags import bulk
from rollouts.review import viewed


@login_required
@require_POST
def mark_viewed_view(request: HttpRequest, uid: str) -> HttpResponse:
    """`samples`, ids with commas between them, were open for a second. Who may read has marks of their own."""
    run = permissions.run_or_404(request, uid)
    wanted = [pk for pk in request.POST.get("samples", "").split(",") if pk]
    try:
        return JsonResponse({"seen": viewed.mark_viewed(run, wanted, lookups.get_signed_in_user(request))})
    except RolloutError as error:
        return JsonResponse({"said": str(error)}, status=400)


@login_required
@require_POST
def save_decision_view(request: HttpRequest, pk: str) -> HttpResponse:
    """`fine`, else a flag with label, reason and text; either way the sample has been looked at."""
    sample = permissions.sample_or_404(request, pk)
    run, by = sample.step.run, lookups.get_signed_in_user(request)
    permissions.require_role(request, run.project, "annotator")
    try:
        if request.POST.get("fine"):
            viewed.approve_sample(run, pk, by)
            words = _("Nothing wrong with it.")
        else:
            act = bulk.flag_samples(run, [pk], by, **flags.parse_flag_form(request))
            viewed.mark_viewed(run, [pk], by)
            words = _("Flagged: {act}.").format(act=act.said)
    except RolloutError as error:
        return responses.respond_error(request, error, "sample", pk)
    return responses.respond_success(request, words, "sample", pk)
