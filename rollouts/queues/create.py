"""Creates queues, draws their items, and adds the items of later steps."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError, RolloutError
from rollouts.labels import DEFAULT_RUBRIC, RubricVersion, load_rubric, read_rubric
from rollouts.lib import parse_boolean, parse_integer, parse_text
from rollouts.live import notify_topics
from rollouts.models import Label, Membership, Project, Queue, QueueItem, QueueSlot, QueueStep, Run, Sample, Step
from rollouts.projects import record_audit_entry
from rollouts.query import parse_query
from rollouts.queues.draw import Draw, DrawnItem, TooManyItemsError, draw_items, find_candidates

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)

MAX_ITEMS: Final = 20_000
MAX_REVIEWERS: Final = 20
MAX_RUNS: Final = 50
MAX_MINUTES: Final = 7 * 24 * 60
MAX_PAIRS: Final = 50  # of a group
MAX_NAME_CHARS: Final = 80
MAX_USER_NAME_CHARS: Final = 150
MAX_SEED: Final = 2**31 - 1
INSERTED_ROWS: Final = 500
STEPS_PER_DRAW: Final = 50  # of a queue that grows
MAX_DUMP_DELAY: Final = timedelta(minutes=15)  # after the end of a run its last dumps may still be on their way
MAX_PAUSE: Final = timedelta(days=7)  # a run without an end and without any update for so long does not go on
REVIEW_ROLES: Final = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)


@dataclass(frozen=True, slots=True)
class QueuePreview:
    """What `create_queue` would draw: items of each stratum, and the samples or groups that match."""

    items: list[DrawnItem]
    matched: Counter[str]
    drawn: Counter[str]
    total: int


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


def preview_queue(project: Project, by: User, settings: Mapping[str, Any]) -> QueuePreview:
    """Returns what `create_queue` would draw. Raises InvalidInputError."""
    queue, runs, _people = build_queue(project, by, {"name": "preview", **settings})
    draws = draw_from_runs(queue, runs, by, MAX_ITEMS)
    items, matched = [item for draw in draws.values() for item in draw.items], Counter[str]()
    for draw in draws.values():
        matched.update(draw.matched)
    return QueuePreview(items, matched, Counter(item.stratum for item in items), sum(matched.values()))


def create_queue(project: Project, by: User, settings: Mapping[str, Any]) -> Queue:
    """Creates a queue and draws its items. `settings` has the names of the fields of `Queue`; `runs` are rows,
    `reviewers` user names. `gold_count`: items that `by` has already answered are mixed in, and their answers are the
    known ones. The caller has checked that `by` may create queues. Raises InvalidInputError and ConflictError."""
    queue, runs, people = build_queue(project, by, settings)
    gold_count = parse_integer(settings.get("gold_count"), "gold_count", minimum=0, maximum=MAX_ITEMS) or 0
    if gold_count and queue.unit != Queue.Unit.SAMPLE:
        raise InvalidInputError(_("Known items are samples: set `unit` to sample, or `gold_count` to 0."), "gold_count")
    draws = draw_from_runs(queue, runs, by, MAX_ITEMS)
    if not any(draw.items for draw in draws.values()) and not queue.grows:
        raise InvalidInputError(_("No sample matches the query, so the queue would be empty."), "q")
    with transaction.atomic():
        Project.objects.lock(project)
        if project.queues.filter(name=queue.name).exists():
            raise ConflictError(_("There is already a queue {name}.").format(name=repr(queue.name)), "name")
        queue.save()
        queue.runs.set(runs)
        queue.reviewers.set(people)
        gold = load_gold_answers(queue, runs, by, gold_count)
        for run, draw in draws.items():
            store_draw(queue, run, draw, gold)
        detail = {"queue": queue.pk, "q": queue.q[:200], "items": queue.items.count()}
        record_audit_entry(by, "queue.create", queue.name, project=project, **detail)
    notify_topics("queues")
    return queue


def draw_from_runs(queue: Queue, runs: Sequence[Run], by: User, limit: int) -> dict[Run, Draw]:
    steps = {run: find_complete_steps(run) if queue.grows else None for run in runs}
    return draw_items(queue, steps, reader=by.pk, limit=limit)


def find_complete_steps(run: Run) -> list[int]:
    """Returns the ids of the steps that get no more samples: all but the newest of each split and step kind, whose
    numbers count different things. Those too when nothing has arrived for a while; a silent run may go on."""
    rows = run.steps.current().filter(samples__gt=0).order_by("split", "step")
    steps = list(rows.values_list("pk", "split", "step_kind", "step"))
    if timezone.now() - run.seen_at > (MAX_DUMP_DELAY if run.outcome else MAX_PAUSE):
        return [pk for pk, *_place in steps]
    newest = {(split, kind): step for _pk, split, kind, step in steps}
    return [pk for pk, split, kind, step in steps if step < newest[split, kind]]


def load_gold_answers(queue: Queue, runs: Sequence[Run], by: User, count: int) -> dict[str, tuple[int, dict[str, Any]]]:
    """Returns {sample: (step id, {question: value})} of samples that `by` has answered, at most `count`, chosen with
    the queue's seed."""
    if not count:
        return {}
    names = get_question_keys(queue)
    rows = Label.objects.active().filter(run__in=runs, author=by.get_username(), source="human", name__in=names)
    answers: dict[str, tuple[int, dict[str, Any]]] = {}
    for sample, step_id, name, value in rows.order_by("sample").values_list("sample", "step", "name", "value"):
        answers.setdefault(sample, (step_id, {}))[1][name] = value
    chosen = random.Random(queue.seed).sample(sorted(answers), min(count, len(answers)))
    if len(chosen) < count:
        message = _(
            "You have answered {count} samples of these runs with these questions. Answer more, or ask for less."
        )
        raise InvalidInputError(message.format(count=len(answers)), "gold_count")
    return {sample: answers[sample] for sample in chosen}


def get_question_keys(queue: Queue) -> list[str]:
    return list(queue.questions) or [question.key for question in load_queue_rubric(queue).questions]


def load_queue_rubric(queue: Queue) -> RubricVersion:
    """Returns the version of the rubric that the queue asks, without its author."""
    return read_rubric(queue.rubric, has_author=False) if queue.rubric else DEFAULT_RUBRIC


def store_draw(queue: Queue, run: Run, draw: Draw, gold: Mapping[str, tuple[int, dict[str, Any]]]) -> int:
    """Adds the items of a draw, in its order, and known items at random places. Returns how many were added. The caller
    has locked the project, as retention does: samples that it has dropped since the draw are left out."""
    drawn_samples = [item.sample for item in draw.items]
    remaining = set(Sample.objects.filter(pk__among=drawn_samples).values_list("pk", flat=True))
    items = [
        QueueItem(
            queue=queue, run=run, sample=item.sample, step_id=item.step_id, stratum=item.stratum,
            group=item.group if queue.unit == Queue.Unit.GROUP else "", probability=item.probability,
            gold=gold[item.sample][1] if item.sample in gold else None,
        )
        for item in draw.items
        if item.sample in remaining
    ]  # fmt: skip
    chance = random.Random(queue.seed)
    drawn = {item.sample for item in items}
    in_run = set(
        Step.objects.filter(run=run, pk__in={step for step, _answers in gold.values()}).values_list("pk", flat=True)
    )
    for sample, (step_id, answers) in gold.items():
        if sample not in drawn and step_id in in_run:
            item = QueueItem(queue=queue, run=run, sample=sample, step_id=step_id, gold=answers)
            items.insert(chance.randrange(len(items) + 1), item)
    added = add_items(queue, items)
    drawn_by_step = Counter(item.step_id for item in draw.items)
    steps = [
        QueueStep(queue=queue, step_id=step_id, matched=matched, drawn=drawn_by_step[step_id])
        for step_id, matched in draw.by_step.items()
    ]
    QueueStep.objects.bulk_create(steps, batch_size=INSERTED_ROWS, ignore_conflicts=True)
    return added


def add_items(queue: Queue, items: Sequence[QueueItem]) -> int:
    """Adds the items with their slots behind those that the queue has. Samples that it has already are left out.
    Returns how many were added."""
    last = queue.items.aggregate(last=Max("position"))["last"]
    first = 0 if last is None else last + 1
    known = set(queue.items.values_list("sample", flat=True)) if first else set()
    new = [item for item in items if item.sample not in known]
    for position, item in enumerate(new, first):
        item.position = position
    QueueItem.objects.bulk_create(new, batch_size=INSERTED_ROWS)
    slots = [
        QueueSlot(queue=queue, item=item, position=item.position, number=number)
        for item in new
        for number in range(queue.num_reviewers_per_item)
    ]
    QueueSlot.objects.bulk_create(slots, batch_size=INSERTED_ROWS)
    return len(new)


def extend_queue(queue: Queue) -> int:
    """Draws from the steps that were completed since the last draw. Returns the number of new items.

    A run that cannot be searched does not stop the others. Raises its error after them.
    """
    if not queue.grows or queue.closed_at or queue.created_by is None:
        return 0
    added, failures = 0, list[RolloutError]()
    for run in queue.runs.filter(deleted_at=None):
        done = set(queue.drawn_steps.filter(step__run=run).values_list("step", flat=True))
        steps = [pk for pk in find_complete_steps(run) if pk not in done]
        try:
            for start in range(0, len(steps), STEPS_PER_DRAW):
                added += extend_by_steps(queue, run, steps[start : start + STEPS_PER_DRAW])
        except RolloutError as error:
            failures.append(error)
    if added:
        notify_topics("queues")
    if failures:
        raise failures[0]
    return added


def extend_by_steps(queue: Queue, run: Run, steps: Sequence[int]) -> int:
    """Draws from these steps as far as the queue has room. The items of a step do not depend on other steps, see
    `check_selection`. A step whose items do not fit is noted as drawn, without items."""
    assert queue.created_by is not None
    room = MAX_ITEMS - queue.items.count()
    try:
        draw = draw_items(queue, {run: steps}, reader=queue.created_by.pk, limit=room, is_growth=True)[run]
    except TooManyItemsError:
        if len(steps) > 1:
            half = len(steps) // 2
            return sum(extend_by_steps(queue, run, part) for part in (steps[:half], steps[half:]))
        candidates = find_candidates(queue, run, queue.created_by.pk, frozenset(steps), is_growth=True)
        matched = sum(1 for _candidate in candidates)
        draw = Draw(by_step=Counter({steps[0]: matched}))
    draw.by_step.update(dict.fromkeys(steps, 0))  # also steps without a match are done
    with transaction.atomic():
        Project.objects.lock(queue.project)
        locked = Queue.objects.select_for_update(no_key=True).get(pk=queue.pk)
        if locked.drawn_steps.filter(step__in=steps).exists():  # another worker has drawn from them
            return 0
        return store_draw(queue, run, draw, {})


def count_steps_without_room(queue: Queue) -> int:
    """Returns how many later steps have no items, because they did not fit into the queue."""
    room = MAX_ITEMS - queue.items.count()
    return queue.drawn_steps.filter(drawn=0, matched__gt=room).count() if queue.grows else 0


def has_growing_queues() -> bool:
    return Queue.objects.open().filter(grows=True).exists()


def extend_growing_queues() -> int:
    """Extends every open queue that grows. Returns the number of new items. A queue whose query fails is left out."""
    added = 0
    for queue in Queue.objects.open().filter(grows=True).select_related("project", "created_by"):
        try:
            added += extend_queue(queue)
        except RolloutError as error:
            log.warning("The review queue %s was not extended: %s", queue.pk, error)
    return added
