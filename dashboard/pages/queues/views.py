"""The pages of review queues."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.image_response import build_image_response
from dashboard.pages import common
from dashboard.pages.queues import item_view
from dashboard.pages.queues.create_form import FIELD_LABELS, name_choice
from rollouts import queues
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Queue, QueueItem, QueueSlot

PANELS = {"queues": "queues/list.html", "item": "queues/item.html", "progress": "queues/progress.html"}
MAX_CLOSED = 50
MAX_LEFT = 50  # items whose answers a page is saving
DRAFT_FIELDS = ("name", "due_at", "reservation_minutes")


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue in a list. `own` is the progress of the person if they may answer, `is_lead` whether they lead it."""

    queue: Queue
    progress: queues.QueueProgress
    own: queues.OwnProgress | None
    is_lead: bool
    ends_at: datetime | None = None

    @property
    def is_late(self) -> bool:
        """Whether it is not complete and its date is over, or is expected to be."""
        due = self.queue.due_at
        if due is None or self.progress.is_complete:
            return False
        return timezone.now() > due or bool(self.ends_at and self.ends_at > due)


@login_required
@require_safe
def queues_page(request: HttpRequest) -> HttpResponseBase:
    """One's own queues, then all queues of the projects that one leads."""
    return common.render_page_or_panel(request, "queues/page.html", PANELS, lambda panel: build_list_context(request))


def build_list_context(request: HttpRequest) -> dict[str, Any]:
    user = common.get_signed_in_user(request)
    projects = permissions.visible_projects(request)
    roles = {project.pk: role for project, role in projects.load_with_roles(user).items()}
    led = [pk for pk, role in roles.items() if permissions.role_allows(role, permissions.LEAD_ROLE)]
    own = queues.list_open_queues(user, projects)
    team = Queue.objects.filter(project__in=led).select_related("project").prefetch_related("reviewers")
    team_open = list(team.open().order_by("due_at", "-pk"))
    closed = list(team.exclude(closed_at=None).order_by("-closed_at")[:MAX_CLOSED])
    progress = queues.load_progress([*own, *team_open, *closed])
    now = timezone.now()
    return {
        "tab": "review",
        "own": sorted(
            (
                QueueLine(queue, progress[queue.pk], queues.load_own_progress(queue, user), queue.project_id in led)
                for queue in own
            ),
            key=lambda line: line.own is None or not line.own.left,  # what is finished comes last
        ),
        "team": [
            QueueLine(queue, progress[queue.pk], None, True, queues.forecast_end(queue, progress[queue.pk], now))
            for queue in team_open
        ],
        "closed": [QueueLine(queue, progress[queue.pk], None, True) for queue in closed],
        "leads": bool(led),
    }


@login_required
@require_safe
def queue_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The progress of a queue and of its people, for leads. A reviewer is sent to the items."""
    queue = permissions.queue_or_404(request, pk)
    if not permissions.role_allows(queue.project.role_of(request.user), permissions.LEAD_ROLE):
        return redirect("queue-review", pk)
    return common.render_page_or_panel(
        request, "queues/queue.html", PANELS, lambda panel: build_queue_context(request, queue)
    )


def build_queue_context(request: HttpRequest, queue: Queue, **more: Any) -> dict[str, Any]:
    progress = queues.load_progress([queue])[queue.pk]
    members = queue.project.memberships.filter(role__in=queues.REVIEW_ROLES)
    names = list(members.values_list("user__username", flat=True))
    chosen = {user.get_username(): user for user in queue.reviewers.all()}
    former = [name for name in chosen if name not in names]  # else saving the form would remove them, perhaps the last
    cannot_answer = {name for name in former if not queue.accepts(chosen[name])}  # an administrator needs no membership
    draft = {
        "name": queue.name,
        "due_at": timezone.localtime(queue.due_at).strftime("%Y-%m-%d %H:%M") if queue.due_at else "",
        "reservation_minutes": str(queue.reservation_minutes),
    }
    return {
        "tab": "review",
        "queue": queue,
        "project": queue.project,
        "progress": progress,
        "runs": list(queue.runs.all()),
        "questions": queues.list_questions(queue),
        "draw": name_choice(queue.selection),
        "drawn_from": name_choice(queue.per),
        "people": queues.load_people_progress(queue),
        "steps_without_room": queues.count_steps_without_room(queue),
        "ends_at": queues.forecast_end(queue, progress, timezone.now()),
        "members": [(name, name in chosen, name in cannot_answer) for name in (*names, *former)],
        "may_answer": queue.accepts(common.get_signed_in_user(request)),
        "draft": draft,
        "seen": {**draft, "reviewers": list(chosen)},
        **more,
    }


@login_required
@require_POST
def update_queue_view(request: HttpRequest, pk: int) -> HttpResponse:
    """`do` is `close`, `reopen` or `save`, with people, date and reservation. What cannot be saved stays in the
    form."""
    queue = permissions.queue_or_404(request, pk)
    permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
    user = common.get_signed_in_user(request)
    try:
        match request.POST.get("do"):
            case "close":
                queues.close_queue(queue, user)
                message = _("Queue closed. Its answers stay.")
            case "reopen":
                queues.reopen_queue(queue, user)
                message = _("Queue opened again.")
            case _:
                return save_queue_form(request, queue)
    except RolloutError as error:
        return common.respond_error(request, error, "queue", pk)
    return common.respond_success(request, message, "queue", pk)


def save_queue_form(request: HttpRequest, queue: Queue) -> HttpResponse:
    reviewers = [common.clean_param(name) for name in request.POST.getlist("reviewers")]
    draft = {name: common.clean_param(request.POST[name]) for name in DRAFT_FIELDS if name in request.POST}
    changes = {name: value for name, value in draft.items() if value or name != "reservation_minutes"}
    seen = read_seen_settings(request)
    try:
        queues.update_queue(queue, common.get_signed_in_user(request), {**changes, "reviewers": reviewers}, seen=seen)
    except InvalidInputError as error:
        queue.refresh_from_db()
        context = build_queue_context(request, queue, error=error, draft=draft, seen=seen)
        context["members"] = [(name, name in reviewers, is_barred) for name, _chosen, is_barred in context["members"]]
        context["message"] = common.format_form_error(error, FIELD_LABELS)
        return render(request, "queues/queue.html", context, status=400)
    return common.respond_success(request, _("Queue saved."), "queue", queue.pk)


def read_seen_settings(request: HttpRequest) -> dict[str, Any]:
    """Returns the settings that the form showed before they were edited."""
    texts = {name: request.POST.get(f"seen_{name}") for name in DRAFT_FIELDS}
    seen: dict[str, Any] = {name: common.clean_param(text) for name, text in texts.items() if text is not None}
    if seen:
        seen["reviewers"] = [common.clean_param(name) for name in request.POST.getlist("seen_reviewers")]
    return seen


@login_required
@require_safe
def review_queue_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The item that the person holds, the one that the URL names, or the next. `after` asks for the one behind it."""
    queue = permissions.answerable_queue_or_404(request, pk)
    response = common.render_page_or_panel(
        request, "queues/review.html", PANELS, lambda panel: build_review_context(request, queue)
    )
    response["Cache-Control"] = "no-store"  # a page that the browser stored would show the item of another person
    return response


@login_required
@require_safe
def item_image_view(request: HttpRequest, pk: int, item: int, digest: str) -> HttpResponse:
    """An image of the item's run, for those who may answer the queue and those who lead it."""
    queue = permissions.queue_or_404(request, pk)
    user = common.get_signed_in_user(request)
    if not queue.accepts(user):
        permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
    return build_image_response(request, permissions.queue_item_or_404(queue, item).run.image_owner, digest)


def build_review_context(request: HttpRequest, queue: Queue) -> dict[str, Any]:
    user = common.get_signed_in_user(request)
    context: dict[str, Any] = {
        "tab": "review",
        "queue": queue,
        "guidelines": queues.load_queue_rubric(queue).guidelines,
    }
    slot: QueueSlot | None = None
    try:
        wanted = common.parse_integer_param(request.GET.get("item", ""), minimum=1)
        if wanted is not None:
            slot = queues.claim_item(permissions.queue_item_or_404(queue, wanted), user)
        elif queue.closed_at is None:
            after = common.parse_integer_param(request.GET.get("after", ""))
            saving = [pk for pk in map(common.parse_integer_param, request.GET.getlist("left")[:MAX_LEFT]) if pk]
            slot = queues.claim_next(queue, user, after=after, left=saving)
    except RolloutError as error:
        context["error"] = str(error)
    context["own"] = queues.load_own_progress(queue, user)
    if slot is not None:
        return context | item_view.build_item_context(queue, slot, user)
    others = [other for other in queues.list_open_queues(user, permissions.visible_projects(request)) if other != queue]
    context |= {"summary": item_view.summarise_own_answers(queue, user), "next_queue": find_next_queue(others, user)}
    return context | {"has_skipped": queue.closed_at is None and queues.find_skipped(queue, user).exists()}


def find_next_queue(others: Sequence[Queue], user: User) -> Queue | None:
    """The first queue that has items for the user."""
    return next((other for other in others if queues.load_own_progress(other, user).left), None)


@login_required
@require_POST
def save_answers_view(request: HttpRequest, pk: int, item: int) -> HttpResponse:
    """Saves the answers; with `draft` without completing the item."""
    queue = permissions.answerable_queue_or_404(request, pk)
    row, user, form = permissions.queue_item_or_404(queue, item), common.get_signed_in_user(request), request.POST
    try:
        seconds = parse_seconds(form.get("seconds", ""))
        if queue.unit == Queue.Unit.GROUP:
            queues.check_group_version(row, user, form.get("version", ""))
        if queue.asks_pairs:
            pairs = item_view.parse_pairs(form)
            if form.get("draft"):
                queues.save_pairs_draft(row, user, pairs)
                return JsonResponse({"message": ""})
            queues.store_pairs(row, user, pairs, seconds=seconds)
        elif queue.unit == Queue.Unit.GROUP:
            order = queues.resolve_order(row, user, item_view.parse_order(form))
            if form.get("draft"):
                queues.save_order_draft(row, user, order)
                return JsonResponse({"message": ""})
            queues.store_order(row, user, order, rationale=form.get("rationale", ""), seconds=seconds)
        elif form.get("draft"):
            save_draft_form(row, user, form)
            return JsonResponse({"message": ""})
        else:
            answers = parse_or_keep_answers(row, user, form)
            queues.submit_answers(row, user, answers, seconds=seconds, was_shown=bool(form.get("shown")))
    except RolloutError as error:
        if common.is_script_request(request):
            field = error.field if isinstance(error, InvalidInputError) else ""
            return JsonResponse({"message": str(error), "code": error.code, "field": field}, status=400)
        messages.error(request, str(error))
        return common.redirect_see_other(reverse("queue-review", args=[pk]) + f"?item={item}")
    return respond_progress(request, queue, _("Saved."))


def save_draft_form(item: QueueItem, user: User, form: QueryDict) -> None:
    """Without marks that are refused: the other answers stay."""
    queues.save_draft(item, user, item_view.parse_answers(item, user, form, drops_refused_marks=True))


def parse_or_keep_answers(item: QueueItem, user: User, form: QueryDict) -> dict[str, dict[str, Any]]:
    """The answers to submit. Raises InvalidInputError for a refused mark. Then the answers are a draft."""
    try:
        return item_view.parse_answers(item, user, form)
    except InvalidInputError:
        save_draft_form(item, user, form)
        raise


@login_required
@require_POST
def skip_item_view(request: HttpRequest, pk: int, item: int) -> HttpResponse:
    """Gives the item back."""
    queue = permissions.answerable_queue_or_404(request, pk)
    row = permissions.queue_item_or_404(queue, item)
    try:
        queues.skip_item(row, common.get_signed_in_user(request))
    except RolloutError as error:
        return common.respond_error(request, error, "queue-review", pk)
    return respond_progress(request, queue, _("Skipped. It is offered to others."))


@login_required
@require_POST
def reoffer_skipped_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Offers all items again that the person skipped."""
    queue = permissions.answerable_queue_or_404(request, pk)
    try:
        count = queues.reoffer_skipped_items(queue, common.get_signed_in_user(request))
    except RolloutError as error:
        return common.respond_error(request, error, "queue-review", pk)
    message = ngettext("{count} skipped item is back.", "{count} skipped items are back.", count)
    return respond_progress(request, queue, message.format(count=common.format_number(count)))


def respond_progress(request: HttpRequest, queue: Queue, message: str) -> HttpResponse:
    """With the person's progress for the script: the item that it shows next was loaded before."""
    fields = {}
    if common.is_script_request(request):
        own = queues.load_own_progress(queue, common.get_signed_in_user(request))
        values = {"done": common.format_number(own.done), "left": common.format_number(own.left)}
        fields["progress"] = _("%(done)s answered, %(left)s left") % values
    return common.respond_success(request, message, "queue-review", queue.pk, **fields)


@login_required
@require_POST
def undo_answer_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Opens the item again that the person answered last."""
    queue = permissions.answerable_queue_or_404(request, pk)
    try:
        item = queues.undo_submission(queue, common.get_signed_in_user(request))
    except RolloutError as error:
        return common.respond_error(request, error, "queue-review", pk)
    if common.is_script_request(request):
        return JsonResponse({"message": _("Undone. Your answers are still entered."), "item": item.pk})
    return common.redirect_see_other(reverse("queue-review", args=[pk]) + f"?item={item.pk}")


def parse_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e9 else None
