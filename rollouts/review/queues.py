"""Review queues: samples that somebody should look at, each queue a query, gone through in batches of one screen.

A batch does not change while it is gone through: `upto` says which step was the newest when it was opened, no queue of
ours asks for what its own reader does in it, and where somebody's query does (`is:unseen`, `-is:flagged`), the batch is
told by its samples.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db.models import Case, IntegerField, Q, Value, When
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.models import Flag, Run, Sample, Seen
from rollouts.query import TimeBudget, find_samples, is_changeable_term, parse_query

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.models import SampleQuerySet

BATCH: Final = 40
NEWEST: Final = 5  # steps that a queue of the newest steps covers
SECONDS: Final = 2.0  # of a search through texts before what was found so far is the queue
MAX_SEED: Final = 9999
BEGINNING: Final = 10  # characters of a sample's id that name it in a batch


@dataclass(frozen=True, slots=True)
class ReviewQueue:
    """`term` and `ordering` are the query's; `every` step is asked, or the newest."""

    name: str
    title: str
    about: str
    term: str = ""
    ordering: str = "score"
    every: bool = False


RULES: Final = "(is:truncated or is:repetition or is:language-mix or is:empty or no:marker)"
REVIEW_QUEUES: Final = (
    ReviewQueue("low", N_("Low score"), N_("lowest scores of recent steps")),
    ReviewQueue("rules", N_("Rule hits"),
                N_("truncated, repetition, language mix, empty or no answer marker"), RULES),
    ReviewQueue("random", N_("Random"), N_("random sample of recent steps"), ordering="order"),
    ReviewQueue("flagged", N_("Flagged by others"), N_("second opinion"),
                "is:flagged-by-others", "-step", every=True),
    ReviewQueue("pinned", N_("Pinned steps"), N_("samples that a later run can replay"), "is:pinned", every=True),
)  # fmt: skip
QUERY_QUEUE: Final = ReviewQueue("query", N_("Query"), N_("samples that match your query"), every=True)
QUEUE_NAMES: Final = tuple(one.name for one in (*REVIEW_QUEUES, QUERY_QUEUE))


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A queue of one run: of steps up to `upto`; `seed` draws the random one, `q` is the query of `OWN`, `only` are the
    beginnings of the ids of the samples that it held when it was opened, where it is told by them."""

    queue: ReviewQueue
    split: str
    step_kind: str
    upto: int
    seed: int = 1
    q: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewBatch:
    """`number` from 1 of `batches`; `verdicts` {sample: what the person said of it}: `fine`, or keys of reasons, empty
    for a flag without one. `query` finds the whole queue on the page of all steps."""

    query: str
    total: int
    number: int
    samples: list[Sample]
    verdicts: dict[str, list[str]]
    horizon: int | None

    @property
    def batches(self) -> int:
        return max(1, -(-self.total // BATCH))

    @property
    def done(self) -> int:
        return sum(sample.pk in self.verdicts for sample in self.samples)

    @property
    def share(self) -> int:
        """Per cent of it that is done, rounded down."""
        return 100 * self.done // max(1, len(self.samples))


def find_queue(name: str) -> ReviewQueue:
    """The queue of this name, the first for any other."""
    return next((one for one in (*REVIEW_QUEUES, QUERY_QUEUE) if one.name == name), REVIEW_QUEUES[0])


def is_changeable_queue(queue: ReviewQueue, q: str) -> bool:
    """Whether a queue asks for what changes while its samples are judged, as only a query of somebody's own does."""
    try:
        return queue is QUERY_QUEUE and any(map(is_changeable_term, parse_query(q).leaves()))
    except InvalidInputError:
        return False


def find_newest_step(run: Run, split: str, step_kind: str) -> int:
    """The newest step with samples; 0 where there is none."""
    return next(iter(newest(run, split, step_kind)), 0)


def newest(run: Run, split: str, step_kind: str, upto: int | None = None) -> list[int]:
    """The newest steps with samples, newest first."""
    steps = run.steps.current().filter(split=split, step_kind=step_kind, samples__gt=0)
    there = steps if upto is None else steps.filter(step__lte=upto)
    return list(there.order_by("-step").values_list("step", flat=True)[:NEWEST])


def query(run: Run, asked: QueueRequest) -> str:
    """The queue in the query language."""
    if asked.queue is QUERY_QUEUE:
        own = asked.q.strip()
        return f"step:..{asked.upto} ({own})" if own else f"step:..{asked.upto}"
    if asked.queue.every:
        return f"step:..{asked.upto} {asked.queue.term}"
    first = next(iter(newest(run, asked.split, asked.step_kind, asked.upto)[::-1]), asked.upto)
    return f"step:{first}..{asked.upto} {asked.queue.term}".strip()


def load_review_batch(run: Run, asked: QueueRequest, by: User, number: int | None = None) -> ReviewBatch:
    """One batch of a queue, the first in which something is left to do unless a `number` is given. Raises BadInput for
    a query that cannot be read, StorageUnavailable."""
    parse_query(asked.q)
    q = query(run, asked)
    if asked.only:
        samples = named_by(run, asked.only)
        return ReviewBatch(q, len(samples), 1, samples, verdicts(run, by, [one.pk for one in samples]), None)
    found = find_samples(
        run,
        split=asked.split,
        step_kind=asked.step_kind,
        q=q,
        ordering=asked.queue.ordering,
        patience=TimeBudget(SECONDS),
        reader=by.pk,
    )
    rows = drawn(found.samples, asked.seed) if asked.queue.name == "random" else found.samples
    total = found.total
    number = first_open(run, rows, by) if number is None else min(max(1, number), max(1, -(-total // BATCH)))
    samples = list(rows[(number - 1) * BATCH : number * BATCH])
    return ReviewBatch(q, total, number, samples, verdicts(run, by, [one.pk for one in samples]), found.horizon)


def list_id_prefixes(samples: Iterable[Sample]) -> tuple[str, ...]:
    """By which a batch is told, see `Asked.only`."""
    return tuple(one.pk[:BEGINNING] for one in samples)


def named_by(run: Run, only: Sequence[str]) -> list[Sample]:
    """The samples of the run whose ids begin so, in this order, at most a batch of them."""
    begun = [one.lower() for one in only[:BATCH] if len(one) == BEGINNING and one.isascii() and one.isalnum()]
    if not begun:
        return []
    which = Q(*(Q(pk__startswith=one) for one in begun), _connector=Q.OR)
    rows = Sample.objects.filter(which, step__run=run).select_related("step")[:BATCH]
    return sorted(rows, key=lambda one: begun.index(one.pk[:BEGINNING]))


def drawn(samples: SampleQuerySet, seed: int) -> SampleQuerySet:
    """In an order that the seed decides: ids are hashes, so those that follow any point are a random draw."""
    point = base64.b32encode(hashlib.sha256(str(seed).encode()).digest()).decode().lower()[:52]
    before = Case(When(pk__gte=point, then=Value(0)), default=Value(1), output_field=IntegerField())
    return samples.order_by(before, "pk")


def first_open(run: Run, rows: SampleQuerySet, by: User) -> int:
    """The number of the first batch with a sample that the person has said nothing of; of the last where there is
    none."""
    said = verdicts(run, by)
    ids = list(rows.values_list("pk", flat=True)[: len(said) + 1])  # among which one is left, if any is
    return next((at for at, pk in enumerate(ids) if pk not in said), max(0, len(ids) - 1)) // BATCH + 1


def verdicts(run: Run, by: User, ids: Sequence[str] | None = None) -> dict[str, list[str]]:
    """What the person said of these samples, see `Batch`; of all in the run by default."""
    which = {"user": by, "run": run} | ({} if ids is None else {"sample__in": ids})
    found: dict[str, list[str]] = defaultdict(list)
    for sample in Seen.objects.filter(fine=True, **which).values_list("sample", flat=True):
        found[sample].append("fine")
    flags = Flag.objects.filter(withdrawn_at=None, **which).order_by("created_at", "pk")
    for sample, reason in flags.values_list("sample", "reason"):
        found[sample].append(reason)
    return dict(found)
