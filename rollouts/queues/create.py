"""Creates queues and stores what is drawn for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError
from rollouts.labels import DEFAULT_RUBRIC, RubricVersion, read_rubric
from rollouts.lib import parse_integer
from rollouts.live import notify_topics
from rollouts.models import Label, Project, Queue, QueueItem, QueueSlot, QueueStep, Run, Sample, Step
from rollouts.projects import record_audit_entry
from rollouts.queues.draw import Draw, DrawnItem, draw_items
from rollouts.queues.settings import MAX_ITEMS, build_queue

if TYPE_CHECKING:
    from django.contrib.auth.models import User

INSERTED_ROWS: Final = 500
MAX_DUMP_DELAY: Final = timedelta(minutes=15)  # after the end of a run its last dumps may still be on their way
MAX_PAUSE: Final = timedelta(days=7)  # a run without an end and without any update for so long does not go on


@dataclass(frozen=True, slots=True)
class QueuePreview:
    """What `create_queue` would draw: items of each stratum, and the samples or groups that match."""

    items: list[DrawnItem]
    matched: Counter[str]
    drawn: Counter[str]
    total: int


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
