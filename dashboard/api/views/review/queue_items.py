"""The items of review queues: reserved, answered, skipped, undone and decided."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from rollouts import queues
from rollouts.errors import InvalidInputError
from rollouts.labels import Question
from rollouts.models import Queue, QueueItem, QueueSlot


class QueueItems(ApiView):
    """Items of a queue."""

    paged = True

    def get(self, request: Request, pk: int) -> Response:
        """The items with all answers and decisions, for leads: a reviewer would see what others say. A group has
        `order`, or `pairs` with the responses as each person saw them, and which one is better."""
        self.parse_query()
        queue = permissions.queue_or_404(request, pk)
        permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
        rows = queue.items.select_related("step", "run").order_by("position")
        if queue.unit == Queue.Unit.GROUP:

            def serialize_group_page(page: list[QueueItem]) -> list[dict[str, Any]]:
                groups = {entry.item.pk: entry for entry in queues.load_group_answers(queue, page)}
                return [serialize_group_item(item, groups.get(item.pk), queue) for item in page]

            return self.paginate_together(rows, serialize_group_page)

        def serialize_page(page: list[QueueItem]) -> list[dict[str, Any]]:
            answered = {entry.item.pk: entry for entry in queues.load_answers(queue, page)}
            return [serialize_item(item, answered.get(item.pk)) for item in page]

        return self.paginate_together(rows, serialize_page)


class NextItem(ApiView):
    """The next item for you."""

    scopes = {"POST": "annotate"}
    takes = {
        "POST": {
            "after": "Position of the item that you leave: the next one behind it is preferred.",
            "item": "Id of an item of the queue to open instead.",
        }
    }

    def post(self, request: Request, pk: int) -> Response:
        """Reserve the next item and return its content. `item` is null if nothing is left for you."""
        data = self.parse_body()
        queue = permissions.answerable_queue_or_404(request, pk)
        if wanted := data.integer("item"):
            slot: QueueSlot | None = queues.claim_item(permissions.queue_item_or_404(queue, wanted), self.user)
        else:
            slot = queues.claim_next(queue, self.user, after=data.integer("after"))
        own = queues.load_own_progress(queue, self.user)
        progress = {"done": own.done, "left": own.left, "pace": own.pace}
        return Response({"item": serialize_open_item(slot, request) if slot else None, "own": progress})


class ItemAnswers(ApiView):
    """Your answers to an item."""

    scopes = {"PUT": "annotate"}
    takes = {
        "PUT": {
            "answers": "{question: {value, rationale, start, end}}.",
            "order": "For a group: numbers of the responses, best first, such as [[2], [1, 3]]; equal ones together.",
            "pairs": 'For pairs of a group: {"2-5": "left"} with left, right, equal or skip for each pair of the item.',
            "rationale": "With `order`: why.",
            "version": "For a group: that of the item. Numbers of another version are refused, since they mean others.",
            "seconds": "How long you had the item open.",
            "shown": "true: `entered` of the answered item was loaded before. Then what is missing here is withdrawn.",
            "draft": "true: keep the answers without completing the item.",
        }
    }

    def put(self, request: Request, pk: int, item: int) -> Response:
        """Save your answers and complete the item, or replace what you saved before."""
        data = self.parse_body()
        queue = permissions.answerable_queue_or_404(request, pk)
        row, seconds = permissions.queue_item_or_404(queue, item), parse_seconds(data)
        if queue.unit == Queue.Unit.GROUP:
            queues.check_group_version(row, self.user, data.text("version", 40))
        if queue.asks_pairs:
            pairs, is_draft = parse_pairs(data), data.boolean("draft")
            if is_draft:
                queues.save_pairs_draft(row, self.user, pairs)
            else:
                queues.store_pairs(row, self.user, pairs, seconds=seconds)
            return Response({"item": row.pk, "done": not is_draft})
        if queue.unit == Queue.Unit.GROUP:
            order = queues.resolve_order(row, self.user, parse_order(data))
            rationale, is_draft = data.text("rationale", 2000), data.boolean("draft")
            if is_draft:
                queues.save_order_draft(row, self.user, order, rationale)
            else:
                queues.store_order(row, self.user, order, rationale=rationale, seconds=seconds)
            return Response({"item": row.pk, "done": not is_draft})
        answers = parse_answers(data)
        if data.boolean("draft"):
            queues.save_draft(row, self.user, answers)
            return Response({"item": row.pk, "done": False})
        queues.submit_answers(row, self.user, answers, seconds=seconds, was_shown=data.boolean("shown"))
        return Response({"item": row.pk, "done": True})


class SkipItem(ApiView):
    """Skip an item."""

    scopes = {"POST": "annotate"}
    takes = {"POST": dict[str, str]()}

    def post(self, request: Request, pk: int, item: int) -> Response:
        """Give the item back without an answer. It is not offered to you again."""
        self.parse_body()
        queues.skip_item(
            permissions.queue_item_or_404(permissions.answerable_queue_or_404(request, pk), item), self.user
        )
        return Response({"item": item, "skipped": True})


class UndoAnswer(ApiView):
    """Undo your last answer."""

    scopes = {"POST": "annotate"}
    takes = {"POST": dict[str, str]()}

    def post(self, request: Request, pk: int) -> Response:
        """Open the item again that you answered last; its labels are undone, and your answers are a draft."""
        self.parse_body()
        item = queues.undo_submission(permissions.answerable_queue_or_404(request, pk), self.user)
        return Response({"item": item.pk, "position": item.position})


class DecideItem(ApiView):
    """Decide an item on which people differ."""

    scopes = {"POST": "annotate"}
    takes = {
        "POST": {
            "question": "Its key.",
            "value": "The answer that holds; null removes the decision.",
            "reason": "Why; people see it.",
        }
    }

    def post(self, request: Request, pk: int, item: int) -> Response:
        """Store the answer that holds; needs the maintainer role. The labels of the people stay."""
        data = self.parse_body()
        queue = permissions.queue_or_404(request, pk)
        permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
        row, name = permissions.queue_item_or_404(queue, item), data.text("question", 50)
        if data.get("value") is None:
            queues.withdraw_decision(row, self.user, name)
            return Response({"item": row.pk, "question": name, "value": None, "reason": ""})
        decision = queues.decide_answer(row, self.user, name, data.get("value"), data.text("reason", 2000))
        return Response({"item": row.pk, "question": name, "value": decision.value, "reason": decision.reason})


def parse_answers(data: Params) -> dict[str, dict[str, Any]]:
    answers = data.get("answers")
    if not isinstance(answers, dict) or not all(isinstance(answer, dict) for answer in answers.values()):
        raise InvalidInputError('`answers` must be an object such as {"correct": {"value": true}}.', "answers")
    return answers


def parse_pairs(data: Params) -> dict[str, str]:
    pairs = data.get("pairs")
    if not isinstance(pairs, dict) or not all(outcome in queues.OUTCOMES for outcome in pairs.values()):
        message = '`pairs` must be an object such as {"2-5": "left"}, with left, right, equal or skip.'
        raise InvalidInputError(message, "pairs")
    return dict(pairs)


def parse_order(data: Params) -> list[list[int]]:
    order = data.get("order")
    is_valid = isinstance(order, list) and all(
        isinstance(place, list) and all(type(number) is int for number in place) for place in order
    )
    if not is_valid:
        raise InvalidInputError("`order` must be a list of lists of numbers, such as [[2], [1, 3]].", "order")
    return list(order or [])


def parse_seconds(data: Params) -> float | None:
    seconds = data.get("seconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise InvalidInputError("`seconds` must be a number from 0.", "seconds")
    return float(seconds)


def serialize_item(item: QueueItem, answered: queues.ItemAnswers | None) -> dict[str, Any]:
    return {
        "id": item.pk,
        "position": item.position,
        "sample": item.sample,
        "run": item.run.uid,
        "split": item.step.split,
        "step": item.step.step,
        "group": item.group,
        "stratum": item.stratum,
        "probability": item.probability,
        "gold": item.gold,
        "answers": answered.answers if answered else {},
        "decided": answered.decided if answered else {},
    }


def serialize_group_item(item: QueueItem, found: queues.GroupAnswers | None, queue: Queue) -> dict[str, Any]:
    fields: dict[str, Any] = {"samples": found.samples if found else []}
    if queue.asks_pairs:
        pairs = found.pairs if found else {}
        fields["pairs"] = {author: [pair._asdict() for pair in said] for author, said in pairs.items()}
    else:
        fields["order"] = found.orders if found else {}
    return serialize_item(item, None) | fields


def serialize_open_item(slot: QueueSlot, request: Request) -> dict[str, Any]:
    """What the reviewer may see, see `rollouts/queues/content.py`."""
    user = permissions.require_user(request)
    item: QueueItem = slot.item
    content = queues.load_item_content(item, user)
    return {
        "id": item.pk,
        "position": item.position,
        "reserved_until": slot.reserved_until,
        "done_at": slot.done_at,
        "prompt": content.prompt,
        "messages": content.messages,
        "tools": content.tools,
        "responses": [
            {"number": row.number, "response": row.response}
            | ({} if row.sample is None else {"sample": row.sample, "score": row.score, "rewards": row.rewards})
            for row in content.responses
        ],
        **({"pairs": [queues.format_pair(*pair) for pair in content.pairs]} if item.queue.asks_pairs else {}),
        **({"version": content.version} if content.version else {}),
        **content.context,
        "questions": [serialize_question(question) for question in queues.list_questions(item.queue)],
        "entered": queues.load_entered_content(slot),
    }


def serialize_question(question: Question) -> dict[str, Any]:
    return dict(question.to_json())
