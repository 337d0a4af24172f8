"""The runs whose curves are drawn over those of a run's overview: `?runs=uid,uid`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from django.http import HttpRequest

from dashboard import permissions
from dashboard.pages.common import clean_param
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run

MAX_OVERLAYS = 7  # besides the run itself
MAX_OFFERED_RUNS = 60


@dataclass(frozen=True, slots=True)
class OverlayOffer:
    run: Run
    link: str
    on: bool


def find_overlay_runs(request: HttpRequest, one: Run) -> list[Run]:
    """The runs that the address names and the person may see, in its order."""
    words = [word for word in clean_param(request.GET.get("runs", "")).split(",") if UID_PATTERN.match(word)]
    wanted = [uid for uid in dict.fromkeys(words) if uid != one.uid][:MAX_OVERLAYS]
    if not wanted:
        return []
    found = {run.uid: run for run in permissions.visible_runs(request).filter(uid__in=wanted).defer("config")}
    return [found[uid] for uid in wanted if uid in found]


def build_overlay_link(request: HttpRequest, runs: Sequence[Run]) -> str:
    """This page's address with these runs over it."""
    kept = [(key, value) for key, values in request.GET.lists() if key != "runs" for value in values]
    pairs = [f"{quote(key)}={quote(clean_param(value), safe=':/|()*^.')}" for key, value in kept]
    pairs += [f"runs={','.join(run.uid for run in runs)}"] if runs else []
    return "?" + "&".join(pairs)


def build_overlay_chips(request: HttpRequest, own: Run, over: Sequence[Run]) -> list[tuple[Run, bool, str, str]]:
    """(run, whether one before it has its colour, the address without it, the `runs` of that address)."""
    rest = [[one for one in over if one != run] for run in over]
    taken = find_repeated_colours([own, *over])[1:]
    return [
        (run, twice, build_overlay_link(request, others), ",".join(one.uid for one in others))
        for run, twice, others in zip(over, taken, rest, strict=True)
    ]


def find_repeated_colours(runs: Sequence[Run]) -> list[bool]:
    """Of each whether one before it has its colour: there are eight."""
    return [run.colour in {other.colour for other in runs[:at]} for at, run in enumerate(runs)]


def build_overlay_offers(request: HttpRequest, one: Run, over: Sequence[Run]) -> list[OverlayOffer]:
    """The runs with the latest news, those of the same project first."""
    seen = permissions.visible_runs(request).filter(archived_at=None).exclude(pk=one.pk).select_related("project")
    rows = list(seen.order_by("-seen_at").defer("config", "facts")[: 2 * MAX_OFFERED_RUNS])
    rows.sort(key=lambda run: (run not in over, run.project_id != one.project_id))
    full = len(over) >= MAX_OVERLAYS
    return [
        OverlayOffer(run, build_overlay_link(request, [other for other in over if other != run]), True)
        if run in over
        else OverlayOffer(run, "" if full else build_overlay_link(request, [*over, run]), False)
        for run in rows[:MAX_OFFERED_RUNS]
    ]
