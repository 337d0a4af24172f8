"""The labels of one sample: everybody's answers with their history, and the form for one's own."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.labels.answer_form import AnswerForm, build_answer_form, parse_answer_form
from rollouts.errors import InvalidInputError, NotFoundError, StorageUnavailableError
from rollouts.labels import load_history, load_labels, load_rubric, store_labels
from rollouts.models import Label, Sample
from rollouts.samples import load_body


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def sample_labels_page(request: HttpRequest, pk: str) -> HttpResponse:
    """A post saves the answers; an answer that is not valid is shown again with the error."""
    sample = permissions.sample_or_404(request, pk)
    project = sample.step.run.project
    rubric, texts = load_rubric(project), load_texts(sample)
    labels = load_labels([pk], reader=request.user).get(pk, [])
    name = request.user.get_username()
    own = {row.name: row for row in labels if row.source == Label.Source.HUMAN and row.author == name}
    if request.method != "POST":
        form = build_answer_form(rubric, own, texts["response"])
        return render(request, "labels/sample.html", build_context(request, sample, form, labels, texts))
    permissions.require_role(request, project, "annotator")
    form = parse_answer_form(request.POST, rubric, own, pk, texts["response"])
    if not form.has_errors:
        try:
            action = None
            if form.answers:
                action = store_labels(sample.step.run, common.get_signed_in_user(request), form.answers, rubric=rubric)
            messages.success(request, _("Labels saved.") if action and action.pk else _("No change."))
            return common.redirect_see_other(common.get_return_url(request, "sample", pk))
        except InvalidInputError as error:
            form.add_error(error)
    context = build_context(request, sample, form, labels, texts)
    return render(request, "labels/sample.html", context, status=400)


def load_texts(sample: Sample) -> dict[str, str]:
    """The prompt and the response; `unread` says why there are none."""
    try:
        body = load_body(sample)
    except (NotFoundError, StorageUnavailableError) as error:
        return {"prompt": "", "response": "", "unread": str(error)}
    return {"prompt": body.prompt, "response": "" if body.textless else body.response, "unread": ""}


def build_context(
    request: HttpRequest, sample: Sample, form: AnswerForm, labels: list[Label], texts: dict[str, str]
) -> dict[str, Any]:
    run = sample.step.run
    rubric, role = load_rubric(run.project), run.project.role_of(request.user)
    return {
        "run": run,
        "project": run.project,
        "sample": sample,
        "rubric": rubric,
        "guidelines": common.render_note(rubric.guidelines) if rubric.guidelines else "",
        "form": form,
        "may_label": permissions.role_allows(role, "annotator"),
        "maintainer": permissions.role_allows(role, "maintainer"),
        "labels": [(row, load_history(row)) for row in labels],
        "reasons": run.project.reasons,
        "next": request.POST.get("next") or request.headers.get("Referer", ""),
        **texts,
    }
