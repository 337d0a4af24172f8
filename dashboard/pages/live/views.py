"""What arrives, newest first, over all runs that a person may see: a card for each step."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Max, QuerySet, Sum
from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import build_sample_rows, clean_param, parse_integer_param, render_page_or_panel
from dashboard.pages.step import REWARD_BINS
from rolloutdeck.protocol import SPLITS
from rollouts.live import FeedItem, load_feed
from rollouts.models import Run, Step

PANELS = {"arrivals": "live/arrivals.html"}
MAX_CARDS = 30
GRADES = tuple(grade for _, grade, *_ in REWARD_BINS)


@login_required
@require_safe
def live_page(request: HttpRequest) -> HttpResponseBase:
    """`?split=`, `?project=` and `?name=` narrow; `?before=` a step's id goes on to older ones."""
    seen = permissions.visible_runs(request)
    state = seen.aggregate(Max("seen_at"), Sum("version"), Count("pk"))
    return render_page_or_panel(
        request, "live/page.html", PANELS, lambda panel: build_live_context(request, seen), *state.values()
    )


def build_live_context(request: HttpRequest, seen: QuerySet[Run]) -> dict[str, Any]:
    given = {name: clean_param(request.GET.get(name, "")) for name in ("split", "project", "name", "before")}
    asked = {**given, "split": given["split"] if given["split"] in SPLITS else ""}
    runs = seen.filter(project__slug=asked["project"]) if asked["project"] else seen
    runs = runs.filter(name__icontains=asked["name"]) if asked["name"] else runs
    before = parse_integer_param(asked["before"])
    found = load_feed(runs, split=asked["split"], before=before, most=MAX_CARDS + 1)
    cards = [build_step_card(one) for one in found[:MAX_CARDS]]
    return {
        "cards": cards, "asked": asked, "projects": list(permissions.visible_projects(request).order_by("slug")),
        "narrowed": any(asked[name] for name in ("split", "project", "name")), "older_than": before is not None,
        "older": build_feed_link(asked, before=str(found[MAX_CARDS - 1].step.pk)) if len(found) > MAX_CARDS else "",
        "newest": build_feed_link(asked, before=""),
        "splits": [(one, build_feed_link(asked, split=one, before="")) for one in ("", *SPLITS)],
    }  # fmt: skip


def build_feed_link(asked: dict[str, str], **changes: str) -> str:
    return "?" + urlencode({name: value for name, value in {**asked, **changes}.items() if value})


def build_step_card(one: FeedItem) -> dict[str, Any]:
    return {
        "one": one,
        "step": one.step,
        "bins": build_histogram_bars(one.step),
        "worst": build_sample_rows(one.worst),
    }


def build_histogram_bars(step: Step) -> list[dict[str, Any]]:
    """The step's histogram of scores as bars, x and height in per cent."""
    counts = step.histogram.get("counts", [])
    if len(counts) < 2:
        return []
    labels, width, most = step.histogram["labels"], 100 / len(counts), max(counts) or 1
    grades = GRADES if len(counts) == len(GRADES) else ("plain",) * len(counts)
    return [
        {
            "x": round(at * width, 2), "width": round(width * 0.86, 2), "height": compute_bar_height(count, most),
            "y": 100 - compute_bar_height(count, most), "grade": grade, "title": f"{label}: {count:,}",
        }
        for at, (count, label, grade) in enumerate(zip(counts, labels, grades, strict=True))
    ]  # fmt: skip


def compute_bar_height(count: int, most: int) -> float:
    """A few samples of many are still seen."""
    return round(max(100 * count / most, 6 if count else 0), 1)
