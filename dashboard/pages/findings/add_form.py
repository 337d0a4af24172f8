"""The form that adds items to a finding: a sample with quotes, a query, charts, rates of two runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.findings.presenter import describe_chart
from rolloutdeck.protocol import SPLITS
from rollouts.charts import ChartQuery, load_arrangement
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.findings import (
    QUERY_PREFIX,
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
from rollouts.reward_check import RewardSelection, parse_selection, snapshot_rates
from rollouts.samples import load_body

MAX_OFFERED_FINDINGS = 50
MAX_CHART_RUNS = 8
MAX_QUOTES_AT_ONCE = 10
MAX_QUOTE_CHARS = 100_000

StoreItem = Callable[[Finding, User, str], EvidenceItem]


@dataclass(slots=True)
class EvidenceSource:
    """What the URL says that the user looks at; each part may be missing. `query` holds arguments of
    `snapshot_query`, `rates` is a comparison of the reward check."""

    project: Project
    run: Run | None = None
    sample: Sample | None = None
    query: dict[str, Any] | None = None
    rates: RewardSelection | None = None
    error: str = ""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def add_to_finding_view(request: HttpRequest) -> HttpResponse:
    params = request.POST if request.method == "POST" else request.GET
    try:
        source = parse_evidence_source(request, params)
    except InvalidInputError as error:
        return common.render_error_page(request, 400, _("Cannot add to a finding"), str(error))
    permissions.require_role(request, source.project, "annotator")
    template = "findings/form.html" if common.get_requested_panel(request) else "findings/add.html"
    if request.method != "POST":
        return common.set_cache_headers(render(request, template, build_form_context(request, source, params)), "")
    try:
        finding = add_selected_items(request, source)
    except RolloutError as error:
        if common.is_script_request(request):
            return common.respond_error(request, error, "findings")
        return render(request, template, build_form_context(request, source, params, str(error)), status=400)
    message = _("Added to “{title}”.").format(title=finding.title)
    return common.respond_success(request, message, "finding", finding.pk, link=reverse("finding", args=[finding.pk]))


def parse_evidence_source(request: HttpRequest, params: QueryDict) -> EvidenceSource:
    """Raises Http404 if the user may not see it, InvalidInputError if there is no project."""
    if pk := params.get("sample", ""):
        sample = permissions.sample_or_404(request, pk)
        run = sample.step.run
    elif uid := params.get("run", ""):
        sample, run = None, permissions.run_or_404(request, uid)
    else:
        return EvidenceSource(choose_project(request, params.get("project", "")))
    source = EvidenceSource(run.project, run, sample)
    if params.get("step"):
        try:
            source.query = parse_query_source(run, params) | {"reader": request.user.pk}
        except InvalidInputError as error:
            source.error = str(error)
    if params.get("rates"):
        try:
            source.rates = parse_rates_source(request, run, params)
        except InvalidInputError as error:
            source.error = str(error)
    return source


def choose_project(request: HttpRequest, slug: str) -> Project:
    """The named project, else the last used one in which the user may write. Raises InvalidInputError if there is
    none."""
    if project := common.choose_project(request, slug, "annotator"):
        return project
    message = _("You cannot edit any project yet. Ask a project owner for the annotator role.")
    raise InvalidInputError(message, "project")


def parse_query_source(run: Run, params: QueryDict) -> dict[str, Any]:
    """The query of the page, as arguments of `snapshot_query`. Raises InvalidInputError."""
    split = parse_choice(params.get("split"), "split", SPLITS, default=common.find_default_split(run))
    state = common.StepUrlState.from_query(params)
    step = common.find_named_step(run, split, params.get("step", ""), state.attempt)
    return {
        "split": split,
        "step": step.step if step else None,
        "step_kind": step.step_kind if step else common.find_step_kind(run, split),
        "attempt": step.attempt.key if step and step.superseded else state.attempt,
        "q": params.get("q", ""),
        "ordering": state.sort or ("score" if step else "-step"),
    }


def parse_rates_source(request: HttpRequest, run: Run, params: QueryDict) -> RewardSelection:
    """The comparison of the reward check. Raises InvalidInputError."""
    uid = params.get("against", "")
    other = permissions.run_or_404(request, uid) if uid else None
    if other is not None and other.project_id != run.project_id:
        raise InvalidInputError(_("Both runs must be of one project."), "against")
    good = [value for value in params.get("good", "").split(",") if value]
    texts = {name: params.get(name, "") for name in ("question", "threshold", "steps", "than")}
    reader = common.get_signed_in_user(request).pk
    return parse_selection(run, reader=reader, good=good, other=other, **texts)


def build_form_context(
    request: HttpRequest, source: EvidenceSource, params: QueryDict, error: str = ""
) -> dict[str, Any]:
    offered = load_offered_findings(request, source.project)
    counts, query_error = count_query_matches(source)
    return {
        "source": source,
        "offered": offered,
        "projects": [] if source.run else common.find_projects(request, "annotator"),
        "chosen": params.get("finding") or (str(offered[0].pk) if offered and offered[0].last_added else ""),
        "counted": counts,
        "names": list_metric_choices(source, params),
        "params": params,
        "quotes": params.getlist("quote"),
        "error": error or source.error or query_error,
    }


def load_offered_findings(request: HttpRequest, project: Project) -> list[Any]:
    """The newest findings; first those to which the user has added items, the last used first."""
    last_added = Max("exhibits__created_at", filter=Q(exhibits__user=request.user.pk))
    rows = Finding.objects.active().filter(project=project).annotate(last_added=last_added).order_by("-updated_at")
    findings = list(rows[:MAX_OFFERED_FINDINGS])
    return sorted(findings, key=lambda row: (row.last_added is None, -(row.last_added or row.updated_at).timestamp()))


def count_query_matches(source: EvidenceSource) -> tuple[dict[str, int] | None, str]:
    """(how many samples the page's query matches, None if it is invalid or there is none; the error)."""
    if source.run is None or source.query is None:
        return None, ""
    where = {name: value for name, value in source.query.items() if name not in ("q", "ordering")}
    try:
        total = find_samples(source.run, **where, q=source.query["q"]).total
    except InvalidInputError as error:
        return None, str(error)
    return {"total": total, "of": find_samples(source.run, **where).total}, ""


def list_metric_choices(source: EvidenceSource, params: QueryDict) -> list[tuple[str, str, bool]]:
    """[(name, title, whether it is selected)] of metrics and charts of queries, selected ones first; empty if the page
    shows no charts. The charts of queries are those of the project and those that the page asks for."""
    if source.run is None or not params.get("charts"):
        return []
    selected = [name for name in params.getlist("names") if is_chart(source.run, name)]
    queries = [f"{QUERY_PREFIX}{query}" for query in load_arrangement(source.project).queries]
    names = [*selected, *sorted(list_metric_names(source.run)), *queries]
    return [(name, describe_chart(name), name in selected) for name in dict.fromkeys(names)]


def is_chart(run: Run, name: str) -> bool:
    if not name.startswith(QUERY_PREFIX):
        return name in list_metric_names(run)
    try:
        ChartQuery.parse(name.removeprefix(QUERY_PREFIX))
    except InvalidInputError:
        return False
    return True


def add_selected_items(request: HttpRequest, source: EvidenceSource) -> Finding:
    """Adds all selected items, or nothing. The snapshots are taken before the database is locked.
    Raises RolloutError."""
    user, params = common.get_signed_in_user(request), request.POST
    selected = set(params.getlist("show"))
    has_comment = bool(params.get("words", "").strip())  # it is stored with the first item
    if not selected and not params.getlist("names") and (params.get("finding") or has_comment):
        raise InvalidInputError(_("Choose what to add: the sample, the query, or a metric."), "show")
    items = list(prepare_items(request, source, selected))
    with transaction.atomic():
        finding = find_or_create_finding(request, source)
        for position, store_item in enumerate(items):
            store_item(finding, user, params.get("words", "") if position == 0 else "")
    return finding


def prepare_items(request: HttpRequest, source: EvidenceSource, selected: set[str]) -> Iterator[StoreItem]:
    """Takes a snapshot of each selected item. Raises InvalidInputError."""
    run, sample, names = source.run, source.sample, request.POST.getlist("names")
    if run is None:
        return
    if sample and "sample" in selected:
        body = load_body(sample)
        quotes = [find_quote(body, *quote) for quote in parse_quotes(request)]
        content = snapshot_sample(sample, body, quotes)
        yield lambda finding, user, note: store_sample_evidence(finding, sample, content, user, quotes, note)
    if "query" in selected:
        if source.error:
            raise InvalidInputError(source.error, "q")
        if source.query:
            query = snapshot_query(run, **source.query)
            yield lambda finding, user, note: store_evidence(finding, EvidenceItem.Kind.QUERY, run, query, user, note)
    if "rates" in selected:
        if source.rates is None:
            raise InvalidInputError(source.error, "rates")
        rates = snapshot_rates(source.rates)
        yield lambda finding, user, note: store_evidence(finding, EvidenceItem.Kind.RATES, run, rates, user, note)
    if names:
        runs = load_chart_runs(request, run)
        attempt = request.POST.get("attempt", "") or "current"
        charts = snapshot_charts(runs, names, attempt, reader=request.user.pk)
        yield lambda finding, user, note: store_evidence(finding, EvidenceItem.Kind.CHART, run, charts, user, note)


def parse_quotes(request: HttpRequest) -> list[tuple[str, int]]:
    """[(text, about where it is in the response)]. Raises InvalidInputError."""
    texts = [text for text in request.POST.getlist("quote") if text.strip()]
    if len(texts) > MAX_QUOTES_AT_ONCE or any(len(text) > MAX_QUOTE_CHARS for text in texts):
        message = _("You can add at most {count} quotes at once, each up to {limit} characters.")
        raise InvalidInputError(message.format(count=MAX_QUOTES_AT_ONCE, limit=f"{MAX_QUOTE_CHARS:,}"), "quote")
    near = parse_integer(request.POST.get("near"), "near") or 0
    return [(text, near) for text in texts]


def find_or_create_finding(request: HttpRequest, source: EvidenceSource) -> Finding:
    """The finding that the form names, or a new one. Raises InvalidInputError, Http404."""
    user, params = common.get_signed_in_user(request), request.POST
    if not params.get("finding"):
        return create_finding(source.project, user, title=params.get("title", ""), note=params.get("note", ""))
    finding = permissions.finding_or_404(request, parse_integer(params["finding"], "finding") or 0, role="annotator")
    if finding.project_id != source.project.pk:
        message = _("“{title}” belongs to {project}, but the content you are adding belongs to {other}.")
        names = {"title": finding.title, "project": finding.project.slug, "other": source.project.slug}
        raise InvalidInputError(message.format(**names), "finding")
    return finding


def load_chart_runs(request: HttpRequest, run: Run) -> list[Run]:
    """The run and the runs of the same project that are overlaid on its charts."""
    uids = [uid for uid in request.POST.get("runs", "").split(",") if uid and uid != run.uid][: MAX_CHART_RUNS - 1]
    others = [permissions.run_or_404(request, uid) for uid in uids]
    return [run, *(other for other in others if other.project_id == run.project_id)]
