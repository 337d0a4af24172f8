"""The results of the command palette: runs by name, steps of the open run, samples by id."""

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import clean_param, find_default_split, find_step_kind, format_number, parse_integer_param
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run, Sample, Step

MAX_SEARCHED_RUNS = 2000  # the most recently updated ones
MAX_CANDIDATES = 60  # runs that the browser ranks
MIN_SAMPLE_ID_CHARS = 8
BASE32 = frozenset("abcdefghijklmnopqrstuvwxyz234567")


@login_required
@require_safe
def search_palette_view(request: HttpRequest) -> JsonResponse:
    """`?q=&run=`: {places: [{kind, name, detail, url}]} that match `q`, ranked by the page's script. Without `q`, the
    most recently updated runs."""
    query = clean_param(request.GET.get("q", "")).strip().lower()[:100]
    uid = request.GET.get("run", "")
    run = permissions.visible_runs(request).by_uid(uid) if UID_PATTERN.match(uid) else None
    entries = [
        *(find_palette_steps(run, query) if run and query else []),
        *find_palette_runs(request, query),
        *find_palette_samples(request, query),
    ]
    return JsonResponse({"places": entries})


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
    number = parse_integer_param(query.removeprefix("step").strip())
    if number is None:
        return entries
    default_split = find_default_split(run)
    rows = run.steps.filter(step=number, superseded=False, samples__gt=0).order_by("-split", "step_kind")
    return entries + [
        build_entry(
            "step",
            _("step {step}").format(step=row.step),
            format_step_detail(row),
            reverse("step", args=[run.uid, row.step])
            + (f"?{urlencode({'split': row.split})}" if row.split != default_split else ""),
        )
        for row in rows
        if row.step_kind == find_step_kind(run, row.split)
    ]


def format_step_detail(row: Step) -> str:
    samples = ngettext("{count} sample", "{count} samples", row.samples).format(count=f"{row.samples:,}")
    mean = [] if row.score_mean is None else [_("mean {score}").format(score=format_number(row.score_mean))]
    return " · ".join([row.split, samples, *mean])


def find_palette_samples(request: HttpRequest, query: str) -> list[dict[str, Any]]:
    """The samples whose id starts with the query."""
    if len(query) < MIN_SAMPLE_ID_CHARS or not BASE32.issuperset(query):
        return []
    visible = Sample.objects.filter(step__run__in=permissions.visible_runs(request))
    samples = visible.filter(pk__gte=query, pk__lte=query.ljust(64, "z")).select_related("step__run").order_by("pk")
    return [
        build_entry(
            "sample",
            sample.pk[:16],
            _("step {step} of {run}").format(step=sample.step.step, run=sample.step.run.name),
            reverse("sample", args=[sample.pk]),
        )
        for sample in samples[:4]
    ]
