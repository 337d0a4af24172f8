"""Review queues: created from queries, with progress, people and settings."""

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from rollouts import queues
from rollouts.errors import InvalidInputError
from rollouts.models import Queue

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
    "due_at": "A time in ISO 8601; without an offset it is UTC.",
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
        rows = permissions.visible_queues(request).select_related("created_by").prefetch_related("runs").order_by("-pk")
        if "project" in query:
            rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
        state = query.choice("state", STATES, "open")
        if state != "all":
            rows = rows.filter(closed_at__isnull=state != "closed")
        projects = permissions.visible_projects(request).load_with_roles(self.user)
        roles = {project.pk: role for project, role in projects.items()}
        listed: Any = rows
        if state == "mine":
            listed = [queue for queue in rows if queue.accepts_role(self.user, roles.get(queue.project_id, ""))]
        return self.paginate_together(listed, lambda page: serialize_queues(page, roles))

    def post(self, request: Request) -> Response:
        """Create a queue and draw its items; needs the maintainer role. `dry_run` shows what would be drawn."""
        data = self.parse_body()
        project = permissions.project_or_404(request, data.text("project", 80), role=permissions.LEAD_ROLE)
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
        queue = permissions.queue_or_404(request, pk)
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
        queue = permissions.queue_or_404(request, pk)
        permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
        changes = {name: value for name, value in data.items() if name != "closed"}
        if changes:
            queue = queues.update_queue(queue, self.user, changes)
        if "closed" in data:
            change_state = queues.close_queue if data.boolean("closed") else queues.reopen_queue
            change_state(queue, self.user)
        return Response(serialize_queue(permissions.queue_or_404(request, pk), request))


def is_lead(request: Request, queue: Queue) -> bool:
    return permissions.role_allows(queue.project.role_of(permissions.require_user(request)), permissions.LEAD_ROLE)


def parse_texts(data: Params, name: str) -> list[str]:
    values = data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidInputError(f"`{name}` must be a list of texts.", name)
    return values


def serialize_queue(queue: Queue, request: Request) -> dict[str, Any]:
    hidden = queue.is_blind and not is_lead(request, queue)
    return serialize_progress(queue, queues.load_progress([queue])[queue.pk], hidden=hidden)


def serialize_queues(rows: list[Queue], roles: Mapping[int, str]) -> list[dict[str, Any]]:
    """Many queues with one query. `roles` of the reader by project."""
    progress = queues.load_progress(rows)
    led = {project for project, role in roles.items() if permissions.role_allows(role, permissions.LEAD_ROLE)}
    return [
        serialize_progress(queue, progress[queue.pk], hidden=queue.is_blind and queue.project_id not in led)
        for queue in rows
    ]


def serialize_progress(queue: Queue, progress: queues.QueueProgress, *, hidden: bool) -> dict[str, Any]:
    """`hidden`: a reviewer of a blind queue sees neither its query nor its runs."""
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
