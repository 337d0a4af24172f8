"""Where the palette can go: runs by name, steps of the run that is open, samples by their id."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from rollouts.models import Run, Sample

MAX_SEARCHED_RUNS = 2000  # the newest, among which names are looked for
MAX_CANDIDATES = 60  # runs that the browser ranks
MIN_SAMPLE_ID_CHARS = 8  # characters of an id, at least, that say a sample is meant
BASE32 = frozenset("abcdefghijklmnopqrstuvwxyz234567")


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """`detail` stands behind the name, in grey."""

    kind: str
    name: str
    detail: str
    url: str


@login_required
@require_safe
def search_palette_view(request: HttpRequest) -> JsonResponse:
    """`?q=&run=`: places that match `q`, which the page's script ranks; without `q` the runs with the latest news."""
    asked = clean_param(request.GET.get("q", "")).strip()[:100]
    uid = request.GET.get("run", "")
    run = permissions.visible_runs(request).by_uid(uid) if UID_PATTERN.match(uid) else None
    found = [*find_palette_steps(run, asked), *find_palette_runs(request, asked), *find_palette_samples(request, asked)]
    return JsonResponse({"places": [asdict(place) for place in found]})


def find_palette_runs(request: HttpRequest, asked: str) -> list[PaletteEntry]:
    seen = permissions.visible_runs(request).order_by("-seen_at").values_list("name", "project__slug", "uid")
    words = asked.lower().split()
    named = [(f"{project} {name}".lower(), name, project, uid) for name, project, uid in seen[:MAX_SEARCHED_RUNS]]
    found = [row for row in named if all(has_letters(row[0], word) for word in words)]
    found.sort(key=lambda row: not all(word in row[0] for word in words))
    return [
        PaletteEntry("run", name, project, reverse("run", args=[uid]))
        for _, name, project, uid in found[:MAX_CANDIDATES]
    ]


def has_letters(name: str, word: str) -> bool:
    """Whether the name has the letters of the word in this order: `qwgr` finds `qwen_grpo`."""
    letters = iter(name)
    return all(letter in letters for letter in word)


def find_palette_steps(run: Run | None, asked: str) -> list[PaletteEntry]:
    """The step of this number in each split; the latest or all of them by their words."""
    if run is None or not asked:
        return []
    words = [word for word in ("latest", "all") if len(asked) > 1 and word.startswith(asked.lower())]
    by_word = [
        PaletteEntry("step", _("all steps") if word == "all" else _("latest step"), run.name, build_step_url(run, word))
        for word in words
    ]
    number = parse_integer_param(asked.lower().removeprefix("step").strip())
    if number is None:
        return by_word
    rows = run.steps.filter(step=number, superseded=False, samples__gt=0).order_by("-split", "step_kind")
    first = find_default_split(run)
    usual = [row for row in rows if row.step_kind == find_step_kind(run, row.split)]
    return by_word + [
        PaletteEntry(
            "step",
            _("step {step}").format(step=row.step),
            format_step_detail(row.split, row.samples, row.score_mean),
            build_step_url(run, str(row.step), row.split, first),
        )
        for row in usual
    ]


def format_step_detail(split: str, samples: int, mean: float | None) -> str:
    told = ngettext("{count} sample", "{count} samples", samples).format(count=f"{samples:,}")
    scored = [] if mean is None else [_("mean {score}").format(score=format_number(mean))]
    return " · ".join([split, told, *scored])


def build_step_url(run: Run, step: str, split: str = "", first: str = "") -> str:
    query = f"?{urlencode({'split': split})}" if split != first else ""
    return reverse("step", args=[run.uid, step]) + query


def find_palette_samples(request: HttpRequest, asked: str) -> list[PaletteEntry]:
    """Those whose id begins so."""
    begun = asked.lower()
    if len(begun) < MIN_SAMPLE_ID_CHARS or not BASE32.issuperset(begun):
        return []
    rows = Sample.objects.filter(
        pk__gte=begun, pk__lte=begun.ljust(64, "z"), step__run__in=permissions.visible_runs(request)
    )
    found = rows.select_related("step__run").order_by("pk")[:4]
    return [
        PaletteEntry(
            "sample",
            row.pk[:16],
            _("step {step} of {run}").format(step=row.step.step, run=row.step.run.name),
            reverse("sample", args=[row.pk]),
        )
        for row in found
    ]
