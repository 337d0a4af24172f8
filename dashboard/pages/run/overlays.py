"""The runs whose curves are drawn over those of the page's run: `?runs=uid,uid`, and `?groups=seeds,tag:NAME`."""

from collections.abc import Sequence
from urllib.parse import quote

from django.http import HttpRequest

from dashboard import permissions
from dashboard.pages.common import clean_param
from rolloutdeck.protocol import UID_PATTERN
from rollouts.models import COLOUR_COUNT, Run
from rollouts.runs import RunGroup, find_run_group, list_group_names

MAX_OVERLAYS = 7  # in addition to the page's run
MAX_OFFERED_RUNS = 60
MAX_GROUPS = 4
SAFE = ":/|()*^.,"  # characters that stay readable in a URL


def find_overlay_runs(request: HttpRequest, run: Run) -> list[Run]:
    """The runs that the URL names and the user may see, in the order of the URL."""
    uids = [uid for uid in clean_param(request.GET.get("runs", "")).split(",") if UID_PATTERN.match(uid)]
    requested = [uid for uid in dict.fromkeys(uids) if uid != run.uid][:MAX_OVERLAYS]
    if not requested:
        return []
    visible = permissions.visible_runs(request).filter(uid__in=requested).defer("config")
    runs = {overlay.uid: overlay for overlay in visible}
    return [runs[uid] for uid in requested if uid in runs]


def find_overlay_groups(request: HttpRequest, run: Run) -> list[RunGroup]:
    """The groups that the URL names, with the runs that the user may see, in the order of the URL."""
    keys = list(dict.fromkeys(filter(None, clean_param(request.GET.get("groups", "")).split(","))))[:MAX_GROUPS]
    found = [find_run_group(key, run, permissions.visible_runs(request)) for key in keys]
    return [group for group in found if group]


def build_param_link(request: HttpRequest, changed: str, values: Sequence[str]) -> str:
    """The URL of this page with these values of a parameter."""
    params = [(name, value) for name, own in request.GET.lists() if name != changed for value in own]
    pairs = [f"{quote(name)}={quote(clean_param(value), safe=SAFE)}" for name, value in params]
    pairs += [f"{changed}={quote(','.join(values), safe=SAFE)}"] if values else []
    return "?" + "&".join(pairs)


def build_overlay_link(request: HttpRequest, overlays: Sequence[Run]) -> str:
    """The URL of this page with these overlays."""
    return build_param_link(request, "runs", [run.uid for run in overlays])


def build_group_chips(
    request: HttpRequest, run: Run, overlays: Sequence[Run], groups: Sequence[RunGroup]
) -> list[tuple[RunGroup, int, str, str]]:
    """[(group, number of its colour, the URL without it, `groups` of that URL)]"""
    colours = assign_colours([run, *overlays], groups)
    chips = []
    for group in groups:
        others = [other.key for other in groups if other != group]
        chips.append((group, colours[group.key], build_param_link(request, "groups", others), ",".join(others)))
    return chips


def build_group_offers(
    request: HttpRequest, run: Run, groups: Sequence[RunGroup]
) -> list[tuple[str, int, str, str, bool]]:
    """[(key, number of runs, link that adds or removes the group, `groups` of that link, whether it is drawn)]"""
    keys = [group.key for group in groups]
    offers = []
    for key, count in list_group_names(run, permissions.visible_runs(request)):
        changed = ([other for other in keys if other != key] if key in keys else [*keys, key])[:MAX_GROUPS]
        offers.append((key, count, build_param_link(request, "groups", changed), ",".join(changed), key in keys))
    return offers


def build_overlay_chips(request: HttpRequest, run: Run, overlays: Sequence[Run]) -> list[tuple[Run, int, str, str]]:
    """[(overlay, number of its colour, the URL without it, `runs` of that URL)]"""
    chips, colours = [], assign_colours([run, *overlays])
    for overlay in overlays:
        others = [other for other in overlays if other != overlay]
        uids = ",".join(other.uid for other in others)
        chips.append((overlay, colours[overlay.pk], build_overlay_link(request, others), uids))
    return chips


def assign_colours(runs: Sequence[Run], groups: Sequence[RunGroup] = ()) -> dict[int | str, int]:
    """The number of the colour of each run in these charts, by id, and of each group, by key: its own, or a free one if
    a run before it has the same. A group with the page's run has its colour. A chart has no more lines than colours."""
    colours: dict[int | str, int] = {}
    for run in runs:
        colours[run.pk] = choose_colour(run, colours)
    for group in groups:
        is_own = runs[0] in group.runs and not any(key in colours for key in (other.key for other in groups))
        colours[group.key] = colours[runs[0].pk] if is_own else choose_colour(group.runs[0], colours)
    return colours


def choose_colour(run: Run, taken: dict[int | str, int]) -> int:
    free = [number for number in range(1, COLOUR_COUNT + 1) if number not in taken.values()]
    return run.colour if run.colour in free or not free else free[0]


def build_overlay_offers(request: HttpRequest, run: Run, overlays: Sequence[Run]) -> list[tuple[Run, str, str, bool]]:
    """[(run, link, `runs` of the link, whether it is overlaid)]: the overlays, then recently updated runs, those of the
    same project first. The link adds or removes the run; it is empty if there are too many overlays."""
    visible = permissions.visible_runs(request).filter(archived_at=None).exclude(pk=run.pk).select_related("project")
    runs = list(visible.order_by("-seen_at").defer("config", "facts")[: 2 * MAX_OFFERED_RUNS])
    runs.sort(key=lambda other: (other not in overlays, other.project_id != run.project_id))
    offers = []
    for other in runs[:MAX_OFFERED_RUNS]:
        on = other in overlays
        changed = [overlay for overlay in overlays if overlay != other] if on else [*overlays, other]
        link = build_overlay_link(request, changed) if len(changed) <= MAX_OVERLAYS else ""
        offers.append((other, link, ",".join(each.uid for each in changed), on))
    return offers
