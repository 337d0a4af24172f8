"""How far queues are: for everybody, for one person, and for each of the people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

from django.contrib.auth.models import User
from django.core.cache import cache
from django.db.models import Count, Exists, Max, Min, OuterRef, Q
from django.utils import timezone

from rollouts.models import Membership, Queue, QueueDraft, QueueSlot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollouts.models import ProjectQuerySet, QueueSlotQuerySet

MIN_PACE_ANSWERS: Final = 10  # answers of a person before their pace is known
PACE_ANSWERS: Final = 50  # the last answers from which the pace is computed
FORECAST_DAYS: Final = 3
MAX_EXACT_LEFT: Final = 500
COUNTED_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """`slots` are answers that are wanted, `done` those that are there; `complete` items have all of theirs, `begun`
    some. `held`: slots that people have open now."""

    items: int
    slots: int
    done: int
    complete: int
    begun: int
    held: int

    @property
    def percent(self) -> int:
        """Rounded down."""
        return 100 * self.done // max(1, self.slots)

    @property
    def is_complete(self) -> bool:
        return self.slots > 0 and self.done == self.slots


@dataclass(frozen=True, slots=True)
class OwnProgress:
    """`done` answers of the person, `left` items that they can still take. `pace`: median seconds for an answer, None
    before the tenth."""

    done: int
    left: int
    skipped: int
    pace: float | None
    last_at: datetime | None

    @property
    def total(self) -> int:
        return self.done + self.left

    @property
    def seconds_left(self) -> float | None:
        return None if self.pace is None else self.pace * self.left


@dataclass(frozen=True, slots=True)
class PersonProgress:
    user: User
    done: int
    held: int
    skipped: int
    per_day: float
    pace: float | None
    last_at: datetime | None


def list_open_queues(user: User, projects: ProjectQuerySet) -> list[Queue]:
    """Returns the open queues of these projects that accept the user: first the one that they answered last, then by
    due date."""
    rows = Queue.objects.open().filter(project__in=projects).select_related("project", "rubric")
    queues = [queue for queue in rows.prefetch_related("reviewers") if queue.accepts(user)]
    answered = QueueSlot.objects.filter(queue__in=queues, user=user).exclude(done_at=None)
    last = answered.order_by("-done_at").values_list("queue", flat=True).first()
    far = timezone.now() + timedelta(days=36500)
    return sorted(queues, key=lambda queue: (queue.pk != last, queue.due_at or far, queue.pk))


def has_items_to_answer(user: User, projects: ProjectQuerySet) -> bool:
    """Whether an open queue that names the user, or whose project they annotate, has an item for them. Those who lead
    a project may answer too, but they have other work."""
    now = timezone.now()
    return any(
        queue.slots.free_for(user, now).exists()
        for queue in list_open_queues(user, projects)
        if user in queue.reviewers.all() or queue.project.role_of(user) == Membership.Role.ANNOTATOR
    )


def load_progress(queues: Collection[Queue]) -> dict[int, QueueProgress]:
    """Returns {queue id: its progress}, with one query."""
    is_done = ~Q(done_at=None)
    counts = {
        "slots": Count("pk"),
        "done": Count("pk", filter=is_done),
        "held": Count("pk", filter=Q(done_at=None, reserved_until__gt=timezone.now())),
        "items": Count("item", distinct=True),
        "open": Count("item", distinct=True, filter=Q(done_at=None)),
        "touched": Count("item", distinct=True, filter=is_done),
    }
    rows = QueueSlot.objects.filter(queue__in=[queue.pk for queue in queues]).order_by().values("queue")
    progress = {queue.pk: QueueProgress(0, 0, 0, 0, 0, 0) for queue in queues}
    for row in cast("Iterable[dict[str, Any]]", rows.annotate(**counts)):
        complete = row["items"] - row["open"]
        values = (row["items"], row["slots"], row["done"], complete, row["touched"] - complete, row["held"])
        progress[row["queue"]] = QueueProgress(*values)
    return progress


def load_own_progress(queue: Queue, user: User) -> OwnProgress:
    """Returns how far one person is."""
    own = queue.slots.filter(user=user).exclude(done_at=None)
    done = own.aggregate(count=Count("pk"), last=Max("done_at"))
    skipped = QueueDraft.objects.filter(item__queue=queue, user=user).exclude(skipped_at=None).count()
    left = count_left(queue, user, done["count"] + skipped)
    return OwnProgress(done["count"], left, skipped, compute_pace(list_seconds(own)), done["last"])


def count_left(queue: Queue, user: User, passed: int) -> int:
    """Returns the number of items that the user can still take. `passed`: those that they answered or skipped.

    Many items are counted once in `COUNTED_SECONDS`: what others did since then is missing, one's own is not.
    """
    key = f"queue-left-{queue.pk}-{user.pk}"
    if known := cache.get(key):
        left_then, passed_then = known
        return max(0, int(left_then) - (passed - int(passed_then)))
    now = timezone.now()
    left = count_open(queue) - count_open_passed(queue, user) - count_held_by_others(queue, user, now)
    if left > MAX_EXACT_LEFT:
        cache.set(key, (left, passed), COUNTED_SECONDS)
        return left
    return queue.slots.free_for(user, now).order_by().values("item").distinct().count()


def count_open(queue: Queue) -> int:
    """Returns the number of items that lack an answer. Many are counted once in `COUNTED_SECONDS`."""
    key = f"queue-open-{queue.pk}"
    if (known := cache.get(key)) is not None:
        return int(known)
    count = queue.slots.available().unanswered().order_by().values("item").distinct().count()
    if count > MAX_EXACT_LEFT:
        cache.set(key, count, COUNTED_SECONDS)
    return count


def count_open_passed(queue: Queue, user: User) -> int:
    """Returns the number of items that lack an answer and that the user has answered or skipped."""
    is_open = Exists(QueueSlot.objects.available().unanswered().filter(item=OuterRef("item")))
    answered = queue.slots.filter(is_open, user=user).exclude(done_at=None).count()
    skipped = QueueDraft.objects.filter(is_open, item__queue=queue, user=user).exclude(skipped_at=None).count()
    return answered + skipped


def count_held_by_others(queue: Queue, user: User, now: datetime) -> int:
    """Returns the number of items of which others hold all slots that lack an answer, and that the user has neither
    answered nor skipped."""
    held = queue.slots.available().unanswered().filter(reserved_until__gte=now).exclude(user=user)
    is_free = Exists(queue.slots.free_for(user, now).filter(item=OuterRef("item")))
    answered = Exists(queue.slots.filter(item=OuterRef("item"), user=user, done_at__isnull=False))
    skipped = Exists(QueueDraft.objects.filter(item=OuterRef("item"), user=user, skipped_at__isnull=False))
    return held.filter(~is_free, ~answered, ~skipped).order_by().values("item").distinct().count()


def list_seconds(slots: QueueSlotQuerySet) -> list[float]:
    """Returns the times of the newest answers."""
    newest = slots.exclude(seconds=None).order_by("-done_at").values_list("seconds", flat=True)
    return [value for value in newest[:PACE_ANSWERS] if value is not None]


def compute_pace(seconds: Sequence[float]) -> float | None:
    return median(seconds) if len(seconds) >= MIN_PACE_ANSWERS else None


def load_people_progress(queue: Queue) -> list[PersonProgress]:
    """Returns the progress of everybody who has answered, holds or skipped an item, and of all named reviewers, by
    name. The number per day is that of the last days, as in `forecast_end`."""
    now = timezone.now()
    people = {user.pk: user for user in queue.reviewers.all()}
    skipped: Counter[int] = Counter()
    drafts = QueueDraft.objects.filter(item__queue=queue).exclude(skipped_at=None)
    skipped.update(dict(drafts.order_by().values_list("user").annotate(Count("pk"))))
    since = now - timedelta(days=FORECAST_DAYS)
    counts = {
        "done": Count("pk", filter=~Q(done_at=None)),
        "held": Count("pk", filter=Q(done_at=None, reserved_until__gt=now)),
        "recent": Count("pk", filter=Q(done_at__gt=since)),
        "first": Min("done_at", filter=Q(done_at__gt=since)),
        "last": Max("done_at"),
    }
    counted = queue.slots.exclude(user=None).order_by().values("user").annotate(**counts)
    rows = {row["user"]: row for row in cast("Iterable[dict[str, Any]]", counted)}
    firsts = [row["first"] for row in rows.values() if row["first"]]
    days = count_days(min(firsts, default=now), now)
    missing = {*rows, *skipped} - set(people)
    people |= {user.pk: user for user in User.objects.filter(pk__in=missing)}
    empty: dict[str, Any] = {"done": 0, "held": 0, "recent": 0, "last": None}
    progress = []
    for user in sorted(people.values(), key=lambda user: user.get_username()):
        row = rows.get(user.pk, empty)
        pace = compute_pace(list_seconds(queue.slots.filter(user=user).exclude(done_at=None)))
        per_day = row["recent"] / days
        values = (row["done"], row["held"], skipped[user.pk], per_day, pace, row["last"])
        progress.append(PersonProgress(user, *values))
    return progress


def forecast_end(queue: Queue, progress: QueueProgress, now: datetime) -> datetime | None:
    """Returns when the queue will be complete, at the speed of the last days; None if nobody has answered in them."""
    since = now - timedelta(days=FORECAST_DAYS)
    recent = queue.slots.filter(done_at__gt=since).aggregate(count=Count("pk"), first=Min("done_at"))
    if not recent["count"] or progress.is_complete:
        return None
    left = progress.slots - progress.done
    return now + timedelta(days=left * count_days(recent["first"], now) / recent["count"])


def count_days(first: datetime, now: datetime) -> float:
    """Returns the days between the two times, at least 1: less would extrapolate the speed of the first hour."""
    return max(1.0, (now - first) / timedelta(days=1))
