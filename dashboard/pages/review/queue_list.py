"""The list of a review queue: why each sample is in it, and what was said of it."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from dashboard.pages.common import SampleRow, build_sample_rows
from rollouts.flags import load_flags
from rollouts.models import Flag, Run
from rollouts.review import QueueRequest, ReviewBatch


@dataclass(frozen=True, slots=True)
class QueueRow:
    """`why` it is in the queue; `said` of it by the person, empty before."""

    one: SampleRow
    why: str
    said: str


def build_queue_rows(run: Run, asked: QueueRequest, batch: ReviewBatch | None, reader: int | None) -> list[QueueRow]:
    """As the person `reader` sees them: a flag of one's own puts nothing into a queue."""
    if batch is None:
        return []
    names = {str(one["key"]): _(str(one["name"])) for one in run.project.reasons}
    listed = build_sample_rows(batch.samples)
    flagged = load_flags([one.pk for one in batch.samples]) if asked.queue.name == "flagged" else {}
    marks = {pk: [flag for flag in found if flag.user_id != reader] for pk, found in flagged.items()}
    return [
        QueueRow(
            one,
            explain_queue_entry(asked, one, marks.get(one.sample.pk, []), names),
            ", ".join(format_decision(word, names) for word in batch.decisions.get(one.sample.pk, [])),
        )
        for one in listed
    ]


def explain_queue_entry(asked: QueueRequest, one: SampleRow, marks: list[Flag], names: dict[str, str]) -> str:
    match asked.queue.name:
        case "low":
            return _("low score")
        case "rules":
            return ", ".join(full for kind, full, _mark in one.marks() if kind != "flag")
        case "random":
            return _("random sample")
        case "flagged":
            told = [(flag.user.get_username(), flag.reason, flag.label) for flag in marks]
            return ", ".join(f"{who}: {names.get(reason, reason) or _(label)}" for who, reason, label in told)
        case "pinned":
            return _("from a pinned step")
        case _name:
            return _("matches your query")


def format_decision(word: str, names: dict[str, str]) -> str:
    """A verdict: `fine`, or the name of a reason."""
    if word == "fine":
        return f"✓ {_('OK')}"
    return f"⚑ {names.get(word, word)}".strip()


def find_next_sample(batch: ReviewBatch | None, pk: str) -> str:
    """The sample after this one that nothing was said of, from the beginning again after the last; empty when there is
    none left."""
    ids = [sample.pk for sample in batch.samples] if batch else []
    at = ids.index(pk) + 1 if pk in ids else 0
    todo = [one for one in (*ids[at:], *ids[:at]) if batch and one not in batch.decisions and one != pk]
    return todo[0] if todo else ""
