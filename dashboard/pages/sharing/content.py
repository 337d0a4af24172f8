"""What a shared link shows: a page without scripts and without links, rendered once, when the link is created.

It has no names of members, projects or other runs, and no text of a comparison's samples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, QueryDict
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.compare import build_shareable_context
from dashboard.pages.findings import PresentedItem, build_evidence_items
from rollouts.errors import InvalidInputError
from rollouts.findings import snapshot_charts
from rollouts.lib import parse_integer
from rollouts.metrics import list_metric_names
from rollouts.models import EvidenceItem, Finding, Project, Run, SharedLink

# Nothing in the page may run, load anything or send anything.
PAGE_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
Kind = SharedLink.Kind


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What a URL asks to share: `params` identify it; `back` is its page. `choices` are metrics, if no chart is chosen
    yet."""

    kind: str
    project: Project
    title: str
    params: dict[str, str]
    back: str
    template: str = ""
    context: dict[str, Any] | None = None
    choices: tuple[str, ...] = ()


def find_shared_object(request: HttpRequest, params: QueryDict) -> SharedObject:
    """Raises Http404 if the user may not see it, InvalidInputError if it cannot be shared."""
    if params.get("finding"):
        return describe_finding(request, params)
    if params.get("of"):
        return describe_comparison(request, params)
    if params.get("run"):
        return describe_chart(request, params)
    raise InvalidInputError(_("Choose what to share: a finding, a comparison or a chart."), "finding")


def describe_finding(request: HttpRequest, params: QueryDict) -> SharedObject:
    pk = parse_integer(params.get("finding"), "finding") or 0
    findings = Finding.objects.active().filter(project__in=permissions.visible_projects(request))
    finding: Finding | None = findings.select_related("project").filter(pk=pk).first() if 0 < pk < 2**63 else None
    if finding is None:
        raise Http404(_("Finding not found, or you have no access to it."))
    context = {
        "finding": finding,
        "note": common.render_markdown(finding.note),
        "items": build_evidence_items(finding, embedded=True),
    }
    identity = {"finding": str(finding.pk)}
    back = reverse("finding", args=[finding.pk])
    return SharedObject(Kind.FINDING, finding.project, finding.title, identity, back, "sharing/finding.html", context)


def describe_comparison(request: HttpRequest, params: QueryDict) -> SharedObject:
    targets, context, query = build_shareable_context(request, params)
    projects = {target.run.project for target in targets}
    if len(projects) > 1:
        raise InvalidInputError(_("Only a comparison of runs of one project can be shared."), "of")
    title = ", ".join(f"{target.run.name}@{target.step.step}" for target in targets)
    identity = {name: value for name in ("of", "split", "as", "by") if (value := params.get(name, ""))}
    back = reverse("compare") + query
    return SharedObject(Kind.COMPARISON, projects.pop(), title, identity, back, "sharing/comparison.html", context)


def describe_chart(request: HttpRequest, params: QueryDict) -> SharedObject:
    run = permissions.run_or_404(request, params.get("run", ""))
    names, back = sorted(list_metric_names(run)), reverse("run", args=[run.uid])
    name = params.get("metric", "")
    if name not in names:
        if name:
            raise InvalidInputError(
                _("{run} has no metric {name}.").format(run=run.name, name=repr(name[:80])), "metric"
            )
        return SharedObject(Kind.CHART, run.project, run.name, {"run": run.uid}, back, choices=tuple(names))
    title = f"{run.name} · {name}"
    context = {"item": build_chart_item(run, name)}
    identity = {"run": run.uid, "metric": name}
    return SharedObject(Kind.CHART, run.project, title, identity, back, "sharing/chart.html", context)


def build_chart_item(run: Run, name: str) -> PresentedItem:
    snapshot = json.loads(json.dumps(snapshot_charts([run], [name], "current")))
    row = EvidenceItem(kind=EvidenceItem.Kind.CHART, created_at=timezone.now())
    return PresentedItem(row, snapshot, "", True, True, embedded=True)


def render_shared_page(shared: SharedObject) -> str:
    frame = {
        "title": shared.title,
        "policy": PAGE_POLICY.replace(" frame-ancestors 'none'; sandbox", ""),  # not allowed in a meta element
        "created_at": timezone.now(),
        "language": get_language(),
        "shared": True,
        "file": True,
    }
    return render_to_string(shared.template, {**(shared.context or {}), **frame})
