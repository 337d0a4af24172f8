"""The runs whose curves are drawn over those of the page's run: `?runs=uid,uid`."""

from collections.abc import Sequence
from urllib.parse import quote

from django.http import HttpRequest

from dashboard import permissions
from dashboard.pages.common import clean_param
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import Run

MAX_OVERLAYS = 7  # in addition to the page's run
MAX_OFFERED_RUNS = 60


def find_overlay_runs(request: HttpRequest, run: Run) -> list[Run]:
    """The runs that the URL names and the user may see, in the order of the URL."""
    uids = [uid for uid in clean_param(request.GET.get("runs", "")).split(",") if UID_PATTERN.match(uid)]
    requested = [uid for uid in dict.fromkeys(uids) if uid != run.uid][:MAX_OVERLAYS]
    if not requested:
        return []
    visible = permissions.visible_runs(request).filter(uid__in=requested).defer("config")
    runs = {overlay.uid: overlay for overlay in visible}
    return [runs[uid] for uid in requested if uid in runs]


def build_overlay_link(request: HttpRequest, overlays: Sequence[Run]) -> str:
    """The URL of this page with these overlays."""
    params = [(name, value) for name, values in request.GET.lists() if name != "runs" for value in values]
    pairs = [f"{quote(name)}={quote(clean_param(value), safe=':/|()*^.')}" for name, value in params]
    pairs += [f"runs={','.join(run.uid for run in overlays)}"] if overlays else []
    return "?" + "&".join(pairs)


def build_overlay_chips(request: HttpRequest, run: Run, overlays: Sequence[Run]) -> list[tuple[Run, bool, str, str]]:
    """[(overlay, whether its colour is used before, the URL without it, `runs` of that URL)]"""
    chips = []
    for overlay, repeated in zip(overlays, find_repeated_colours([run, *overlays])[1:], strict=True):
        others = [other for other in overlays if other != overlay]
        uids = ",".join(other.uid for other in others)
        chips.append((overlay, repeated, build_overlay_link(request, others), uids))
    return chips


def find_repeated_colours(runs: Sequence[Run]) -> list[bool]:
    """For each run, whether one before it has the same colour: there are only eight."""
    return [run.colour in {other.colour for other in runs[:at]} for at, run in enumerate(runs)]


def build_overlay_offers(request: HttpRequest, run: Run, overlays: Sequence[Run]) -> list[tuple[Run, str, bool]]:
    """[(run, link, whether it is overlaid)]: the overlays, then recently updated runs, those of the same project first.
    The link adds or removes the run; it is empty if there are too many overlays."""
    visible = permissions.visible_runs(request).filter(archived_at=None).exclude(pk=run.pk).select_related("project")
    runs = list(visible.order_by("-seen_at").defer("config", "facts")[: 2 * MAX_OFFERED_RUNS])
    runs.sort(key=lambda other: (other not in overlays, other.project_id != run.project_id))
    offers = []
    for other in runs[:MAX_OFFERED_RUNS]:
        on = other in overlays
        changed = [overlay for overlay in overlays if overlay != other] if on else [*overlays, other]
        link = build_overlay_link(request, changed) if len(changed) <= MAX_OVERLAYS else ""
        offers.append((other, link, on))
    return offers
