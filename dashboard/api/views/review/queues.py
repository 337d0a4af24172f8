"""Review queues: created from queries, answered item by item, with progress and decisions."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, row_or_404
from rollouts import queues
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.labels import Question
from rollouts.models import Membership, Queue, QueueItem, QueueSlot

LEAD_ROLE = Membership.Role.MAINTAINER
STATES = ("open", "closed", "mine", "all")
QUEUE_FIELDS = {
    "name": "Shown to the reviewers; keep it neutral in a blind queue.",
    "q": "The query of the samples, in the language of the pages.",
    "runs": "Ids of the runs.",
    "unit": "sample (default), or group: the responses to a prompt, to be put in order.",
    "pairs_per_group": "With unit group: compare so many pairs of responses; by default all are put in order.",
    "selection": "all (default), random, worst (lowest score) or disagreeing (score and length rank differently).",
    "per": "What `count` is for: queue (default), step, or source (data source).",
    "count": "Items drawn from each part.",
    "seed": "Of the random draw; 1 by default.",
    "grows": "true: later steps are drawn too.",
    "questions": "Keys of the rubric; all by default.",
    "num_reviewers_per_item": "Answers that each item gets, of different people; 1 by default.",
    "reservation_minutes": "How long an opened item belongs to a person; 30 by default.",
    "reviewers": "User names; everybody who may annotate by default.",
    "roles": "annotator, maintainer, owner: members with these roles may answer.",
    "due_at": "A time in ISO 8601.",
    "is_blind": "true: reviewers see no score, ground truth, run, step or label of others.",
    "gold_count": "Items with your own answers that are mixed in, to compare people with.",
}


class Queues(ApiView):
    """Review queues."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    searches = ("POST",)
    takes = {
        "GET": {"project": "A slug.", "state": "open (default), closed, mine (open, and you may answer) or all."},
        "POST": {"project": "A slug.", **QUEUE_FIELDS, "dry_run": "true: only say what would be drawn."},
    }

    def get(self, request: Request) -> Response:
        """Queues of your projects with their progress, newest first."""
        query = self.parse_query()
        rows = visible_queues(request).select_related("created_by").prefetch_related("runs").order_by("-pk")
        if "project" in query:
            rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
        state = query.choice("state", STATES, "open")
        if state != "all":
            rows = rows.filter(closed_at__isnull=state != "closed")
        listed: Any = rows
        if state == "mine":
            listed = [queue for queue in rows if queue.accepts(self.user)]
        return self.paginate(listed, lambda queue: serialize_queue(queue, request))

    def post(self, request: Request) -> Response:
        """Create a queue and draw its items; needs the maintainer role. `dry_run` shows what would be drawn."""
        data = self.parse_body()
        project = permissions.project_or_404(request, data.text("project", 80), role=LEAD_ROLE)
        settings = {name: value for name, value in data.items() if name not in ("project", "dry_run")}
        settings["runs"] = [permissions.run_or_404(request, uid) for uid in parse_texts(data, "runs")]
        if data.boolean("dry_run"):
            preview = queues.preview_queue(project, self.user, settings)
            parts = [
                {"stratum": name, "matched": matched, "drawn": preview.drawn[name]}
                for name, matched in preview.matched.items()
            ]
            return Response({"matched": preview.total, "items": len(preview.items), "strata": parts})
        queue = queues.create_queue(project, self.user, settings)
        return Response(serialize_queue(queue, request), status=201)


class OneQueue(ApiView):
    """One review queue."""

    scopes = {"PATCH": "annotate"}
    takes = {
        "PATCH": {
            "name": QUEUE_FIELDS["name"],
            "due_at": QUEUE_FIELDS["due_at"],
            "reviewers": QUEUE_FIELDS["reviewers"],
            "roles": QUEUE_FIELDS["roles"],
            "reservation_minutes": QUEUE_FIELDS["reservation_minutes"],
            "closed": "true: nobody can answer any more; false: they can again.",
        }
    }

    def get(self, request: Request, pk: int) -> Response:
        """A queue with its progress, that of each person for leads, and your own."""
        queue = queue_or_404(request, pk)
        data = serialize_queue(queue, request)
        own = queues.load_own_progress(queue, self.user)
        data["own"] = {"done": own.done, "left": own.left, "skipped": own.skipped, "pace": own.pace}
        if is_lead(request, queue):
            people = queues.load_people_progress(queue)
            data["people"] = [
                {
                    "user": person.user.get_username(),
                    "done": person.done,
                    "held": person.held,
                    "skipped": person.skipped,
                    "per_day": person.per_day,
                    "pace": person.pace,
                    "last_at": person.last_at,
                }
                for person in people
            ]
        return Response(data)

    def patch(self, request: Request, pk: int) -> Response:
        """Change people, due date or name, or close the queue; needs the maintainer role."""
        data = self.parse_body()
        queue = queue_or_404(request, pk)
        permissions.require_role(request, queue.project, LEAD_ROLE)
        changes = {name: value for name, value in data.items() if name != "closed"}
        if changes:
            queue = queues.update_queue(queue, self.user, changes)
        if "closed" in data:
            change_state = queues.close_queue if data.boolean("closed") else queues.reopen_queue
            change_state(queue, self.user)
        return Response(serialize_queue(queue_or_404(request, pk), request))


class QueueItems(ApiView):
    """Items of a queue."""

    paged = True

    def get(self, request: Request, pk: int) -> Response:
        """The items with all answers and decisions, for leads: a reviewer would see what others say. A group has
        `order`, or `pairs` with the responses as each person saw them, and which one is better."""
        self.parse_query()
        queue = queue_or_404(request, pk)
        permissions.require_role(request, queue.project, LEAD_ROLE)
        rows = queue.items.select_related("step", "run").order_by("position")
        if queue.unit == Queue.Unit.GROUP:
            groups = {entry.item.pk: entry for entry in queues.load_group_answers(queue)}
            return self.paginate(rows, lambda item: serialize_group_item(item, groups.get(item.pk), queue))
        answered = {entry.item.pk: entry for entry in queues.load_answers(queue)}
        return self.paginate(rows, lambda item: serialize_item(item, answered.get(item.pk)))


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
        queue = answerable_queue_or_404(request, pk)
        if wanted := data.integer("item"):
            slot: QueueSlot | None = queues.claim_item(item_or_404(queue, wanted), self.user)
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
            "seconds": "How long you had the item open.",
            "draft": "true: keep the answers without completing the item.",
        }
    }

    def put(self, request: Request, pk: int, item: int) -> Response:
        """Save your answers and complete the item, or replace what you saved before."""
        data = self.parse_body()
        queue = answerable_queue_or_404(request, pk)
        row, seconds = item_or_404(queue, item), parse_seconds(data)
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
        queues.submit_answers(row, self.user, answers, seconds=seconds)
        return Response({"item": row.pk, "done": True})


class SkipItem(ApiView):
    """Skip an item."""

    scopes = {"POST": "annotate"}
    takes = {"POST": dict[str, str]()}

    def post(self, request: Request, pk: int, item: int) -> Response:
        """Give the item back without an answer. It is not offered to you again."""
        self.parse_body()
        queues.skip_item(item_or_404(answerable_queue_or_404(request, pk), item), self.user)
        return Response({"item": item, "skipped": True})


class UndoAnswer(ApiView):
    """Undo your last answer."""

    scopes = {"POST": "annotate"}
    takes = {"POST": dict[str, str]()}

    def post(self, request: Request, pk: int) -> Response:
        """Open the item again that you answered last; its labels are undone, and your answers are a draft."""
        self.parse_body()
        item = queues.undo_submission(answerable_queue_or_404(request, pk), self.user)
        return Response({"item": item.pk, "position": item.position})


class DecideItem(ApiView):
    """Decide an item on which people differ."""

    scopes = {"POST": "annotate"}
    takes = {"POST": {"question": "Its key.", "value": "The answer that holds.", "reason": "Why; people see it."}}

    def post(self, request: Request, pk: int, item: int) -> Response:
        """Store the answer that holds; needs the maintainer role. The labels of the people stay."""
        data = self.parse_body()
        queue = queue_or_404(request, pk)
        permissions.require_role(request, queue.project, LEAD_ROLE)
        row, name = item_or_404(queue, item), data.text("question", 50)
        decision = queues.decide_answer(row, self.user, name, data.get("value"), data.text("reason", 2000))
        return Response({"item": row.pk, "question": name, "value": decision.value, "reason": decision.reason})


def visible_queues(request: Request) -> QuerySet[Queue]:
    """Queues of the user's projects. A token of a project sees only those of the project."""
    rows = Queue.objects.filter(project__in=permissions.visible_projects(request))
    return rows.select_related("project", "rubric").prefetch_related("reviewers")


def queue_or_404(request: Request, pk: int) -> Queue:
    return row_or_404(visible_queues(request), pk, "queue")


def answerable_queue_or_404(request: Request, pk: int) -> Queue:
    """Raises Http404, and PermissionDenied if the queue does not accept the user."""
    queue = queue_or_404(request, pk)
    if not queue.accepts(permissions.require_user(request)):
        raise PermissionDenied("This queue is for other reviewers. Ask a maintainer of the project to add you.")
    return queue


def item_or_404(queue: Queue, pk: int) -> QueueItem:
    item = queue.items.select_related("run").filter(pk=pk).first()
    if item is None:
        raise NotFoundError(f"The queue has no item {pk}.", "item")
    item.queue, item.run.project = queue, queue.project
    return item


def is_lead(request: Request, queue: Queue) -> bool:
    ranks = permissions.ROLE_RANKS
    return ranks[queue.project.role_of(permissions.require_user(request))] >= ranks[LEAD_ROLE]


def parse_texts(data: Params, name: str) -> list[str]:
    values = data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidInputError(f"`{name}` must be a list of texts.", name)
    return values


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


def serialize_queue(queue: Queue, request: Request) -> dict[str, Any]:
    """A reviewer of a blind queue sees neither its query nor its runs."""
    progress = queues.load_progress([queue])[queue.pk]
    hidden = queue.is_blind and not is_lead(request, queue)
    source: dict[str, Any] = {"q": queue.q, "runs": [run.uid for run in queue.runs.all()]}
    source |= {name: getattr(queue, name) for name in ("selection", "per", "count", "seed", "grows")}
    return {
        "id": queue.pk,
        "project": queue.project.slug,
        "name": queue.name,
        "unit": queue.unit,
        "pairs_per_group": queue.pairs_per_group,
        **({} if hidden else source),
        "rubric": queue.rubric.number if queue.rubric else 0,
        "questions": [question.key for question in queues.list_questions(queue)],
        "num_reviewers_per_item": queue.num_reviewers_per_item,
        "reservation_minutes": queue.reservation_minutes,
        "reviewers": [user.get_username() for user in queue.reviewers.all()],
        "roles": queue.roles,
        "due_at": queue.due_at,
        "is_blind": queue.is_blind,
        "created_by": queue.created_by.get_username() if queue.created_by else None,
        "created_at": queue.created_at,
        "closed_at": queue.closed_at,
        "items": progress.items,
        "answers": progress.slots,
        "answers_done": progress.done,
        "items_complete": progress.complete,
    }


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
        **content.context,
        "questions": [serialize_question(question) for question in queues.list_questions(item.queue)],
        "entered": queues.load_entered_content(item, user),
    }


def serialize_question(question: Question) -> dict[str, Any]:
    return dict(question.to_json())
