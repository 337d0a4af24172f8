"""Adds the samples of later steps to queues that grow with their runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from django.db import transaction

from rollouts.errors import RolloutError
from rollouts.live import notify_topics
from rollouts.models import Project, Queue, Run
from rollouts.queues.create import find_complete_steps, store_draw
from rollouts.queues.draw import Draw, TooManyItemsError, draw_items, find_candidates
from rollouts.queues.settings import MAX_ITEMS

log = logging.getLogger(__name__)

STEPS_PER_DRAW: Final = 50  # of a queue that grows


def extend_queue(queue: Queue) -> int:
    """Draws from the steps that were completed since the last draw. Returns the number of new items.

    A run that cannot be searched does not stop the others. Raises its error after them.
    """
    if not queue.grows or queue.closed_at or queue.created_by is None:
        return 0
    added, failures = 0, list[RolloutError]()
    for run in queue.runs.filter(deleted_at=None):
        done = set(queue.drawn_steps.filter(step__run=run).values_list("step", flat=True))
        steps = [pk for pk in find_complete_steps(run) if pk not in done]
        try:
            for start in range(0, len(steps), STEPS_PER_DRAW):
                added += extend_by_steps(queue, run, steps[start : start + STEPS_PER_DRAW])
        except RolloutError as error:
            failures.append(error)
    if added:
        notify_topics("queues")
    if failures:
        raise failures[0]
    return added


def extend_by_steps(queue: Queue, run: Run, steps: Sequence[int]) -> int:
    """Draws from these steps as far as the queue has room. The items of a step do not depend on other steps, see
    `check_selection`. A step whose items do not fit is noted as drawn, without items."""
    assert queue.created_by is not None
    room = MAX_ITEMS - queue.items.count()
    try:
        draw = draw_items(queue, {run: steps}, reader=queue.created_by.pk, limit=room, is_growth=True)[run]
    except TooManyItemsError:
        if len(steps) > 1:
            half = len(steps) // 2
            return sum(extend_by_steps(queue, run, part) for part in (steps[:half], steps[half:]))
        candidates = find_candidates(queue, run, queue.created_by.pk, frozenset(steps), is_growth=True)
        matched = sum(1 for _candidate in candidates)
        draw = Draw(by_step=Counter({steps[0]: matched}))
    draw.by_step.update(dict.fromkeys(steps, 0))  # also steps without a match are done
    with transaction.atomic():
        Project.objects.lock(queue.project)
        locked = Queue.objects.select_for_update(no_key=True).get(pk=queue.pk)
        if locked.drawn_steps.filter(step__in=steps).exists():  # another worker has drawn from them
            return 0
        return store_draw(queue, run, draw, {})


def count_steps_without_room(queue: Queue) -> int:
    """Returns how many later steps have no items, because they did not fit into the queue."""
    room = MAX_ITEMS - queue.items.count()
    return queue.drawn_steps.filter(drawn=0, matched__gt=room).count() if queue.grows else 0


def has_growing_queues() -> bool:
    return Queue.objects.open().filter(grows=True).exists()


def extend_growing_queues() -> int:
    """Extends every open queue that grows. Returns the number of new items. A queue whose query fails is left out."""
    added = 0
    for queue in Queue.objects.open().filter(grows=True).select_related("project", "created_by"):
        try:
            added += extend_queue(queue)
        except RolloutError as error:
            log.warning("The review queue %s was not extended: %s", queue.pk, error)
    return added
