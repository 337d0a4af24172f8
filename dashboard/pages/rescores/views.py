"""The pages of re-scores: which there are, and old and new score per data source."""

from dataclasses import dataclass
from shlex import quote
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from rolloutdeck.protocol import SPLITS
from rollouts import rescores
from rollouts.models import Rescore, Run, Sample
from rollouts.query import format_disagreement, quote_value

WRITE_ROLE = "annotator"
DEFAULT_NAME = "score.v2"


@dataclass(frozen=True, slots=True)
class Example:
    """A sample with its old and new number."""

    sample: Sample
    value: float


@login_required
@require_safe
def rescores_page(request: HttpRequest, uid: str) -> HttpResponse:
    """The re-scores of a run, newest first; without any, the commands that make one."""
    run = permissions.run_or_404(request, uid)
    context = build_run_context(request, run)
    rows = [] if context["is_blind"] else list(run.rescores.order_by("-pk"))
    return render(request, "rescores/list.html", context | {"rescores": rows, "commands": build_commands(run)})


@login_required
@require_safe
def rescore_page(request: HttpRequest, uid: str, pk: int) -> HttpResponse:
    """Old and new per data source, and the samples with the largest difference."""
    run = permissions.run_or_404(request, uid)
    rescore = permissions.rescore_or_404(request, pk, run=run)
    split = request.GET.get("split", "")
    split = split if split in SPLITS else ""
    found = rescores.compare_rescore(rescore.pk, rescore.created_at, run.version, split)
    disagreements = format_disagreement(rescore)
    terms = " ".join([disagreements, *([f"split:{split}"] if split else [])])
    queue = {
        "run": run.uid,
        "q": terms,
        "selection": "random",
        "name": _("{name} against score").format(name=rescore.name),
    }
    context = build_run_context(request, run) | {
        "rescore": rescore,
        "found": found,
        "rows": [*found.sources, found.total],
        "chosen_split": split,
        "correct_if": describe_verdict(rescore),
        "examples": [Example(row, (row.rescores or {}).get(rescore.key, 0.0)) for row in found.examples],
        "disagreement_links": build_split_links(run, split, disagreements),
        "changed_links": build_split_links(run, split, f"{quote_value(rescore.name)}!=score"),
        "queue_link": f"{reverse('queue-new')}?{urlencode(queue)}",
        "may_delete": rescore.may_be_changed_by(request.user, run.project.role_of(request.user)),
    }
    return render(request, "rescores/detail.html", context)


def build_split_links(run: Run, split: str, q: str) -> list[tuple[str, str]]:
    """Returns (split, link) of the samples that match `q`. A page of all steps shows one split, so without a chosen one
    there is a link for each that the run has."""
    splits = [split] if split else [name for name in SPLITS if run.steps.filter(split=name, samples__gt=0).exists()]
    page = reverse("step", args=[run.uid, "all"])
    return [(name, f"{page}?{urlencode({'q': q, 'split': name})}") for name in splits]


@login_required
@require_POST
def delete_rescore_view(request: HttpRequest, uid: str, pk: int) -> HttpResponse:
    """Its author and maintainers may delete it."""
    run = permissions.run_or_404(request, uid, role=WRITE_ROLE)
    rescore = permissions.rescore_or_404(request, pk, run=run)
    if not rescore.may_be_changed_by(request.user, run.project.role_of(request.user)):
        permissions.require_role(request, run.project, permissions.LEAD_ROLE)
    rescores.delete_rescore(rescore, common.get_signed_in_user(request))
    message = _("{name} deleted, with {count} results.")
    text = message.format(name=rescore.name, count=f"{rescore.results:,}")
    return common.respond_success(request, text, "rescores", run.uid)


def describe_verdict(rescore: Rescore) -> str:
    """The term that finds the samples that the re-score calls correct."""
    key, threshold = rescore.verdict
    name = next(name for name, own in rescore.list_columns().items() if own == key)
    return f"{quote_value(name)}>{threshold:g}"


def build_run_context(request: HttpRequest, run: Run) -> dict[str, Any]:
    split = common.find_default_split(run)
    return {
        "run": run, "project": run.project, "url_state": common.StepUrlState(), "split": split,
        "strip": common.load_step_strip(run, split), "current": None, "tab": "overview", "view": "rescores",
        "status": run.status, "is_blind": bool(common.load_blind_queues(request).queues),
        "may_queue": permissions.role_allows(run.project.role_of(request.user), permissions.LEAD_ROLE),
    }  # fmt: skip


def build_commands(run: Run) -> list[tuple[str, str]]:
    """What to run, with what it does."""
    where = f"--project {quote(run.project.slug)} --run {quote(run.name)}"
    rescore = f"rolloutdeck rescore --fn my_reward.py:compute_score --name {DEFAULT_NAME} {where}"
    judge = "rolloutdeck judge --endpoint http://localhost:8000/v1 --model NAME"
    if run.project.rubrics.exists():
        ask = _("Ask a model the questions of the rubric"), f"{judge} --rubric {where}"
    else:
        ask = (
            _("Ask a model with your own text, in which {prompt} and {response} stand for those of a sample"),
            f"{judge} --prompt judge.txt {where}",
        )
    return [(_("Run another reward function on the stored samples"), rescore), ask]
