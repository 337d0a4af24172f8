"""Bindings: which revision of a plan a run replays. It can change until the run has begun."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from rollouts.live import notify_run_changed
from rollouts.models import Binding, Revision, Run
from rollouts.pins import merge_facts
from rollouts.replay.loading_trainers import check_selected_action
from rollouts.replay.plans import find_revision


@transaction.atomic
def bind_run(run: Run, ref: str = "", facts: Mapping[str, Any] | None = None) -> Binding:
    """Binds the run to the revision `ref`, or to none, and stores the facts that the run reports.

    Once the run has begun, the binding does not change, whatever `ref` is. Raises the errors of `find_revision`, and
    InvalidInputError if a trainer does not support what the plan does with selected samples.
    """
    row = Run.objects.select_for_update(of=("self",), no_key=True).select_related("project").get(pk=run.pk)
    if facts:
        Run.objects.filter(pk=row.pk).update(facts=merge_facts(row.facts, facts))
    binding = find_binding(row)
    if binding and has_begun(row):
        return binding
    revision = find_revision(row.project, ref)
    if revision:  # the files of a pin may have come after the plan was saved
        check_selected_action(revision.on_selected, list(revision.entries.values_list("pin", flat=True)))
    binding, _ = Binding.objects.update_or_create(run=row, defaults={"revision": revision})
    notify_run_changed(row, topics=("pins",))
    return binding


def resolve_run_revision(run: Run, ref: str = "") -> Revision | None:
    """Returns the revision that `bind_run` would bind. Raises the errors of `find_revision`."""
    binding = find_binding(run)
    return binding.revision if binding and has_begun(run) else find_revision(run.project, ref)


def find_binding(run: Run) -> Binding | None:
    return Binding.objects.filter(run=run).select_related("revision__plan__project", "revision__user").first()


def has_begun(run: Run) -> bool:
    """Whether any data shows that the run has trained a step."""
    has_metrics = run.metric_rows.filter(step__gt=0).exists() or run.series.exists()
    has_files = run.artifacts.exclude(role="tokenizer").exists() or run.replays.exists()
    return has_metrics or has_files or run.steps.filter(split="train").exists()
