"""The samples of a query that a re-score has no result for, in pages of bounded size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from django.db.models import Q
from django.utils.translation import gettext as _

from rollouts import samples
from rollouts.errors import InvalidInputError
from rollouts.models import Rescore, Run, Sample, Step
from rollouts.query import QueryResult, find_samples
from rollouts.samples import RescoreResult

MAX_SECONDS: Final = 5.0  # of one page, so that a search over steps that are done ends
BODIES_AT_ONCE: Final = 50
MAX_PAGE_CHARS: Final = 8_000_000
MAX_ID: Final = 2**62  # behind the last sample of a step
LEFT_OUT: Final = (
    "prompt_ids", "response_ids", "response_mask", "logprobs", "ref_logprobs", "advantages", "labels", "segments",
    "rescores",
)  # fmt: skip

Cursor = tuple[int, int, int]  # step id, dump id, ordinal: the last sample that was looked at


@dataclass(frozen=True, slots=True)
class PendingSamples:
    """`samples` are complete. `done` and `failed` samples before the cursor have a result already. The next page starts
    at `cursor`; None if there is none."""

    samples: list[dict[str, Any]]
    done: int
    failed: int
    cursor: str | None


def find_pending_samples(
    rescore: Rescore, scope: dict[str, Any], q: str, *, limit: int, cursor: str = "", retry: bool = False
) -> PendingSamples:
    """`scope` has the arguments of `find_samples` without `q`. Samples are in the order of steps and dumps. With
    `retry`, those with an error are pending too. Raises InvalidInputError."""
    place = parse_cursor(cursor)
    pages = PageReader(rescore, scope, q, limit, retry)
    if place is None:
        find_samples(**scope, q=q)  # a key that no sample has is an error here; below, a step may lack it
    started = monotonic()
    steps = list_steps(scope, place)
    for at, pk in enumerate(steps):
        step = Step.objects.select_related("attempt").filter(pk=pk).first()
        if step is None:  # deleted a moment ago
            continue
        end = pages.read_step(step, place if place and place[0] == step.pk else None)
        if end:
            return pages.finish(end)
        if monotonic() - started > MAX_SECONDS and at + 1 < len(steps):
            return pages.finish((step.pk, MAX_ID, 0))
    return pages.finish(None)


def parse_cursor(text: str) -> Cursor | None:
    if not text:
        return None
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise InvalidInputError(_("The cursor is not one of this server."), "cursor")
    return int(parts[0]), int(parts[1]), int(parts[2])


def find_cursor_step(run: Run, cursor: str) -> Step | None:
    """Returns the step in which the page before ended; None for the first page, or if it is gone. Raises
    InvalidInputError."""
    place = parse_cursor(cursor)
    return Step.objects.filter(run=run, pk=place[0]).first() if place else None


def list_steps(scope: dict[str, Any], place: Cursor | None) -> list[int]:
    """Returns the ids of the steps of the scope from the cursor on. A step that is gone ends nothing."""
    fields = {name: scope[name] for name in ("split", "step", "step_kind") if scope.get(name) not in (None, "")}
    run: Run = scope["run"]
    steps = Step.objects.filter(run=run, samples__gt=0, **fields)
    attempt = scope.get("attempt", "")
    if not attempt:
        steps = steps.current()
    elif attempt != "all":
        steps = steps.filter(attempt__key=attempt)
    if place:
        steps = steps.filter(pk__gte=place[0])
    return list(steps.order_by("pk").values_list("pk", flat=True))


@dataclass
class PageReader:
    """Reads the pending samples of one page. It is full at `limit` samples, or when their texts are long."""

    rescore: Rescore
    scope: dict[str, Any]
    q: str
    limit: int
    retry: bool

    def __post_init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.taken = self.chars = self.done = self.failed = 0

    @property
    def is_full(self) -> bool:
        return self.taken >= self.limit or self.chars >= MAX_PAGE_CHARS

    def finish(self, end: Cursor | None) -> PendingSamples:
        return PendingSamples(self.found, self.done, self.failed, ".".join(map(str, end)) if end else None)

    def read_step(self, step: Step, place: Cursor | None) -> Cursor | None:
        """Reads until the page is full, and returns where it ends; None at the end of the step."""
        matches = self.find_matches(step)
        results = samples.load_results(step, self.rescore)
        while True:
            rows = matches.samples.order_by("dump_id", "ordinal", "pk")
            if place:
                rows = rows.filter(Q(dump_id__gt=place[1]) | Q(dump_id=place[1], ordinal__gt=place[2]))
            page = list(samples.prefetch_step_relations(rows)[:BODIES_AT_ONCE])
            last = self.take_pending(page, results)
            if last and self.is_full:
                return step.pk, last.dump_id, last.ordinal
            if len(page) < BODIES_AT_ONCE:
                return None
            place = (step.pk, page[-1].dump_id, page[-1].ordinal)

    def take_pending(self, page: Sequence[Sample], results: Mapping[str, RescoreResult]) -> Sample | None:
        """Adds the pending samples that there is room for, and counts the results before the next one. Returns the last
        sample that was looked at."""
        taken: list[Sample] = []
        last = None
        for row in page:
            if not self.count_result(results.get(row.pk)):
                if self.taken + len(taken) >= self.limit:
                    break
                taken.append(row)
            last = row
        self.add(taken)
        return last

    def add(self, rows: Sequence[Sample]) -> None:
        """Adds the texts, without token arrays and labels. A sample without a body is left out."""
        bodies = samples.load_bodies(rows) if rows else {}
        for row in rows:
            if row.pk in bodies:
                full = samples.serialize_full_sample(row, bodies[row.pk], ())
                self.found.append({name: value for name, value in full.items() if name not in LEFT_OUT})
                self.chars += len(full["prompt"] or "") + len(full["response"] or "") + len(repr(full["extras"]))
        self.taken += len(rows)

    def find_matches(self, step: Step) -> QueryResult:
        """A key that no sample of the step has is false there."""
        own = {"split": step.split, "step": step.step, "step_kind": step.step_kind, "attempt": step.attempt.key}
        return find_samples(**{**self.scope, **own}, q=self.q, ordering="order", may_lack_keys=True)

    def count_result(self, result: RescoreResult | None) -> bool:
        """Counts the result of a sample, and returns whether it has one that counts."""
        if result is None or (self.retry and result.value is None):
            return False
        self.failed += result.value is None
        self.done += result.value is not None
        return True
