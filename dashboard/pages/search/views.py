"""The search over the samples of all runs of a project. The page requests one part of the runs after the other, so a
search ends when the user leaves."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    choose_project,
    clean_param,
    get_requested_panel,
    get_signed_in_user,
    parse_integer_param,
    render_query_error,
    render_snippet,
    render_text_line,
)
from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.models import Project, Run
from rollouts.query import build_hit_pattern, find_snippets, parse_query
from rollouts.runs import RunMatches, search_runs
from rollouts.samples import load_texts

PART_SECONDS = 0.8
MAX_RUNS = 2000
MAX_TAIL_CHARS = 160


@dataclass(frozen=True, slots=True)
class SearchState:
    """`before` is the id of the last run that was searched; `done` runs were searched, with `found` matches. `refused`
    of them do not have what the query asks for; `why` is the id of the newest of these."""

    project: str = ""
    q: str = ""
    before: int | None = None
    done: int = 0
    found: int = 0
    refused: int = 0
    why: int | None = None

    @classmethod
    def from_request(cls, request: HttpRequest) -> "SearchState":
        project, q = (clean_param(request.GET.get(name, "")) for name in ("project", "q"))
        names = ("before", "done", "found", "refused", "why")
        before, done, found, refused, why = (parse_integer_param(request.GET.get(name, "")) for name in names)
        return cls(project.strip(), q.strip(), before, done or 0, found or 0, refused or 0, why)

    def link(self, **more: Any) -> str:
        return f"{reverse('search')}?{urlencode({'project': self.project, 'q': self.q, **more})}"


@login_required
@require_safe
def search_page(request: HttpRequest) -> HttpResponse:
    """`?project=&q=`. A request with `before=` gets the next part of the results."""
    state = SearchState.from_request(request)
    projects = list(permissions.visible_projects(request).order_by("slug"))
    project = choose_project(request, state.project)
    error = find_query_error(state.q)
    context: dict[str, Any] = {"state": state, "project": project, "projects": projects, "error": error}
    if project and state.q and not error:
        state = replace(state, project=project.slug)
        try:
            context |= build_part_context(request, state, project)
        except InvalidInputError as problem:
            context["error"] = render_query_error(state.q, problem)
    if get_requested_panel(request):
        return render(request, "search/part.html", context)
    return render(request, "search/page.html", context)


def find_query_error(q: str) -> SafeString | str:
    try:
        parse_query(q)
    except InvalidInputError as problem:
        return render_query_error(q, problem)
    return ""


def build_part_context(request: HttpRequest, state: SearchState, project: Project) -> dict[str, Any]:
    """The matches of the next runs, as many as are searched in a part of a second."""
    runs = permissions.visible_runs(request).filter(project=project, archived_at=None).with_samples()
    total = min(runs.count(), MAX_RUNS)
    rest = runs if state.before is None else runs.filter(pk__lt=state.before)
    reader = get_signed_in_user(request).pk
    parts = list(search_runs(rest, state.q, reader=reader, seconds=PART_SECONDS))
    done = state.done + len(parts)
    found = state.found + sum(part.total for part in parts)
    problems = [part for part in parts if part.problem]
    refused = state.refused + len(problems)
    why = state.why if state.why is not None or not problems else problems[0].run.pk
    refused_link = {"refused": refused, "why": why} if why is not None else {}
    goes_on = bool(parts) and done < total
    return {
        "refused": refused,
        "problem": "" if goes_on or found or why is None else search_for_problem(runs.filter(pk=why), state.q, reader),
        "state": state,
        "matches": [(part, build_rows(part, state.q), count_by_split(part, state.q)) for part in parts if part.total],
        "done": min(done, total),
        "found": found,
        "total": total,
        "next": state.link(before=parts[-1].run.pk, done=done, found=found, **refused_link) if goes_on else "",
        "truncated": not goes_on and runs.count() > MAX_RUNS,
    }


def search_for_problem(runs: QuerySet[Run], q: str, reader: int) -> str:
    """What the run does not have. A later part of the results knows only which run it is."""
    return next((part.problem for part in search_runs(runs, q, reader=reader)), "")


def count_by_split(part: RunMatches, q: str) -> list[dict[str, Any]]:
    """The splits of the matches. A page of all steps shows one split."""
    counts = {"train": part.total - part.eval_total, "eval": part.eval_total}
    return [
        {"name": split, "count": count, "link": build_link(part.run, split, {"q": q})}
        for split, count in counts.items()
        if count
    ]


def build_link(run: Run, split: str, params: dict[str, str]) -> str:
    """The run's page of all steps. By default it shows the train steps if there are any."""
    params = params if split == "train" else {**params, "split": split}
    return f"{reverse('step', args=[run.uid, 'all'])}?{urlencode(params)}"


def build_rows(part: RunMatches, q: str) -> list[dict[str, Any]]:
    """The rows show the text around the first hit of a query for texts; without one, the end of the response."""
    query, snippets = parse_query(q), {}
    if build_hit_pattern(query):
        with suppress(StorageUnavailableError):
            snippets = find_snippets(load_texts(part.samples), query)
    return [
        {
            "link": build_link(part.run, sample.step.split, {"q": q, "sel": sample.pk}),
            "step": sample.step.step,
            "score": sample.score,
            "text": render_snippet(snippet)
            if (snippet := snippets.get(sample.pk))
            else render_text_line((sample.tail or "")[-MAX_TAIL_CHARS:]),
        }
        for sample in part.samples
    ]
