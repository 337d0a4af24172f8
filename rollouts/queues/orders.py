"""The order in which a person puts the responses of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels import RANK_QUESTION, Answer
from rollouts.models import QueueItem
from rollouts.queues.groups import ORDER_KEY, list_group_samples
from rollouts.queues.slots import check_open, complete_item, save_draft

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.models import LabelAction


def store_order(
    item: QueueItem, user: User, order: Sequence[Sequence[str]], *, rationale: str = "", seconds: float | None = None
) -> LabelAction:
    """Stores the order of the responses of a group: best first, each place a list of samples of equal quality. It is
    one label `rank` per response, from 1; equal ones have an equal rank. Raises InvalidInputError, SlotTakenError and
    QueueClosedError. Then the order is a draft."""
    try:
        check_open(item.queue)
        return complete_item(item, user, build_ranks(item, order, rationale), seconds)
    except InvalidInputError:
        save_order_draft(item, user, order, rationale)
        raise


def build_ranks(item: QueueItem, order: Sequence[Sequence[str]], rationale: str) -> list[Answer]:
    members = list_group_samples(item)
    ordered = [sample for place in order for sample in place]
    if sorted(ordered) != sorted(sample.pk for sample in members):
        raise InvalidInputError(_("The order must contain each response of the group once."), "order")
    rows, rank = [], 1
    for place in order:
        rows += [Answer(sample, RANK_QUESTION.key, rank, rationale=rationale if rank == 1 else "") for sample in place]
        rank += len(place)
    return rows


def save_order_draft(item: QueueItem, user: User, order: Sequence[Sequence[str]], rationale: str = "") -> None:
    """Keeps the places that the user has given so far, and prolongs the reservation."""
    members = {sample.pk for sample in list_group_samples(item)}
    known = [[sample for sample in place if sample in members] for place in order]
    save_draft(item, user, {ORDER_KEY: {"value": [place for place in known if place], "rationale": rationale}})
