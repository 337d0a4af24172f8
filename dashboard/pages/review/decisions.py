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
def look(request: HttpRequest, uid: str) -> HttpResponse:
    """`samples`, ids with commas between them, were open for a second. Who may read has marks of their own."""
    run = permissions.run_or_404(request, uid)
    wanted = [pk for pk in request.POST.get("samples", "").split(",") if pk]
    try:
        return JsonResponse({"seen": viewed.look(run, wanted, lookups.person(request))})
    except RolloutError as error:
        return JsonResponse({"said": str(error)}, status=400)


@login_required
@require_POST
def verdict(request: HttpRequest, pk: str) -> HttpResponse:
    """`fine`, else a flag with label, reason and text; either way the sample has been looked at."""
    sample = permissions.sample_or_404(request, pk)
    run, by = sample.step.run, lookups.person(request)
    permissions.require_role(request, run.project, "annotator")
    try:
        if request.POST.get("fine"):
            viewed.approve(run, pk, by)
            words = _("Nothing wrong with it.")
        else:
            act = bulk.mark(run, [pk], by, **flags.told(request))
            viewed.look(run, [pk], by)
            words = _("Flagged: {act}.").format(act=act.said)
    except RolloutError as error:
        return responses.refused(request, error, "sample", pk)
    return responses.done(request, words, "sample", pk)
