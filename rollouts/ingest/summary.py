"""What became of the dumps of a run: how many rows were indexed and rejected, and why."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, QuerySet, Sum

from rollouts.ingest.launches import find_attempt
from rollouts.models import Dump, Run

MAX_PROBLEMS = 60  # different reasons
MAX_READ_DUMPS = 500  # the newest with rejected rows, whose reasons are read
MAX_LISTED_DUMPS = 100
WAITING_STATES = (Dump.State.RECEIVED, Dump.State.INDEXING)
FAILED_STATES = (Dump.State.FAILED, Dump.State.UNSAFE)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was rejected: its line in the dump, from 1."""

    source: str
    step: int | None
    line: int
    reason: str

    @property
    def file(self) -> str:
        """The file with the row; "" for a row of `log_samples`."""
        return "" if self.source.startswith("call:") else self.source


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Counts of dumps (`waiting`, `failed`) and of rows (`rows` indexed, `rejected`), with a row for each reason.

    `partial` are dumps with rejected rows. Of `failed` and `partial` only the newest are listed. Superseded versions of
    a file do not count.
    """

    waiting: int
    rows: int
    rejected: int
    problems: list[RejectedRow] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    partial: list[dict[str, Any]] = field(default_factory=list)


def summarize_ingest(run: Run, source: str = "", attempt_key: str = "") -> IngestSummary:
    """Counts the dumps whose source starts with `source`, of the attempt of `attempt_key` if one is given."""
    dumps = run.dumps.filter(source__startswith=source).exclude(state=Dump.State.SUPERSEDED)
    if attempt_key:
        dumps = dumps.filter(attempt=find_attempt(run, attempt_key))
    by_state: Counter[str] = Counter()
    rows = 0
    for state, count, indexed in dumps.order_by().values_list("state").annotate(Count("pk"), Sum("rows")):
        by_state[state] = count
        rows += indexed if state == Dump.State.INDEXED else 0
    failed = dumps.filter(state__in=FAILED_STATES).order_by("-pk").values("source", "message")
    partial = dumps.filter(rejected__gt=0).order_by("-pk")
    return IngestSummary(
        waiting=sum(by_state[state] for state in WAITING_STATES),
        rows=rows,
        rejected=count_rejected_rows(dumps),
        problems=_list_row_problems(dumps),
        failed=[dict(dump) for dump in failed[:MAX_LISTED_DUMPS]],
        partial=[dict(dump) for dump in partial.values("source", "rejected")[:MAX_LISTED_DUMPS]],
    )


def list_row_problems(run: Run) -> list[RejectedRow]:
    """Returns a row for each reason, from the newest dumps with rejected rows."""
    return _list_row_problems(run.dumps.exclude(state=Dump.State.SUPERSEDED))


def count_rejected_rows(dumps: QuerySet[Dump]) -> int:
    """Counts them without superseded versions of a file."""
    current = dumps.filter(rejected__gt=0).exclude(state=Dump.State.SUPERSEDED)
    return current.aggregate(total=Sum("rejected"))["total"] or 0


def _list_row_problems(dumps: QuerySet[Dump]) -> list[RejectedRow]:
    rows: dict[str, RejectedRow] = {}
    for dump in dumps.filter(rejected__gt=0).order_by("-pk").only("source", "step", "problems")[:MAX_READ_DUMPS]:
        for line, reason in dump.problems:
            if len(rows) < MAX_PROBLEMS:
                rows.setdefault(reason, RejectedRow(dump.source, dump.step, line, reason))
    return list(rows.values())
