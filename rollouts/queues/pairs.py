"""Stores which response of each pair of a group a person finds better.

The better response has the label `better-than` with the id of the other one; of equal responses the first one has the
label `equal-to`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels import BETTER_QUESTION, EQUAL_QUESTION, PAIR_QUESTIONS, Answer
from rollouts.models import LabelAction, QueueItem
from rollouts.queues.groups import (
    LEFT,
    OUTCOMES,
    PAIRS_KEY,
    RIGHT,
    SKIP,
    build_pairs,
    format_pair,
    list_group_samples,
    load_own_labels,
    shuffle_for,
)
from rollouts.queues.slots import check_open, complete_item, save_draft

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def store_pairs(
    item: QueueItem, user: User, outcomes: Mapping[str, str], *, seconds: float | None = None
) -> LabelAction:
    """Stores {"2-5": "left"} for each pair of numbers that the person sees, and completes the slot. Raises
    InvalidInputError, SlotTakenError and QueueClosedError. Then the pairs are a draft."""
    try:
        check_open(item.queue)
        return complete_item(item, user, build_pair_answers(item, user, outcomes), seconds)
    except InvalidInputError:
        save_pairs_draft(item, user, outcomes)
        raise


def save_pairs_draft(item: QueueItem, user: User, outcomes: Mapping[str, str]) -> None:
    """Keeps what the user has answered so far, and prolongs the reservation."""
    save_draft(item, user, {PAIRS_KEY: {"value": dict(outcomes)}})


def build_pair_answers(item: QueueItem, user: User, outcomes: Mapping[str, str]) -> list[Answer]:
    """Returns the labels of all responses of the group. What the person said about other pairs of them, in another
    queue, stays. Raises InvalidInputError."""
    shuffled = shuffle_for(user, item, list_group_samples(item))
    samples = [sample.pk for sample in shuffled]
    pairs = build_pairs(item, user, shuffled)
    if unknown := next((key for key in outcomes if key not in {format_pair(*pair) for pair in pairs}), None):
        message = _("This item does not ask about the pair {pair}. Its responses may have changed: load it again.")
        raise InvalidInputError(message.format(pair=str(unknown)[:20]), "pairs")
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    asked = set()
    for left, right in pairs:
        outcome = outcomes.get(format_pair(left, right))
        if outcome not in OUTCOMES:
            message = _("Compare each pair: {known}.")
            raise InvalidInputError(message.format(known=", ".join(OUTCOMES)), format_pair(left, right))
        first, second = samples[left - 1], samples[right - 1]
        asked |= {(first, second), (second, first)}
        if outcome == RIGHT:
            first, second = second, first
        if outcome != SKIP:
            name = BETTER_QUESTION.key if outcome in (LEFT, RIGHT) else EQUAL_QUESTION.key
            named[first, name].append(second)
    if not named:
        raise InvalidInputError(_("Compare at least one pair, or skip the item."), "pairs")
    for label in load_own_labels(samples, user).filter(name__in=PAIR_QUESTIONS):
        named[label.sample, label.name] += [other for other in label.value if (label.sample, other) not in asked]
    return [Answer(sample, name, sorted(named[sample, name]) or None) for sample in samples for name in PAIR_QUESTIONS]
