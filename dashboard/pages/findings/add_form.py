"""The form that adds what somebody looks at to a finding: the sample with a quote, the query's counts, charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max, Q
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.pages.common import (
    StepUrlState,
    find_default_split,
    find_named_step,
    find_step_kind,
    get_requested_panel,
    get_signed_in_user,
    is_script_request,
    respond_error,
    respond_success,
    role_allows,
    set_cache_headers,
)
from dashboard.pages.findings import views as pages
from rolloutdeck.protocol import SPLITS
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.findings import (
    create_finding,
    find_quote,
    snapshot_charts,
    snapshot_query,
    snapshot_sample,
    store_evidence,
    store_sample_evidence,
)
from rollouts.lib import parse_choice, parse_integer
from rollouts.metrics import list_metric_names
from rollouts.models import EvidenceItem, Finding, Project, Run, Sample
from rollouts.query import find_samples
from rollouts.samples import load_body

MAX_OFFERED_FINDINGS = 50
MAX_CHART_RUNS = 8
MAX_QUOTES_AT_ONCE = 10
MAX_QUOTE_CHARS = 100_000  # characters, before it is looked for

SaveItem = Callable[[Finding, User, str], EvidenceItem]


@dataclass(slots=True)
class EvidenceSource:
    """What the address says that somebody looks at; each part may be missing."""

    project: Project
    run: Run | None = None
    sample: Sample | None = None
    where: dict[str, Any] | None = None
    problem: str = ""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def add_to_finding_view(request: HttpRequest) -> HttpResponse:
    given = request.POST if request.method == "POST" else request.GET
    looked = parse_evidence_source(request, given)
    permissions.require_role(request, looked.project, "annotator")
    if request.method != "POST":
        return set_cache_headers(render(request, template(request), form(request, looked, given)), "")
    try:
        row = add_selected_items(request, looked)
    except RolloutError as error:
        if is_script_request(request):
            return respond_error(request, error, "findings")
        return render(request, template(request), form(request, looked, given, str(error)), status=400)
    words = _("Added to “{title}”.").format(title=row.title)
    return respond_success(request, words, "finding", row.pk, link=reverse("finding", args=[row.pk]))


def template(request: HttpRequest) -> str:
    return "findings/form.html" if get_requested_panel(request) else "findings/add.html"


def parse_evidence_source(request: HttpRequest, given: QueryDict) -> EvidenceSource:
    """Raises Http404 for what the person may not see."""
    if pk := given.get("sample", ""):
        sample = permissions.sample_or_404(request, pk)
        run = sample.step.run
    elif uid := given.get("run", ""):
        sample, run = None, permissions.run_or_404(request, uid)
    else:
        return EvidenceSource(project_of(request, given.get("project", "")))
    looked = EvidenceSource(run.project, run, sample)
    if given.get("step"):
        try:
            looked.where = scope(run, given) | {"reader": request.user.pk}
        except InvalidInputError as error:
            looked.problem = str(error)
    return looked


def project_of(request: HttpRequest, slug: str) -> Project:
    """The project that is named, else the first in which the person may write."""
    if slug:
        return permissions.project_or_404(request, slug)
    mine = permissions.visible_projects(request).order_by("slug")
    found = next((one for one in mine if role_allows(one.role_of(request.user), "annotator")), None)
    if found is None:
        raise Http404(_("You cannot edit any project yet. Ask a project owner for the annotator role."))
    return found


def scope(run: Run, given: QueryDict) -> dict[str, Any]:
    """Where the page's query is asked, as `snapshot_query` takes it. Raises BadInput."""
    split = parse_choice(given.get("split"), "split", SPLITS, default=find_default_split(run))
    ask = StepUrlState.from_query(given)
    row = find_named_step(run, split, given.get("step", ""), ask.attempt)
    return {
        "split": split,
        "step": row.step if row else None,
        "step_kind": row.step_kind if row else find_step_kind(run, split),
        "attempt": row.attempt.key if row and row.superseded else ask.attempt,
        "q": given.get("q", ""),
        "ordering": ask.sort or "score",
    }


def form(request: HttpRequest, looked: EvidenceSource, given: QueryDict, problem: str = "") -> dict[str, Any]:
    offered = load_offered_findings(request, looked.project)
    return {
        "looked": looked,
        "offered": offered,
        "chosen": given.get("finding") or (str(offered[0].pk) if offered and offered[0].mine else ""),
        "counted": count_query_matches(looked),
        "names": metrics(looked, given),
        "given": given,
        "quotes": given.getlist("quote"),
        "problem": problem or looked.problem,
    }


def load_offered_findings(request: HttpRequest, project: Project) -> list[Any]:
    """Findings to add to, those first in which the person showed something last."""
    rows = Finding.objects.active().filter(project=project)
    mine = Max("exhibits__created_at", filter=Q(exhibits__user=request.user.pk))
    found = list(rows.annotate(mine=mine).order_by("-updated_at")[:MAX_OFFERED_FINDINGS])
    return sorted(found, key=lambda one: (one.mine is None, -(one.mine or one.updated_at).timestamp()))


def count_query_matches(looked: EvidenceSource) -> dict[str, Any] | None:
    """How many samples the page's query finds; an error is said instead."""
    if looked.run is None or looked.where is None:
        return None
    where = {name: value for name, value in looked.where.items() if name not in ("q", "ordering")}
    try:
        total = find_samples(looked.run, **where, q=looked.where["q"]).total
    except InvalidInputError as error:
        looked.problem = str(error)
        return None
    return {"total": total, "of": find_samples(looked.run, **where).total}


def metrics(looked: EvidenceSource, given: QueryDict) -> list[tuple[str, bool]]:
    """The run's metrics to choose from, and whether each is chosen; only where a chart is looked at."""
    if looked.run is None or not given.get("charts"):
        return []
    chosen = set(given.getlist("names"))
    return sorted(
        ((name, name in chosen) for name in list_metric_names(looked.run)), key=lambda one: (not one[1], one[0])
    )


def add_selected_items(request: HttpRequest, looked: EvidenceSource) -> Finding:
    """All that is ticked, or nothing. What it shows is found before the database is locked. Raises RolloutError."""
    by, given = get_signed_in_user(request), request.POST
    ticked = set(given.getlist("show"))
    if given.get("finding") and not ticked and not given.getlist("names"):
        raise InvalidInputError(_("Choose what to add: the sample, the query, or a metric."), "show")
    keeps = [keep for part in (sample_of, query_of, charts_of) for keep in part(request, looked, ticked)]
    with transaction.atomic():
        row = find_or_create_finding(request, looked)
        for place, keep in enumerate(keeps):
            keep(row, by, given.get("words", "") if place == 0 else "")
    return row


def sample_of(request: HttpRequest, looked: EvidenceSource, ticked: set[str]) -> Iterator[SaveItem]:
    sample = looked.sample
    if sample is None or "sample" not in ticked:
        return
    texts = [one for one in request.POST.getlist("quote") if one.strip()]
    if len(texts) > MAX_QUOTES_AT_ONCE or any(len(one) > MAX_QUOTE_CHARS for one in texts):
        problem = _("You can add at most {count} quotes at once, each up to {most} characters.")
        raise InvalidInputError(problem.format(count=MAX_QUOTES_AT_ONCE, most=f"{MAX_QUOTE_CHARS:,}"), "quote")
    near = parse_integer(request.POST.get("near"), "near") or 0
    body = load_body(sample)
    quotes = [find_quote(body, one, near) for one in texts]
    new = snapshot_sample(sample, body, quotes)
    yield lambda row, by, words: store_sample_evidence(row, sample, new, by, quotes, words)


def query_of(request: HttpRequest, looked: EvidenceSource, ticked: set[str]) -> Iterator[SaveItem]:
    if "query" not in ticked:
        return
    if looked.problem:
        raise InvalidInputError(looked.problem, "q")
    run = looked.run
    if run and looked.where:
        new = snapshot_query(run, **looked.where)
        yield lambda row, by, words: store_evidence(row, EvidenceItem.Kind.QUERY, run, new, by, words)


def charts_of(request: HttpRequest, looked: EvidenceSource, ticked: set[str]) -> Iterator[SaveItem]:
    run, names = looked.run, request.POST.getlist("names")
    if run and names:
        new = snapshot_charts(runs_of(request, looked), names, request.POST.get("attempt", "") or "current")
        yield lambda row, by, words: store_evidence(row, EvidenceItem.Kind.CHART, run, new, by, words)


def find_or_create_finding(request: HttpRequest, looked: EvidenceSource) -> Finding:
    """The finding that the form names, or the new one. Raises BadInput, Http404."""
    by, given = get_signed_in_user(request), request.POST
    if not given.get("finding"):
        return create_finding(looked.project, by, title=given.get("title", ""), note=given.get("note", ""))
    row = pages.finding_or_404(request, parse_integer(given["finding"], "finding") or 0, "annotator")
    if row.project_id != looked.project.pk:
        problem = _("“{title}” belongs to {project}, but the content you are adding belongs to {other}.")
        other = {"title": row.title, "project": row.project.slug, "other": looked.project.slug}
        raise InvalidInputError(problem.format(**other), "finding")
    return row


def runs_of(request: HttpRequest, looked: EvidenceSource) -> list[Run]:
    """The run and those that are drawn over it, of the same project."""
    assert looked.run is not None
    uids = [uid for uid in request.POST.get("runs", "").split(",") if uid and uid != looked.run.uid][
        : MAX_CHART_RUNS - 1
    ]
    others = [permissions.run_or_404(request, uid) for uid in uids]
    return [looked.run, *(run for run in others if run.project_id == looked.project.pk)]
