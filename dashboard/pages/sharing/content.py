"""What a shared link shows: a page without scripts and without links, rendered once, when the link is created.

It has no names of members, projects or other runs, and no text of a comparison's samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, QueryDict
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages import common, findings
from dashboard.pages.compare import build_shareable_context
from dashboard.pages.findings import PresentedItem, build_evidence_items
from rollouts.charts import load_arrangement
from rollouts.errors import InvalidInputError
from rollouts.findings import QUERY_PREFIX, snapshot_charts
from rollouts.lib import parse_integer
from rollouts.metrics import list_metric_names
from rollouts.models import EvidenceItem, Project, Run, SharedLink
from rollouts.runs import RunGroup, find_run_group

# Nothing in the page may run, load anything or send anything.
PAGE_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
META_POLICY = PAGE_POLICY.replace(" frame-ancestors 'none'; sandbox", "")  # not allowed in a meta element
MAX_OVERLAYS, MAX_GROUPS = 7, 4  # as on the overview
Kind = SharedLink.Kind


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What a URL asks to share: `params` are the parameters that identify it; `back` is its page. `choices` are the
    (name, title) of charts, if none is chosen yet."""

    kind: str
    project: Project
    title: str
    params: tuple[tuple[str, str], ...]
    back: str
    template: str = ""
    context: dict[str, Any] | None = None
    choices: tuple[tuple[str, str], ...] = ()


def find_shared_object(request: HttpRequest, params: QueryDict) -> SharedObject:
    """Raises Http404 if the user may not see it, InvalidInputError if it cannot be shared."""
    if params.get("finding"):
        return find_shared_finding(request, params)
    if params.get("of"):
        return find_shared_comparison(request, params)
    if params.get("run"):
        return find_shared_charts(request, params)
    raise InvalidInputError(_("Choose what to share: a finding, a comparison or a chart."), "finding")


def find_shared_finding(request: HttpRequest, params: QueryDict) -> SharedObject:
    pk = parse_integer(params.get("finding"), "finding") or 0
    finding = permissions.finding_or_404(request, pk)
    if finding.removed_at:
        raise Http404(_("This finding was removed. Restore it first."))
    context = {
        "finding": finding,
        "note": common.render_note(finding.note, has_links=False),
        "items": build_evidence_items(finding, embedded=True),
    }
    identity = (("finding", str(finding.pk)),)
    back = reverse("finding", args=[finding.pk])
    return SharedObject(Kind.FINDING, finding.project, finding.title, identity, back, "sharing/finding.html", context)


def find_shared_comparison(request: HttpRequest, params: QueryDict) -> SharedObject:
    targets, context, query = build_shareable_context(request, params)
    projects = {target.run.project for target in targets}
    if len(projects) > 1:
        raise InvalidInputError(_("Only a comparison of runs of one project can be shared."), "of")
    title = ", ".join(f"{target.run.name}@{target.step.step}" for target in targets)
    identity = tuple((name, value) for name in ("of", "split", "as", "by") if (value := params.get(name, "")))
    back = reverse("compare") + query
    return SharedObject(Kind.COMPARISON, projects.pop(), title, identity, back, "sharing/comparison.html", context)


def find_shared_charts(request: HttpRequest, params: QueryDict) -> SharedObject:
    """`metric` is the name of a chart, once for each; `runs` and `groups` are drawn too. `log=1` and `zoom=10..40`."""
    run = permissions.run_or_404(request, params.get("run", ""))
    names, back = list(dict.fromkeys(filter(None, params.getlist("metric")))), reverse("run", args=[run.uid])
    kept = [(name, value) for name in ("runs", "groups", "log", "zoom") if (value := params.get(name, ""))]
    identity = (("run", run.uid), *(("metric", name) for name in names), *kept)
    if not names:
        return SharedObject(Kind.CHART, run.project, run.name, identity, back, choices=tuple(list_choices(run)))
    known = set(list_metric_names(run))
    for name in names:
        if name not in known and not name.startswith(QUERY_PREFIX):
            message = _("{run} has no metric {name}.")
            raise InvalidInputError(message.format(run=run.name, name=repr(name[:80])), "metric")
    groups = find_groups(request, run, params.get("groups", ""))
    grouped = any(run in group.runs for group in groups)  # then it is drawn as a part of the group
    runs = [*([] if grouped else [run]), *find_runs(request, run, params.get("runs", ""))]
    sources = [*(each.name for each in runs), *(group.name for group in groups)]
    title = f"{', '.join(sources)} · {', '.join(map(findings.describe_chart, names))}"
    zoom, log = parse_zoom(params.get("zoom", "")), params.get("log") == "1"
    context = {"item": build_chart_item(runs, names, groups=groups, log=log, zoom=zoom), "zoom": zoom, "log": log}
    return SharedObject(Kind.CHART, run.project, title, identity, back, "sharing/chart.html", context)


def list_choices(run: Run) -> Iterator[tuple[str, str]]:
    """The charts that can be shared: those of queries that the project keeps, and the metrics."""
    queries = [f"{QUERY_PREFIX}{text}" for text in load_arrangement(run.project).queries]
    for name in (*sorted(list_metric_names(run)), *queries):
        yield name, findings.describe_chart(name)


def find_runs(request: HttpRequest, run: Run, uids: str) -> list[Run]:
    """The other runs. Raises Http404, InvalidInputError for a run of another project: its owners did not agree."""
    others = [
        permissions.run_or_404(request, uid) for uid in dict.fromkeys(uids.split(",")) if uid not in ("", run.uid)
    ]
    if any(other.project_id != run.project_id for other in others):
        raise InvalidInputError(_("Only a chart of runs of one project can be shared."), "runs")
    return others


def find_groups(request: HttpRequest, run: Run, keys: str) -> list[RunGroup]:
    visible = permissions.visible_runs(request)
    found = [
        find_run_group(key, run, visible) for key in list(dict.fromkeys(filter(None, keys.split(","))))[:MAX_GROUPS]
    ]
    return [group for group in found if group]


def parse_zoom(text: str) -> tuple[float, float] | None:
    """A range of steps, `12..40`; None for all steps. Raises InvalidInputError."""
    if not text:
        return None
    try:
        low, high = map(float, text.split(".."))
    except ValueError:
        low = high = math.nan
    if not low < high or math.isinf(high - low):
        raise InvalidInputError(_("`zoom` is a range of steps, for example 10..40."), "zoom")
    return low, high


def build_chart_item(runs: Sequence[Run], names: Sequence[str], **view: Any) -> PresentedItem:
    snapshot = json.loads(json.dumps(snapshot_charts(runs, names, "current", **view)))
    row = EvidenceItem(kind=EvidenceItem.Kind.CHART, created_at=timezone.now())
    return PresentedItem(row, snapshot, "", True, True, embedded=True)


def render_shared_page(shared: SharedObject) -> str:
    frame = {
        "title": shared.title,
        "policy": META_POLICY,
        "created_at": timezone.now(),
        "language": get_language(),
        "shared": True,
        "file": True,
    }
    return render_to_string(shared.template, {**(shared.context or {}), **frame})


def render_not_found_page() -> str:
    return render_to_string("sharing/not_found.html", {"policy": META_POLICY})
