"""The rows of a quick list: why a sample is in it, and the user's decisions."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from dashboard.pages.common import SampleRow, build_sample_rows
from rollouts.flags import load_flags
from rollouts.models import BlindQueues, Label, Run
from rollouts.review import BatchRequest, ReviewBatch


@dataclass(frozen=True, slots=True)
class BatchRow:
    """`reason`: why the sample is in the list; `decisions` of the user, empty before the first."""

    head: SampleRow
    reason: str
    decisions: str


def build_batch_rows(run: Run, request: BatchRequest, batch: ReviewBatch | None, blind: BlindQueues) -> list[BatchRow]:
    """Own flags are no reason to be in a list."""
    if batch is None:
        return []
    names = {str(reason["key"]): _(str(reason["name"])) for reason in run.project.reasons}
    flags = (
        load_flags([sample.pk for sample in batch.samples], blind=blind) if request.quick_list.name == "flagged" else {}
    )
    rows = []
    for head in build_sample_rows(batch.samples, blind):
        pk = head.sample.pk
        others = [flag for flag in flags.get(pk, []) if not is_own(flag, blind)]
        decisions = ", ".join(format_decision(decision, names) for decision in batch.decisions.get(pk, []))
        rows.append(BatchRow(head, explain_row(request, head, others, names), decisions))
    return rows


def is_own(flag: Label, blind: BlindQueues) -> bool:
    """Flags of other people that the reader imported are not."""
    return flag.user_id == blind.reader and flag.author == flag.user.get_username()


def explain_row(request: BatchRequest, head: SampleRow, flags: list[Label], names: dict[str, str]) -> str:
    match request.quick_list.name:
        case "low":
            return _("low score")
        case "rules":
            return ", ".join(full for kind, full, _mark in head.marks() if kind != "flag")
        case "random":
            return _("random sample")
        case "flagged":
            return ", ".join(
                f"{flag.author}: {names.get(flag.reason, flag.reason) or _(str(flag.value))}" for flag in flags
            )
        case "pinned":
            return _("from a pinned step")
        case _name:
            return _("matches your query")


def format_decision(decision: str, names: dict[str, str]) -> str:
    """`decision` is `fine`, `cannot-judge`, or the key of a reason."""
    if decision == "fine":
        return f"✓ {_('OK')}"
    if decision == "cannot-judge":
        return f"? {_('cannot judge')}"
    return f"⚑ {names.get(decision, decision)}".strip()


def find_next_sample(batch: ReviewBatch | None, pk: str) -> str:
    """The id of the next sample without a decision, from the start again after the last; empty if there is none."""
    ids = [sample.pk for sample in batch.samples] if batch else []
    at = ids.index(pk) + 1 if pk in ids else 0
    return next((other for other in ids[at:] + ids[:at] if batch and other not in batch.decisions and other != pk), "")
