"""Agreement of people on the orders or pairs of a queue of groups."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from dashboard.pages.common import GroupLinks, StepUrlState
from rollouts import queues
from rollouts.agreement import Compared, Estimate, OrderAgreement
from rollouts.models import Queue, Sample

MAX_LISTED = 100  # groups
MAX_PEOPLE_PAIRS = 20
SIGNS = {"left": ">", "right": "<", "equal": "=", "skip": "?"}
FLIPPED = {"left": "<", "right": ">", "equal": "=", "skip": "?"}


@dataclass(frozen=True, slots=True)
class OrderMeasureLine:
    title: str
    note: str
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class GroupLine:
    """`said`: people with their orders, or their answers to the pairs. Responses have their numbers on the group
    page."""

    sample: Sample | None
    link: str
    compared: Compared
    said: list[tuple[str, str]]

    @property
    def same(self) -> Estimate:
        return Estimate(self.compared.same)


def build_orders_context(queue: Queue, measured: queues.QueueAgreement, orders: OrderAgreement) -> dict[str, Any]:
    tau = _("from −1, the opposite, over 0, chance, to 1")
    same = _("share of pairs, each group counts the same")
    lines = [
        OrderMeasureLine(_("Same answer about two responses"), same, orders.percent),
        OrderMeasureLine(_("Kendall’s tau-b"), tau, orders.tau),
    ]
    different = [(pk, compared) for pk, compared in orders.by_item.items() if compared.same < 1]
    shown = [(measured.groups[int(str(pk))], compared) for pk, compared in different[:MAX_LISTED]]
    samples = Sample.objects.in_bulk([entry.item.sample for entry, _compared in shown])
    links = {entry.item.run: GroupLinks(entry.item.run, StepUrlState()) for entry, _compared in shown}
    return {
        "tab": "review",
        "queue": queue,
        "measured": measured,
        "lines": lines,
        "people_pairs": orders.pairs[:MAX_PEOPLE_PAIRS],
        "groups": [
            GroupLine(
                samples.get(entry.item.sample),
                links[entry.item.run].build_link(entry.item.step, entry.item.group),
                compared,
                describe_group_answers(entry),
            )
            for entry, compared in shown
        ],
        "more": len(different) - len(shown),
    }


def describe_group_answers(entry: queues.GroupAnswers) -> list[tuple[str, str]]:
    numbers = {sample: number for number, sample in enumerate(entry.samples, 1)}
    said = []
    for person in entry.people:
        if person in entry.orders:
            places = [" = ".join(str(numbers[sample]) for sample in place) for place in entry.orders[person]]
            said.append((person, " > ".join(places)))
            continue
        pairs = sorted((numbers[pair.left], numbers[pair.right], pair.better) for pair in entry.pairs[person])
        lines = sorted(
            (left, SIGNS[better], right) if left < right else (right, FLIPPED[better], left)
            for left, right, better in pairs
        )
        said.append((person, ", ".join(f"{first} {sign} {second}" for first, sign, second in lines)))
    return said
