"""What people said about the groups of a queue: their orders, or the better response of each pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from rollouts.agreement import PairSigns, build_order_signs
from rollouts.labels import BETTER_QUESTION, EQUAL_QUESTION, RANK_QUESTION
from rollouts.models import Label, Queue, QueueItem, Sample
from rollouts.queues.groups import EQUAL, LEFT, RIGHT, SKIP, draw_pairs, place_pair, read_pair_labels

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ITEMS_PER_QUERY: Final = 200


class JudgedPair(NamedTuple):
    """Two responses as the person saw them, and which one is better: left, right, equal or skip."""

    left: str
    right: str
    better: str


@dataclass(slots=True)
class GroupAnswers:
    """`samples` are the responses in the order of the group page. By author: `orders`, best first, or `pairs`."""

    item: QueueItem
    samples: list[str]
    orders: dict[str, list[list[str]]] = field(default_factory=dict)
    pairs: dict[str, list[JudgedPair]] = field(default_factory=dict)

    @property
    def people(self) -> list[str]:
        return sorted(self.orders or self.pairs)

    def list_signs(self) -> list[PairSigns]:
        signs = [PairSigns(self.item.pk, author, build_order_signs(order)) for author, order in self.orders.items()]
        for author, pairs in self.pairs.items():
            values = {LEFT: 1, RIGHT: -1, EQUAL: 0}
            said = {
                (min(pair[:2]), max(pair[:2])): values[pair.better] * (1 if pair.left < pair.right else -1)
                for pair in pairs
                if pair.better != SKIP
            }
            signs.append(PairSigns(self.item.pk, author, said))
        return signs


def load_group_answers(queue: Queue, chosen: Sequence[QueueItem] | None = None) -> list[GroupAnswers]:
    """Returns the completed answers of a queue of groups, in its order; with `chosen`, those of these items. People
    whose labels were withdrawn are left out."""
    people: dict[int, list[User]] = defaultdict(list)
    slots = queue.slots if chosen is None else queue.slots.filter(item__in=chosen)
    for slot in slots.exclude(done_at=None).exclude(user=None).select_related("user"):
        if slot.user is not None:
            people[slot.item_id].append(slot.user)
    items = list(queue.items.filter(pk__in=list(people)).select_related("step", "run").order_by("position"))
    members = load_members(items)
    names = (BETTER_QUESTION.key, EQUAL_QUESTION.key) if queue.asks_pairs else (RANK_QUESTION.key,)
    labels: dict[tuple[str, str], list[Label]] = defaultdict(list)
    rows = Label.objects.active().filter(run__in=queue.runs.all(), name__in=names, source="human")
    if chosen is not None:
        rows = rows.filter(sample__among=[sample for samples in members.values() for sample in samples])
    for label in rows.only("sample", "name", "author", "value", "number"):
        labels[label.sample, label.author].append(label)
    found = []
    for item in items:
        item.queue = queue
        answers = GroupAnswers(item, members[item.step_id, item.group])
        for user in people[item.pk]:
            author = user.get_username()
            own = [label for sample in answers.samples for label in labels[sample, author]]
            if own and queue.asks_pairs:
                answers.pairs[author] = judge_pairs(item, user, answers.samples, own)
            elif own:
                answers.orders[author] = build_order(own)
        found.append(answers)
    return found


def load_members(items: Sequence[QueueItem]) -> dict[tuple[int, str], list[str]]:
    """{(step id, group): samples in the trainer's order} of the groups of the items. Reads no other groups: a step may
    have thousands."""
    members: dict[tuple[int, str], list[str]] = {(item.step_id, item.group): [] for item in items}
    for start in range(0, len(items), ITEMS_PER_QUERY):
        part = items[start : start + ITEMS_PER_QUERY]
        rows = Sample.objects.visible().filter(step__in={item.step_id for item in part}, final=True)
        rows = rows.filter(group__in={item.group for item in part}).order_by("index", "pk")
        asked = {(item.step_id, item.group) for item in part}
        for pk, step, group in rows.values_list("pk", "step", "group"):
            if (step, group) in asked:
                members[step, group].append(pk)
    return members


def build_order(labels: list[Label]) -> list[list[str]]:
    ranked = sorted((label.number or 0.0, label.sample) for label in labels)
    return [[sample for _rank, sample in place] for _rank, place in groupby(ranked, key=lambda row: row[0])]


def judge_pairs(item: QueueItem, user: User, samples: list[str], labels: list[Label]) -> list[JudgedPair]:
    """Returns the pairs that the item asks for."""
    names = {1: LEFT, -1: RIGHT, 0: EQUAL, None: SKIP}
    signs = read_pair_labels(labels)
    pairs = [place_pair(item, user, pair) for pair in draw_pairs(item, samples, item.queue.pairs_per_group or 0)]
    return [JudgedPair(*pair, names[signs.get(pair)]) for pair in pairs]
