"""Quick lists: samples to review by oneself. Each list is a query, reviewed in batches of one screen.

A batch does not change while the user reviews it. `max_step` is the newest step when the batch was opened. The queries
of the built-in lists do not depend on the user's own decisions. If the user's query does (`is:unseen`, `-is:flagged`),
the batch is identified by the ids of its samples.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Case, IntegerField, Q, Value, When
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.models import FLAG_NAME, REVIEW_NAME, Label, Run, Sample
from rollouts.query import TimeBudget, find_samples, is_changeable_term, parse_query

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.models import SampleQuerySet

BATCH_SIZE: Final = 40  # samples
RECENT_STEPS: Final = 5  # steps in a list of recent steps
MAX_SEARCH_SECONDS: Final = 2.0  # after this time, the list is what a text search has found so far
MAX_SEED: Final = 9999
ID_PREFIX_CHARS: Final = 10  # characters of a sample's id that identify it in a batch


@dataclass(frozen=True, slots=True)
class QuickList:
    """The `term` and the `ordering` of a query, over all steps or the most recent ones."""

    name: str
    title: str
    description: str
    term: str = ""
    ordering: str = "score"
    covers_all_steps: bool = False


AUTOMATIC_CHECKS_QUERY: Final = (
    "(is:truncated or is:repetition or is:language-mix or is:garbled or is:empty or no:marker)"
)
QUICK_LISTS: Final = (
    QuickList("low", N_("Low score"), N_("lowest scores of recent steps")),
    QuickList("mismatch", N_("Answer mismatch"),
                N_("counted as correct, but the last answer in the text is not the ground truth"),
                "is:answer-mismatch", "-step", covers_all_steps=True),
    QuickList("rules", N_("Automatic checks"),
                N_("truncated, repetition, language mix, garbled, empty or no answer marker"), AUTOMATIC_CHECKS_QUERY),
    QuickList("random", N_("Random"), N_("random sample of recent steps"), ordering="order"),
    QuickList("flagged", N_("Flagged by others"), N_("second opinion"),
                "is:flagged-by-others", "-step", covers_all_steps=True),
    QuickList("pinned", N_("Pinned steps"), N_("samples that a later run can replay"), "is:pinned",
                covers_all_steps=True),
)  # fmt: skip
QUERY_LIST: Final = QuickList("query", N_("Query"), N_("samples that match your query"), covers_all_steps=True)
QUICK_LIST_NAMES: Final = tuple(quick_list.name for quick_list in (*QUICK_LISTS, QUERY_LIST))


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A quick list of one run, with steps up to `max_step`. `seed` is for the random one, `q` for `QUERY_LIST`.
    `id_prefixes` are set if the batch is identified by its samples."""

    quick_list: QuickList
    split: str
    step_kind: str
    max_step: int
    seed: int = 1
    q: str = ""
    id_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewBatch:
    """One batch of a list: `number`, from 1, of `batches`. `decisions` is {sample id: the user's review decisions}:
    `fine` for OK, `cannot-judge`, or the reason keys of flags (empty without a reason). `query` finds the complete
    list on the page of all steps. `cursor` is the oldest searched step if the search ran out of time."""

    query: str
    total: int
    number: int
    samples: list[Sample]
    decisions: dict[str, list[str]]
    cursor: int | None

    @property
    def batches(self) -> int:
        return max(1, -(-self.total // BATCH_SIZE))

    @property
    def reviewed_count(self) -> int:
        return sum(sample.pk in self.decisions for sample in self.samples)

    @property
    def reviewed_percent(self) -> int:
        """Rounded down."""
        return 100 * self.reviewed_count // max(1, len(self.samples))


def find_quick_list(name: str) -> QuickList:
    """Returns the list with this name, or the first one."""
    return next((row for row in (*QUICK_LISTS, QUERY_LIST) if row.name == name), QUICK_LISTS[0])


def depends_on_decisions(quick_list: QuickList, q: str) -> bool:
    """Returns whether review decisions change the list. Only the query of a user can do this."""
    try:
        return quick_list is QUERY_LIST and any(map(is_changeable_term, parse_query(q).leaves))
    except InvalidInputError:
        return False


def find_newest_step(run: Run, split: str, step_kind: str) -> int:
    """Returns the newest step with samples, 0 if there is none."""
    return next(iter(find_recent_steps(run, split, step_kind)), 0)


def find_recent_steps(run: Run, split: str, step_kind: str, max_step: int | None = None) -> list[int]:
    """Returns the most recent steps with samples, newest first."""
    steps = run.steps.current().filter(split=split, step_kind=step_kind, samples__gt=0)
    matching = steps if max_step is None else steps.filter(step__lte=max_step)
    return list(matching.order_by("-step").values_list("step", flat=True).distinct()[:RECENT_STEPS])


def build_query(run: Run, request: BatchRequest) -> str:
    """Returns the list's query in the query language."""
    if request.quick_list is QUERY_LIST:
        own = request.q.strip()
        return f"step:..{request.max_step} ({own})" if own else f"step:..{request.max_step}"
    if request.quick_list.covers_all_steps:
        return f"step:..{request.max_step} {request.quick_list.term}"
    recent_steps = find_recent_steps(run, request.split, request.step_kind, request.max_step) or [request.max_step]
    return f"step:{recent_steps[-1]}..{request.max_step} {request.quick_list.term}".strip()


def load_review_batch(run: Run, request: BatchRequest, by: User, number: int | None = None) -> ReviewBatch:
    """Returns one batch of a list: the `number`, or the first batch with a sample that the user has not reviewed.
    Raises InvalidInputError if the query is not valid, and StorageUnavailableError."""
    parse_query(request.q)
    q, quick_list, cursor = build_query(run, request), request.quick_list, None
    if request.id_prefixes:
        samples = find_samples_by_prefix(run, request.id_prefixes)
        total, number = len(samples), 1
    else:
        scope: dict[str, Any] = {"split": request.split, "step_kind": request.step_kind}
        budget = TimeBudget(MAX_SEARCH_SECONDS)
        result = find_samples(run, **scope, q=q, ordering=quick_list.ordering, time_budget=budget, reader=by.pk)
        rows = shuffle(result.samples, request.seed) if quick_list.name == "random" else result.samples
        total, cursor = result.total, result.cursor
        last = max(1, -(-total // BATCH_SIZE))
        number = find_first_open_batch(run, rows, by) if number is None else min(max(1, number), last)
        end = number * BATCH_SIZE
        rows = rows if quick_list.name == "random" else result.find_first_samples(end)
        samples = list(rows[end - BATCH_SIZE : end])
    decisions = load_decisions(run, by, [sample.pk for sample in samples])
    return ReviewBatch(q, total, number, samples, decisions, cursor)


def list_id_prefixes(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Returns the id prefixes that identify a batch, see `BatchRequest.id_prefixes`."""
    return tuple(sample.pk[:ID_PREFIX_CHARS] for sample in samples)


def find_samples_by_prefix(run: Run, id_prefixes: Sequence[str]) -> list[Sample]:
    """Returns the run's samples whose ids start with these prefixes, in this order, at most one batch."""
    valid = (prefix for prefix in id_prefixes[:BATCH_SIZE] if len(prefix) == ID_PREFIX_CHARS and prefix.isascii())
    prefixes = [prefix.lower() for prefix in valid if prefix.isalnum()]
    if not prefixes:
        return []
    matching = Q(*(Q(pk__startswith=prefix) for prefix in prefixes), _connector=Q.OR)
    rows = Sample.objects.filter(matching, step__run=run).select_related("step")[:BATCH_SIZE]
    return sorted(rows, key=lambda sample: prefixes.index(sample.pk[:ID_PREFIX_CHARS]))


def shuffle(samples: SampleQuerySet, seed: int) -> SampleQuerySet:
    """Returns the samples in random order: ids are hashes, so the ids after a random start are a random selection."""
    start = base64.b32encode(hashlib.sha256(str(seed).encode()).digest()).decode().lower()[:52]
    position = Case(When(pk__gte=start, then=Value(0)), default=Value(1), output_field=IntegerField())
    return samples.order_by(position, "pk")


def find_first_open_batch(run: Run, rows: SampleQuerySet, by: User) -> int:
    """Returns the number of the first batch with a sample that the user has not reviewed, or of the last batch."""
    decisions = load_decisions(run, by)
    ids = list(rows.values_list("pk", flat=True)[: len(decisions) + 1])  # contains an open sample if there is one
    last = max(0, len(ids) - 1)
    return next((position for position, pk in enumerate(ids) if pk not in decisions), last) // BATCH_SIZE + 1


def load_decisions(run: Run, by: User, ids: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Returns the user's review decisions on these samples, see `ReviewBatch`. Default: on all samples of the run.
    Labels of other people that the user imported are not theirs."""
    filters = {"user": by, "author": by.get_username(), "run": run} | ({} if ids is None else {"sample__in": ids})
    decisions: dict[str, list[str]] = defaultdict(list)
    asked = Q(name=REVIEW_NAME) | Q(name__startswith=FLAG_NAME)
    for label in Label.objects.active().filter(asked, **filters).order_by("created_at", "pk"):
        value = "fine" if label.value == "ok" else label.value
        decisions[label.sample].append(value if label.name == REVIEW_NAME else label.reason)
    return dict(decisions)
