"""`/export/?run=&split=&step=&attempt=&q=`: the form, with the number of samples that match. `/export/?project=&q=`: of
all runs of a project, whose samples are not counted, since that can take long."""

import shlex
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from rolloutdeck.protocol import SPLITS
from rollouts import exports, reward_check
from rollouts.errors import InvalidInputError
from rollouts.models import Project, Run
from rollouts.query import find_samples, parse_query

SCOPE = ("split", "step", "step_kind", "attempt", "q")
SIGNAL_TITLES = {
    "score": N_("the score"),
    "label": N_("the answers of people"),
    "rank": N_("the order that people gave"),
}
PAIR_TITLES = {"best-worst": N_("best and worst of each group"), "all": N_("all pairs of each group")}
FORM_TITLES = {"auto": N_("as the first sample"), "text": N_("text"), "messages": N_("messages")}


@login_required
@require_safe
def export_page(request: HttpRequest) -> HttpResponse:
    """What is exported comes from the page that links here."""
    slug = common.clean_param(request.GET.get("project", ""))
    run = None if slug else permissions.run_or_404(request, common.clean_param(request.GET.get("run", "")))
    project = run.project if run else permissions.project_or_404(request, slug)
    scope = {name: common.clean_param(request.GET.get(name, "")) for name in (SCOPE if run else ("q",))}
    source = ("run", run.uid) if run else ("project", project.slug)
    context: dict[str, Any] = {
        "run": run, "project": project, "scope": [source, *scope.items()], "name": run.name if run else project.slug,
        "q": scope["q"], "step": scope.get("step"), "split": scope.get("split"),
        "action": reverse("export-dataset"),
        "layouts": [(name, _(text), name in exports.TABLES) for name, text in exports.LAYOUTS.items()],
        "formats": exports.FORMATS,
        "signals": [(name, _(SIGNAL_TITLES[name])) for name in exports.SIGNALS],
        "pairs": [(name, _(PAIR_TITLES[name])) for name in exports.PAIRS],
        "forms": [(name, _(FORM_TITLES[name])) for name in exports.FORMS],
        "questions": [
            (question, ", ".join(value for value, _title in reward_check.list_good_values(question)))
            for question in reward_check.list_reward_questions(project)
        ],
        "command": build_command(project, run, scope),
        "may_import": permissions.role_allows(project.role_of(request.user), "annotator"),
    }  # fmt: skip
    try:
        context |= count_samples(request, run, scope) if run else count_runs(request, project, scope["q"])
    except InvalidInputError as error:
        context["error"] = str(error)
        return render(request, "exports/page.html", context, status=400)
    return render(request, "exports/page.html", context)


def count_runs(request: HttpRequest, project: Project, q: str) -> dict[str, int]:
    """Raises InvalidInputError."""
    parse_query(q)
    runs = permissions.visible_runs(request).filter(project=project, archived_at=None).count()
    if not runs:
        raise InvalidInputError(_("The project has no runs."), "project")
    return {"run_count": runs}


def count_samples(request: HttpRequest, run: Run, scope: dict[str, str]) -> dict[str, int]:
    """Raises InvalidInputError."""
    step = None if scope["step"] in ("", "all") else common.parse_step_number(scope["step"])
    split = scope["split"] if scope["split"] in SPLITS else ""
    found = find_samples(
        run,
        split=split,
        step=step,
        step_kind=scope["step_kind"],
        attempt=scope["attempt"],
        q=scope["q"],
        reader=common.get_signed_in_user(request).pk,
    )
    return {"count": found.total}


def build_command(project: Project, run: Run | None, scope: dict[str, str]) -> str:
    """The command line of the default export."""
    words = ["rolloutdeck", "export", "--project", project.slug]
    words += ["--run", run.name, "--out", "data"] if run else ["--out", "data"]
    for name, value in scope.items():
        if value and not (value == "all" and name in ("split", "step")):
            option = f"--{name.replace('_', '-')}"
            words += [f"{option}={value}"] if value.startswith("-") else [option, value]  # else it is an option, too
    return shlex.join(words)
