"""The page of the context: `?against=` another run, `show=differs|attempts|all`, `q=` search in keys and values."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.context import config_table, versions
from rollouts.models import AttemptContext, Run, RunDiskUsage
from rollouts.projects import list_audit_entries
from rollouts.runs import dump_overrides, dump_yaml, load_config_keys

PANELS = {"strip": "common/strip.html", "alive": "common/last_update.html", "config": "context/config.html"}
MAX_OFFERED_RUNS = 100
MAX_AUDIT_ENTRIES = 8


@login_required
@require_safe
def context_page(request: HttpRequest, uid: str) -> HttpResponseBase:
    """What exactly was run, what differs from another run, and what changed at a restart."""
    run = permissions.run_or_404(request, uid)
    return common.render_page_or_panel(
        request, "context/page.html", PANELS, lambda panel: build_context(request, run, panel)
    )


def build_context(request: HttpRequest, run: Run, panel: str) -> dict[str, Any]:
    split = common.find_default_split(run)
    context: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": common.StepUrlState(), "split": split,
        "strip": common.load_step_strip(run, split), "current": None, "tab": "overview", "view": "context",
        "status": run.status,
    }  # fmt: skip
    if panel in {"strip", "alive"}:
        return context
    against = common.clean_param(request.GET.get("against", ""))
    other = permissions.visible_runs(request).filter(uid=against).exclude(pk=run.pk).first() if against else None
    context |= build_config_context(request, run, other)
    return context if panel else context | build_facts_context(request, run, other)


def build_config_context(request: HttpRequest, run: Run, other: Run | None) -> dict[str, Any]:
    keys = load_config_keys(run, other)
    counts = {
        "differs": sum(key.differs for key in keys),
        "attempts": sum(bool(key.changes) for key in keys),
        "all": len(keys),
    }
    show, words = request.GET.get("show", ""), common.clean_param(request.GET.get("q", "")).strip()
    shown = show if show in config_table.SHOW_VALUES else "all"
    groups, omitted = config_table.build_groups(
        keys, show=shown, words=words, fold=bool(counts["differs"] or counts["attempts"])
    )
    return {
        "other": other, "groups": groups, "omitted": omitted, "counts": counts, "show": shown, "words": words,
        "has_attempts": counts["attempts"] > 0, "has_config": bool(keys),
        "columns": 2 + (other is not None) + (counts["attempts"] > 0),
    }  # fmt: skip


def build_facts_context(request: HttpRequest, run: Run, other: Run | None) -> dict[str, Any]:
    """The right column."""
    contexts = versions.load_contexts(run)
    facts = contexts[0].facts if contexts else {}
    other_contexts = versions.load_contexts(other) if other else []
    other_facts = other_contexts[0].facts if other_contexts else {}
    role = run.project.role_of(request.user)
    offered = permissions.visible_runs(request).filter(project=run.project).exclude(pk=run.pk)
    patch = AttemptContext.objects.filter(pk=contexts[0].pk).values_list("patch", flat=True).first() if contexts else ""
    return {
        "offered": offered.order_by("-seen_at").values_list("uid", "name")[:MAX_OFFERED_RUNS],
        "facts": facts,
        "command": versions.format_command(facts.get("command", [])),
        "patch": patch,
        "version_rows": versions.build_version_rows(facts, other_facts),
        "package_rows": versions.build_package_rows(facts, other_facts),
        "earlier": contexts[1:],
        "attempt_number": contexts[0].attempt.number if contexts else None,
        "usage": build_usage_rows(run),
        "usage_total": sum(size for _kind, _name, size, _share in build_usage_rows(run)),
        "audit": build_audit_entries(run, role),
    }


def build_usage_rows(run: Run) -> list[tuple[str, str, int, float]]:
    """[(kind, name, bytes, percent)]; empty until the run is measured."""
    usage = RunDiskUsage.objects.filter(run=run).first()
    if usage is None:
        return []
    total = usage.total or 1
    sizes = [(kind, name, getattr(usage, kind)) for kind, name in common.list_disk_kinds()]
    return [(kind, name, size, 100 * size / total) for kind, name, size in sizes if size]


def build_audit_entries(run: Run, role: str) -> list[tuple[Any, tuple[str, str, str]]]:
    """The newest entries about the run, for owners."""
    if not permissions.role_allows(role, "owner"):
        return []
    entries = list_audit_entries(run.project, run=run)[:MAX_AUDIT_ENTRIES]
    return [(entry, common.describe_audit_entry(entry)) for entry in entries]


@login_required
@require_safe
def config_yaml_view(request: HttpRequest, uid: str) -> HttpResponse:
    run = permissions.run_or_404(request, uid)
    return respond_text(dump_yaml(run.config))


@login_required
@require_safe
def config_overrides_view(request: HttpRequest, uid: str) -> HttpResponse:
    """`key=value` lines for a command."""
    run = permissions.run_or_404(request, uid)
    return respond_text(dump_overrides(run.config))


def respond_text(text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n" if text else "", content_type="text/plain; charset=utf-8")
