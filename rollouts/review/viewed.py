"""What a person has looked at: by having a sample open for a second, or by saying that nothing is wrong with it.

The marks are one's own: nobody else sees them, and they ring no bell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Count, Max
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import UNDO_WINDOW, UndoResult, undo_flag_action
from rollouts.models import Marking, Run, Sample, Seen

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ViewerState:
    """Who asks, by id, and how many marks they have in a run; with the newest mark this names the state of them all,
    for what is kept of answers."""

    pk: int | None
    marks: int
    newest: int


def mark_viewed(run: Run, sample_ids: Iterable[str], by: User) -> int:
    """Marks these samples of the run as looked at and gives how many they are; ids that the run does not have are left
    out, a sample that was marked before stays as it is. Raises BadInput for more than `MOST_AT_ONCE`."""
    wanted = [pk for pk in dict.fromkeys(sample_ids) if pk.isascii() and pk.isalnum()]
    if len(wanted) > MOST_AT_ONCE:
        told = _("You can mark at most {most} samples at once, not {count}.")
        raise InvalidInputError(told.format(most=MOST_AT_ONCE, count=f"{len(wanted):,}"), "samples")
    there = Sample.objects.filter(pk__in=wanted, step__run=run).values_list("pk", flat=True)
    rows = [Seen(sample=pk, run=run, user=by) for pk in there]
    Seen.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


@transaction.atomic
def approve_sample(run: Run, sample_id: str, by: User) -> Seen:
    """Says that nothing is wrong with a sample. The caller has checked that the person may annotate.

    Raises NotThere for a sample that the run does not have.
    """
    if not (sample_id.isascii() and sample_id.isalnum()) or not Sample.objects.filter(pk=sample_id, step__run=run):
        told = _("Sample {sample} not found in {run}.")
        raise NotFoundError(told.format(sample=sample_id[:60], run=run.name), "sample")
    own = Seen.objects.filter(sample=sample_id, run=run, user=by)
    standing = own.filter(fine=True).first()
    while standing is None:  # a look of the same person may come between the two
        own.filter(fine=False).delete()
        Seen.objects.bulk_create([Seen(sample=sample_id, run=run, user=by, fine=True)], ignore_conflicts=True)
        standing = own.filter(fine=True).first()
    return standing


def undo_review_action(run: Run, by: User) -> UndoResult:
    """Undoes the person's newest act in this run: flags, or the word that a sample is fine, which is then as if nobody
    had looked at it. Raises NotThere when there is nothing to undo."""
    since = timezone.now() - UNDO_WINDOW
    word = Seen.objects.filter(run=run, user=by, fine=True, at__gt=since).order_by("-at", "-pk").first()
    flagged = Marking.objects.filter(run=run, user=by, undone_at=None, created_at__gt=since)
    if word is None or flagged.filter(created_at__gt=word.at).exists():
        return undo_flag_action(run, by)
    word.delete()
    return UndoResult(_("“OK” on 1 sample"), 0, 0, word.sample)


def load_viewed_marks(samples: Iterable[Sample], reader: int) -> dict[str, bool]:
    """Of these samples, read with their steps, those that the person has looked at, and whether they are fine."""
    listed = list(samples)
    runs = {sample.step.run_id for sample in listed}
    rows = Seen.objects.filter(user=reader, run__in=runs, sample__in=[sample.pk for sample in listed])
    return dict(rows.values_list("sample", "fine"))


def load_viewer_state(run: Run, user: int | None) -> ViewerState:
    told = Seen.objects.filter(run=run, user=user).aggregate(rows=Count("pk"), newest=Max("pk"))
    return ViewerState(user, told["rows"], told["newest"] or 0)
