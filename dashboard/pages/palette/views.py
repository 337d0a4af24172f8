"""The results of the command palette: runs by name, steps of the open run, samples by id."""

from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    clean_param,
    find_default_split,
    find_step_kind,
    format_number,
    get_signed_in_user,
    parse_step_number,
)
from dashboard.pages.saved_views import build_view_url, find_views
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run, Sample, StepTotals, add_steps

MAX_SEARCHED_RUNS = 2000  # the most recently updated ones
MAX_CANDIDATES = 60  # runs that the browser ranks
MAX_VIEWS = 8
MIN_COMMAND_CHARS = 3
MIN_SAMPLE_ID_CHARS = 8
BASE32 = frozenset("abcdefghijklmnopqrstuvwxyz234567")


@login_required
@require_safe
def search_palette_view(request: HttpRequest) -> JsonResponse:
    """`?q=&run=`: {results: [{kind, name, detail, url}]} that match `q`, ranked by the page's script. Without `q`, the
    most recently updated runs."""
    query = clean_param(request.GET.get("q", "")).strip().lower()[:100]
    uid = request.GET.get("run", "")
    run = permissions.visible_runs(request).by_uid(uid) if UID_PATTERN.match(uid) else None
    steps = find_palette_steps(run, query) if run and query else []
    runs, samples = find_palette_runs(request, query), find_palette_samples(request, query)
    entries = [
        *steps,
        *runs,
        *find_palette_views(request, query, run),
        *samples,
        *build_search_entries(request, query, run),
    ]
    return JsonResponse({"results": entries})


def build_entry(kind: str, name: str, detail: str, url: str) -> dict[str, Any]:
    """`detail` is shown after the name, in grey."""
    return {"kind": kind, "name": name, "detail": detail, "url": url}


def find_palette_runs(request: HttpRequest, query: str) -> list[dict[str, Any]]:
    visible = permissions.visible_runs(request).order_by("-seen_at").values_list("name", "project__slug", "uid")
    words = query.split()
    runs = [(f"{project} {name}".lower(), name, project, uid) for name, project, uid in visible[:MAX_SEARCHED_RUNS]]
    matches = [run for run in runs if all(has_letters(run[0], word) for word in words)]
    matches.sort(key=lambda run: not all(word in run[0] for word in words))
    return [
        build_entry("run", name, project, reverse("run", args=[uid]))
        for _text, name, project, uid in matches[:MAX_CANDIDATES]
    ]


def find_palette_views(request: HttpRequest, query: str, run: Run | None) -> list[dict[str, Any]]:
    """The saved views whose name has all words. On a page of a run, those of pages of a run open this run."""
    words = query.split()
    if not words:
        return []
    views = [
        view for view in find_views(get_signed_in_user(request)) if all(word in view.name.lower() for word in words)
    ]
    return [
        build_entry("view", view.name, view.project.slug if view.project else "", build_view_url(view, own_run))
        for view in views[:MAX_VIEWS]
        for own_run in [run if run and view.project_id == run.project_id else None]
    ]


def build_search_entries(request: HttpRequest, query: str, run: Run | None) -> list[dict[str, Any]]:
    """The search over all runs of the open run's project, else of each project. `search words` searches the words."""
    title = _("Search all runs")
    first, _space, words = query.partition(" ")
    if len(first) < MIN_COMMAND_CHARS or not ("search".startswith(first) or query in title.lower()):
        return []
    visible = permissions.visible_projects(request).order_by("slug")
    slugs = [run.project.slug] if run else list(visible.values_list("slug", flat=True)[:MAX_VIEWS])
    more = {"q": words} if words and first == "search" and query not in title.lower() else {}
    urls = {slug: f"{reverse('search')}?{urlencode({'project': slug, **more})}" for slug in slugs}
    return [build_entry("page", title, slug, url) for slug, url in urls.items()]


def has_letters(name: str, word: str) -> bool:
    """Whether the name contains the letters of the word in this order: `qwgr` matches `qwen_grpo`."""
    letters = iter(name)
    return all(letter in letters for letter in word)


def find_palette_steps(run: Run, query: str) -> list[dict[str, Any]]:
    """The step with this number in each split; the latest step or all steps, if the query is a part of their names."""
    names = {"latest": _("latest step"), "all": _("all steps")}
    entries = [
        build_entry("step", name, run.name, reverse("step", args=[run.uid, word]))
        for word, name in names.items()
        if len(query) > 1 and word.startswith(query)
    ]
    number = parse_step_number(query.removeprefix("step").strip())
    if number is None:
        return entries
    default_split = find_default_split(run)
    rows = run.steps.current().filter(step=number, samples__gt=0).order_by("-split", "step_kind")
    for split, same in groupby(rows, key=lambda row: row.split):  # attempts that run at the same time have a row each
        if shown := [row for row in same if row.step_kind == find_step_kind(run, split)]:
            url = reverse("step", args=[run.uid, number])
            url += f"?{urlencode({'split': split})}" if split != default_split else ""
            detail = format_step_detail(split, add_steps(shown))
            entries.append(build_entry("step", _("step {step}").format(step=number), detail, url))
    return entries


def format_step_detail(split: str, totals: StepTotals) -> str:
    samples = ngettext("{count} sample", "{count} samples", totals.samples).format(count=f"{totals.samples:,}")
    mean = [] if totals.score_mean is None else [_("mean {score}").format(score=format_number(totals.score_mean))]
    return " · ".join([split, samples, *mean])


def find_palette_samples(request: HttpRequest, query: str) -> list[dict[str, Any]]:
    """The samples whose id starts with the query."""
    if len(query) < MIN_SAMPLE_ID_CHARS or not BASE32.issuperset(query):
        return []
    visible = Sample.objects.filter(step__run__in=permissions.visible_runs(request))
    samples = visible.filter(pk__gte=query, pk__lte=query.ljust(64, "z")).select_related("step__run").order_by("pk")
    entries = []
    for sample in samples[:4]:
        detail = _("step {step} of {run}").format(step=sample.step.step, run=sample.step.run.name)
        entries.append(build_entry("sample", sample.pk[:16], detail, reverse("sample", args=[sample.pk])))
    return entries
