"""Computes the rows of steps again that an older version indexed, in the background, newest steps first.

Such rows lack the properties that were added since: `Step.properties` is the version of those that a step has. The rows
are built from the bodies, as when the correctness rule changes, so ids, flags and links remain. If only statistics were
added, no body is read.
"""

import logging
from time import monotonic

from django.db import transaction
from django.db.models import Q

from rollouts.errors import RolloutError
from rollouts.indexing.correctness import SEARCH_ENDED_ERRORS, apply_correctness_rule
from rollouts.indexing.reconcile import reconcile_step_again
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.live import notify_run_changed
from rollouts.models import Step, StepQuerySet
from rollouts.samples import PROPERTIES_VERSION, ROWS_VERSION

log = logging.getLogger(__name__)

MAX_SECONDS = 4.0  # of each sweep, so that most of a worker's time remains for new dumps
STEPS_PER_QUERY = 20


def find_outdated_steps() -> StepQuerySet:
    outdated = Q(properties=None) | Q(properties__lt=PROPERTIES_VERSION)
    return Step.objects.filter(outdated, samples__gt=0, dropped=0)  # dropped samples cannot be computed again


def has_outdated_steps() -> bool:
    return find_outdated_steps().exists()


def update_outdated_steps(max_seconds: float = MAX_SECONDS) -> int:
    """Updates outdated steps until the time is over, at least one. Returns their number. Safe to call at any time."""
    started, updated, interrupted = monotonic(), 0, set[int]()
    rows = find_outdated_steps().order_by("-pk").values_list("pk", flat=True)
    while steps := list(rows.exclude(pk__in=interrupted)[:STEPS_PER_QUERY]):
        for step in steps:
            if updated and monotonic() - started > max_seconds:
                return updated
            try:
                update_step(step)
            except SEARCH_ENDED_ERRORS as error:
                log.warning("Step %s is updated later: %s", step, error)
                interrupted.add(step)
            except (RolloutError, ValueError) as error:  # a body that cannot be read stops no other step
                log.warning("The properties of step %s remain unknown: %s", step, error)
                Step.objects.filter(pk=step).update(properties=PROPERTIES_VERSION)
            updated += 1
    return updated


def rebuild_step(step: Step) -> None:
    """Computes rows and statistics of a step from the bodies of its dumps. The caller holds the step's lock.

    Raises StorageUnavailableError if a body is missing.
    """
    reconcile_step_again(step)
    apply_correctness_rule(step)
    recompute_step_stats(step)


@transaction.atomic
def update_step(step_id: int) -> None:
    """Rewrites the rows of a step unless another worker did. Raises StorageUnavailableError."""
    step = Step.objects.select_for_update(no_key=True).filter(pk=step_id).first()
    if step is None or (step.properties or 0) >= PROPERTIES_VERSION:
        return
    if (step.properties or 0) < ROWS_VERSION:
        rebuild_step(step)
    else:
        recompute_step_stats(step)
    Step.objects.filter(pk=step.pk).update(properties=PROPERTIES_VERSION)  # also if no dump has a body
    notify_run_changed(step.run, split=step.split, step=step.step)
