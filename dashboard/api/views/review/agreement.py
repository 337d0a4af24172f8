"""Agreement of people on the answers to a review queue."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from rollouts import queues
from rollouts.agreement import Accuracy, Estimate


class QueueAgreement(ApiView):
    """Agreement on a queue."""

    def get(self, request: Request, pk: int) -> Response:
        """For each question percent agreement, Krippendorff's alpha, Fleiss' and Cohen's kappa with 95 % intervals, the
        items on which people differ, and how each person does on known items; for leads. A queue of groups has
        `orders` instead: the share of pairs with the same answer, and Kendall's tau-b."""
        self.parse_query()
        queue = permissions.queue_or_404(request, pk)
        permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
        measured = queues.measure_queue_agreement(queue)
        differing = measured.list_differing()
        return Response(
            {
                "items": measured.items,
                "items_shared": measured.shared,
                **({"orders": serialize_orders(measured)} if measured.orders else {}),
                "questions": [serialize_question(row) for row in measured.questions],
                "differing": [
                    {
                        "item": item,
                        "sample": measured.answers[item].item.sample,
                        "questions": names,
                        "decided": measured.is_decided(item, names),
                    }
                    for item, names in differing.items()
                ],
            }
        )


def serialize_orders(measured: queues.QueueAgreement) -> dict[str, Any]:
    """`groups`, the lowest agreement first."""
    orders = measured.orders
    assert orders is not None
    pairs = [
        {
            "people": [pair.first, pair.second],
            "items": pair.items,
            "percent": serialize_estimate(pair.percent),
            "tau": serialize_estimate(pair.tau),
        }
        for pair in orders.pairs
    ]
    return {
        "items": orders.items,
        "percent": serialize_estimate(orders.percent),
        "tau": serialize_estimate(orders.tau),
        "pairs": pairs,
        "groups": [{"item": item, "same": row.same, "tau": row.tau} for item, row in orders.by_item.items()],
    }


def serialize_question(row: queues.QuestionAgreement) -> dict[str, Any]:
    found = row.agreement
    return {
        "question": row.question.key,
        "option": row.option,
        "kind": found.kind,
        "level": found.level,
        "items": found.items,
        "answers": found.answers,
        "people": found.people,
        "percent": serialize_estimate(found.percent),
        "alpha": serialize_estimate(found.alpha),
        "fleiss": serialize_estimate(found.fleiss),
        "pairs": [
            {
                "people": [pair.first, pair.second],
                "items": pair.items,
                "percent": serialize_estimate(pair.percent),
                "kappa": serialize_estimate(pair.kappa),
            }
            for pair in found.pairs
        ],
        "differing": len(row.differing),
        "gold": [serialize_accuracy(accuracy) for accuracy in row.accuracy],
    }


def serialize_estimate(estimate: Estimate) -> dict[str, Any]:
    """`value` is null if it is not defined, `low` and `high` are null without an interval; `reason` says why."""
    names = ("value", "low", "high", "size", "reason")
    return {name: getattr(estimate, name) for name in names}


def serialize_accuracy(accuracy: Accuracy) -> dict[str, Any]:
    return {
        "user": accuracy.person,
        "judged": accuracy.judged,
        "correct": accuracy.correct,
        "cannot_judge": accuracy.cannot_judge,
        "share": serialize_estimate(accuracy.share),
    }
