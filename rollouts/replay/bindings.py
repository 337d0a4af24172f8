"""Bindings: which revision of a plan a run replays. It is chosen until the run begins and then stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from rollouts.live import notify_run_changed
from rollouts.models import Binding, Revision, Run
from rollouts.pins import merge_facts
from rollouts.replay.plans import find_revision


@transaction.atomic
def bind_run(run: Run, ref: str = "", facts: Mapping[str, Any] | None = None) -> Binding:
    """Binds the run to the revision that `ref` means, or to none; `facts` are what it says of itself.

    Once the run has begun, its binding stays for all its attempts, whatever it asks for. Raises as `of_ref`.
    """
    row = Run.objects.select_for_update(of=("self",), no_key=True).select_related("project").get(pk=run.pk)
    if facts:
        Run.objects.filter(pk=row.pk).update(facts=merge_facts(row.facts, facts))
    bound = Binding.objects.filter(run=row).select_related("revision__plan__project", "revision__user").first()
    if bound and has_begun(row):
        return bound
    revision = find_revision(row.project, ref)
    bound, created = Binding.objects.update_or_create(run=row, defaults={"revision": revision})
    notify_run_changed(row, topics=("pins",))
    return bound


def resolve_run_revision(run: Run, ref: str = "") -> Revision | None:
    """The revision that the run would replay if it asked for `ref` now. Raises as `of_ref`."""
    bound = Binding.objects.filter(run=run).select_related("revision__plan__project", "revision__user").first()
    return bound.revision if bound and has_begun(run) else find_revision(run.project, ref)


def has_begun(run: Run) -> bool:
    """Whether the run has trained a step, as far as anything tells."""
    points = run.metric_rows.filter(step__gt=0).exists() or run.series.exists()
    told = run.artifacts.exclude(role="tokenizer").exists() or run.replays.exists()
    return points or told or run.steps.filter(split="train").exists()
