"""The live feed: the newest steps of all runs that the user may see, a card for each step."""

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Max, QuerySet, Sum
from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    build_sample_rows,
    clean_param,
    load_blind_queues,
    parse_integer_param,
    render_page_or_panel,
)
from dashboard.pages.step import REWARD_BINS
from rolloutdeck.protocol import SPLITS
from rollouts.live import load_feed
from rollouts.models import Run

PANELS = {"arrivals": "live/arrivals.html"}
MAX_CARDS = 30
GRADES = tuple(grade for _, grade, *_ in REWARD_BINS)


@login_required
@require_safe
def live_page(request: HttpRequest) -> HttpResponseBase:
    """`?split=`, `?project=` and `?name=` filter; `?before=` is the id of a step, for older ones."""
    visible = permissions.visible_runs(request)
    runs = visible.aggregate(Max("seen_at"), Sum("version"), Count("pk"))
    projects = list(permissions.visible_projects(request).order_by("slug").values_list("slug", flat=True))
    return render_page_or_panel(
        request,
        "live/page.html",
        PANELS,
        lambda panel: build_live_context(request, visible),
        *(*runs.values(), projects, load_blind_queues(request).queues),
    )


def build_live_context(request: HttpRequest, visible: QuerySet[Run]) -> dict[str, Any]:
    params = {name: clean_param(request.GET.get(name, "")) for name in ("split", "project", "name", "before")}
    params["split"] = params["split"] if params["split"] in SPLITS else ""
    runs = visible.filter(project__slug=params["project"]) if params["project"] else visible
    runs = runs.filter(name__icontains=params["name"]) if params["name"] else runs
    before = parse_integer_param(params["before"])
    items = load_feed(runs, split=params["split"], before=before, limit=MAX_CARDS + 1)
    blind = load_blind_queues(request)
    cards = [
        {
            "item": item,
            "bins": build_histogram_bars(item.totals.histogram),
            "worst": build_sample_rows(item.worst, blind),
        }
        for item in items[:MAX_CARDS]
    ]
    return {
        "cards": cards, "params": params, "projects": list(permissions.visible_projects(request).order_by("slug")),
        "filtered": any(params[name] for name in ("split", "project", "name")), "older_than": before is not None,
        "older": build_feed_link(params, before=str(items[MAX_CARDS - 1].step.pk)) if len(items) > MAX_CARDS else "",
        "newest": build_feed_link(params, before=""),
        "splits": [(split, build_feed_link(params, split=split, before="")) for split in ("", *SPLITS)],
    }  # fmt: skip


def build_feed_link(params: dict[str, str], **changes: str) -> str:
    return "?" + urlencode({name: value for name, value in {**params, **changes}.items() if value})


def build_histogram_bars(histogram: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars of the scores of a step; x, width and height in percent."""
    counts = histogram.get("counts", [])
    if len(counts) < 2:
        return []
    labels, width, highest = histogram["labels"], 100 / len(counts), max(counts) or 1
    grades = GRADES if len(counts) == len(GRADES) else ("plain",) * len(counts)
    bars = []
    for at, (count, label, grade) in enumerate(zip(counts, labels, grades, strict=True)):
        height = round(max(100 * count / highest, 6 if count else 0), 1)  # a few of many samples stay visible
        bars.append({
            "x": round(at * width, 2), "width": round(width * 0.86, 2), "height": height,
            "y": 100 - height, "grade": grade, "title": f"{label}: {count:,}",
        })  # fmt: skip
    return bars
