"""The form that adds what somebody looks at to a finding: the sample with a quote, the query's counts, charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.db.models import Max, Q
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard import access
from dashboard.pages import findings as pages
from dashboard.pages import opened, panels, said, strip
from dashboard.pages.ask import Ask
from rolloutdeck import wire
from rollouts import exhibits, findings, search, series
from rollouts.errors import BadInput, RolloutError
from rollouts.models import Finding, Project, Run, Sample
from rollouts.words import number, one_of

MOST_OFFERED = 50
MOST_RUNS = 8


@dataclass(slots=True)
class Looked:
    """What the address says that somebody looks at; each part may be missing."""

    project: Project
    run: Run | None = None
    sample: Sample | None = None
    where: dict[str, Any] | None = None
    problem: str = ""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    given = request.POST if request.method == "POST" else request.GET
    looked = looking(request, given)
    access.require_role(request, looked.project, "annotator")
    if request.method != "POST":
        return panels.finished(render(request, template(request), form(request, looked, given)), "")
    try:
        row = added(request, looked)
    except RolloutError as error:
        if said.by_script(request):
            return said.refused(request, error, "findings")
        return render(request, template(request), form(request, looked, given, str(error)), status=400)
    return said.done(request, f"Added to “{row.title}”.", "finding", row.pk, link=reverse("finding", args=[row.pk]))


def template(request: HttpRequest) -> str:
    return "findings/form.html" if panels.target(request) else "findings/add.html"


def looking(request: HttpRequest, given: QueryDict) -> Looked:
    """Raises Http404 for what the person may not see."""
    if pk := given.get("sample", ""):
        sample = opened.sample_of(request, pk)
        run = sample.step.run
    elif uid := given.get("run", ""):
        sample, run = None, access.run_or_404(request, uid)
    else:
        return Looked(project_of(request, given.get("project", "")))
    looked = Looked(run.project, run, sample)
    if given.get("step"):
        try:
            looked.where = scope(run, given)
        except BadInput as error:
            looked.problem = str(error)
    return looked


def project_of(request: HttpRequest, slug: str) -> Project:
    """The project that is named, else the first in which the person may write."""
    if slug:
        return access.project_or_404(request, slug)
    mine = access.visible_projects(request).order_by("slug")
    found = next((one for one in mine if opened.may(one.role_of(request.user), "annotator")), None)
    if found is None:
        raise Http404("You may write in no project yet; an owner of one can give you the role annotator.")
    return found


def scope(run: Run, given: QueryDict) -> dict[str, Any]:
    """Where the page's query is asked, as `exhibits.of_query` takes it. Raises BadInput."""
    split = one_of(given.get("split"), "split", wire.SPLITS, default=strip.first_split(run))
    ask = Ask.of(given)
    step = None if given.get("step") == "all" else number(given.get("step"), "step")
    row = None if step is None else opened.step_of(run, split, step, opened.attempt_of(run, ask.attempt))
    if step is not None and row is None:
        raise BadInput(f"This run has no {split} step {step}.", "step")
    return {
        "split": split,
        "step": step,
        "step_kind": row.step_kind if row else strip.kind_of(run, split),
        "attempt": row.attempt.key if row and row.superseded else ask.attempt,
        "q": given.get("q", ""),
        "ordering": ask.sort or "score",
    }


def form(request: HttpRequest, looked: Looked, given: QueryDict, problem: str = "") -> dict[str, Any]:
    offered = offers(request, looked.project)
    return {
        "looked": looked,
        "offered": offered,
        "chosen": given.get("finding") or (str(offered[0].pk) if offered and offered[0].mine else ""),
        "counted": counted(looked),
        "names": metrics(looked, given),
        "given": given,
        "quotes": given.getlist("quote"),
        "problem": problem or looked.problem,
    }


def offers(request: HttpRequest, project: Project) -> list[Any]:
    """Findings to add to, those first in which the person showed something last."""
    rows = Finding.objects.standing().filter(project=project)
    mine = Max("exhibits__created_at", filter=Q(exhibits__user=request.user.pk))
    found = list(rows.annotate(mine=mine).order_by("-updated_at")[:MOST_OFFERED])
    return sorted(found, key=lambda one: (one.mine is None, -(one.mine or one.updated_at).timestamp()))


def counted(looked: Looked) -> dict[str, Any] | None:
    """How many samples the page's query finds; an error is said instead."""
    if looked.run is None or looked.where is None:
        return None
    where = {name: value for name, value in looked.where.items() if name not in ("q", "ordering")}
    try:
        total = search.find(looked.run, **where, q=looked.where["q"]).total
    except BadInput as error:
        looked.problem = str(error)
        return None
    return {"total": total, "of": search.find(looked.run, **where).total}


def metrics(looked: Looked, given: QueryDict) -> list[tuple[str, bool]]:
    """The run's metrics to choose from, and whether each is chosen; only where a chart is looked at."""
    if looked.run is None or not given.get("charts"):
        return []
    chosen = set(given.getlist("names"))
    return sorted(((name, name in chosen) for name in series.names(looked.run)), key=lambda one: (not one[1], one[0]))


@transaction.atomic
def added(request: HttpRequest, looked: Looked) -> Finding:
    """All that is ticked, or nothing. Raises RolloutError."""
    by, given = opened.person(request), request.POST
    words = given.get("words", "")
    row = chosen(request, looked)
    ticked = set(given.getlist("show"))
    if looked.problem and "query" in ticked:
        raise BadInput(looked.problem, "q")
    if given.get("finding") and not ticked and not given.getlist("names"):
        raise BadInput("Choose what to add: the sample, the query, or a metric.", "show")
    if looked.sample and "sample" in ticked:
        body = exhibits.body_of(looked.sample)
        near = number(given.get("near"), "near") or 0
        quotes = [exhibits.quote_of(body, one, near) for one in given.getlist("quote") if one.strip()]
        findings.show_sample(row, looked.sample, by, quotes=quotes, words=words)
        words = ""
    if looked.run and looked.where and "query" in ticked:
        findings.show_query(row, looked.run, by, **looked.where, words=words)
        words = ""
    if looked.run and given.getlist("names"):
        attempt = given.get("attempt", "") or "current"
        findings.show_charts(row, runs_of(request, looked), given.getlist("names"), by, attempt=attempt, words=words)
    return row


def chosen(request: HttpRequest, looked: Looked) -> Finding:
    """The finding that the form names, or the new one. Raises BadInput, Http404."""
    by, given = opened.person(request), request.POST
    if not given.get("finding"):
        return findings.begin(looked.project, by, title=given.get("title", ""), note=given.get("note", ""))
    row = pages.finding_of(request, number(given["finding"], "finding") or 0, "annotator")
    if row.project_id != looked.project.pk:
        raise BadInput(
            f"“{row.title}” belongs to {row.project.slug}, what you show to {looked.project.slug}.", "finding"
        )
    return row


def runs_of(request: HttpRequest, looked: Looked) -> list[Run]:
    """The run and those that are drawn over it, of the same project."""
    assert looked.run is not None
    uids = [uid for uid in request.POST.get("runs", "").split(",") if uid and uid != looked.run.uid][: MOST_RUNS - 1]
    others = [access.run_or_404(request, uid) for uid in uids]
    return [looked.run, *(run for run in others if run.project_id == looked.project.pk)]
