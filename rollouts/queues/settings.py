"""Parses the settings of a new queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels import RubricVersion, load_rubric
from rollouts.lib import parse_boolean, parse_integer, parse_text
from rollouts.models import Membership, Project, Queue, Run
from rollouts.query import parse_query

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_ITEMS: Final = 20_000
MAX_REVIEWERS: Final = 20
MAX_RUNS: Final = 50
MAX_MINUTES: Final = 7 * 24 * 60
MAX_PAIRS: Final = 50  # of a group
MAX_NAME_CHARS: Final = 80
MAX_USER_NAME_CHARS: Final = 150
MAX_SEED: Final = 2**31 - 1
REVIEW_ROLES: Final = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)


def build_queue(project: Project, by: User, settings: Mapping[str, Any]) -> tuple[Queue, list[Run], list[User]]:
    """Returns a queue that is not stored, its runs and its reviewers. Raises InvalidInputError that names the field."""
    name = parse_text(settings.get("name"), "name", max_chars=MAX_NAME_CHARS).strip()
    if not name:
        raise InvalidInputError(_("Give the queue a name."), "name")
    runs = list(settings.get("runs") or ())
    if not 1 <= len(runs) <= MAX_RUNS or any(run.project_id != project.pk for run in runs):
        message = _("A queue needs 1 to {limit} runs of its project.")
        raise InvalidInputError(message.format(limit=MAX_RUNS), "runs")
    rubric = load_rubric(project)
    queue = Queue(project=project, name=name, created_by=by, rubric_id=rubric.pk)
    queue.q = parse_text(settings.get("q"), "q", max_chars=8000).strip()
    parse_query(queue.q)
    queue.unit = parse_member(settings, "unit", Queue.Unit, Queue.Unit.SAMPLE)
    queue.pairs_per_group = parse_integer(
        settings.get("pairs_per_group"), "pairs_per_group", minimum=1, maximum=MAX_PAIRS
    )
    queue.selection = parse_member(settings, "selection", Queue.Selection, Queue.Selection.ALL)
    queue.per = parse_member(settings, "per", Queue.Stratum, Queue.Stratum.QUEUE)
    queue.count = parse_integer(settings.get("count"), "count", minimum=1, maximum=MAX_ITEMS)
    seed = parse_integer(settings.get("seed"), "seed", minimum=0, maximum=MAX_SEED)
    queue.seed = 1 if seed is None else seed
    queue.grows = parse_boolean(settings.get("grows") or False, "grows")
    queue.is_blind = parse_boolean(settings.get("is_blind") or False, "is_blind")
    queue.questions = parse_question_keys(settings.get("questions"), rubric)
    reviewers = parse_integer(
        settings.get("num_reviewers_per_item"), "num_reviewers_per_item", minimum=1, maximum=MAX_REVIEWERS
    )
    queue.num_reviewers_per_item = reviewers or 1
    minutes = parse_integer(settings.get("reservation_minutes"), "reservation_minutes", minimum=1, maximum=MAX_MINUTES)
    queue.reservation_minutes = minutes or 30
    queue.due_at = parse_due(settings.get("due_at"))
    people, queue.roles = parse_people(project, settings)
    check_selection(queue)
    return queue, runs, people


def parse_member(settings: Mapping[str, Any], name: str, choices: Any, default: str) -> str:
    value = settings.get(name) or default
    if value not in choices.values:
        message = _("`{name}` must be one of {known}, not {value}.")
        known = ", ".join(choices.values)
        raise InvalidInputError(message.format(name=name, known=known, value=repr(str(value)[:40])), name)
    return str(value)


def parse_question_keys(keys: Any, rubric: RubricVersion) -> list[str]:
    known = [question.key for question in rubric.questions]
    if not keys:
        return []
    if not isinstance(keys, list) or any(key not in known for key in keys):
        message = _("`questions` must be keys of the rubric: {known}.")
        raise InvalidInputError(message.format(known=", ".join(known)), "questions")
    return [key for key in known if key in keys]


def parse_due(value: Any) -> datetime | None:
    """`value` is a time or its ISO 8601 text."""
    if value in (None, ""):
        return None
    try:
        due = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
        return (due if due.tzinfo else timezone.make_aware(due)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError(_("`due_at` must be a time such as 2026-11-30T18:00."), "due_at") from None


def parse_people(project: Project, settings: Mapping[str, Any]) -> tuple[list[User], list[str]]:
    """Returns the reviewers and the roles that may answer. Raises InvalidInputError for people who may not annotate."""
    roles = parse_texts(settings, "roles")
    if any(role not in REVIEW_ROLES for role in roles):
        message = _("`roles` must be among {known}.")
        raise InvalidInputError(message.format(known=", ".join(REVIEW_ROLES)), "roles")
    names = parse_texts(settings, "reviewers")
    members = project.memberships.filter(user__username__in=names, role__in=REVIEW_ROLES).select_related("user")
    people = {member.user.get_username(): member.user for member in members}
    if missing := [name for name in names if name not in people]:
        message = _("{user} cannot review: add them to the project as annotator first.")
        raise InvalidInputError(message.format(user=missing[0][:60]), "reviewers")
    return list(people.values()), roles


def parse_texts(settings: Mapping[str, Any], name: str) -> list[str]:
    values = settings.get(name) or []
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise InvalidInputError(_("`{name}` must be a list of texts.").format(name=name), name)
    return [parse_text(value, name, max_chars=MAX_USER_NAME_CHARS) for value in values]


def check_selection(queue: Queue) -> None:
    """Raises InvalidInputError for settings that contradict each other."""
    if queue.pairs_per_group is not None and queue.unit != Queue.Unit.GROUP:
        raise InvalidInputError(_("Pairs are of a group: set `unit` to group."), "pairs_per_group")
    if queue.selection != Queue.Selection.ALL and queue.count is None:
        raise InvalidInputError(_("Say how many items are drawn from each part: `count`."), "count")
    if queue.grows and queue.selection != Queue.Selection.ALL and queue.per != Queue.Stratum.STEP:
        message = _("A queue that grows draws from each step: set `per` to step, or `selection` to all.")
        raise InvalidInputError(message, "per")
    if queue.grows and queue.count is not None and queue.per != Queue.Stratum.STEP:  # else drawn again each time
        message = _("A queue that grows draws from each step: set `per` to step, or leave `count` empty.")
        raise InvalidInputError(message, "count")
