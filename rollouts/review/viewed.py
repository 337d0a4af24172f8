"""Viewed marks: a user had a sample open for a second, or marked it OK.

The marks are private to their user and send no notification.
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
from rollouts.models import BulkFlagAction, Run, Sample, ViewedSample

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_SAMPLES = 500  # per call


@dataclass(frozen=True, slots=True)
class ViewerState:
    """A user's id and the number and the newest id of their marks in a run. Used as a part of cache keys."""

    pk: int | None
    marks: int
    newest: int


def mark_viewed(run: Run, sample_ids: Iterable[str], by: User) -> int:
    """Marks these samples of the run as viewed. Returns their number. Ignores ids that the run does not have. Does not
    change existing marks. Raises InvalidInputError for more than `MAX_SAMPLES` ids."""
    ids = [pk for pk in dict.fromkeys(sample_ids) if pk.isascii() and pk.isalnum()]
    if len(ids) > MAX_SAMPLES:
        message = _("You can mark at most {limit} samples at once, not {count}.")
        raise InvalidInputError(message.format(limit=MAX_SAMPLES, count=f"{len(ids):,}"), "samples")
    sample_pks = Sample.objects.filter(pk__in=ids, step__run=run).values_list("pk", flat=True)
    rows = [ViewedSample(sample=pk, run=run, user=by) for pk in sample_pks]
    ViewedSample.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


@transaction.atomic
def approve_sample(run: Run, sample_id: str, by: User) -> ViewedSample:
    """Marks a sample as OK. The caller has checked that the user may annotate. Raises NotFoundError if the run does not
    have the sample."""
    if not (sample_id.isascii() and sample_id.isalnum()) or not Sample.objects.filter(pk=sample_id, step__run=run):
        message = _("Sample {sample} not found in {run}.")
        raise NotFoundError(message.format(sample=sample_id[:60], run=run.name), "sample")
    own_marks = ViewedSample.objects.filter(sample=sample_id, run=run, user=by)
    mark = own_marks.filter(fine=True).first()
    while mark is None:  # a concurrent request of the same user may add a viewed mark between the two statements
        own_marks.filter(fine=False).delete()
        new_mark = ViewedSample(sample=sample_id, run=run, user=by, fine=True)
        ViewedSample.objects.bulk_create([new_mark], ignore_conflicts=True)
        mark = own_marks.filter(fine=True).first()
    return mark


def undo_review_action(run: Run, by: User) -> UndoResult:
    """Undoes the user's newest action in this run: a flag action or an OK mark. A sample whose OK mark is undone counts
    as not viewed. Raises NotFoundError if there is nothing to undo."""
    since = timezone.now() - UNDO_WINDOW
    ok_mark = ViewedSample.objects.filter(run=run, user=by, fine=True, at__gt=since).order_by("-at", "-pk").first()
    flag_actions = BulkFlagAction.objects.filter(run=run, user=by, undone_at=None, created_at__gt=since)
    if ok_mark is None or flag_actions.filter(created_at__gt=ok_mark.at).exists():
        return undo_flag_action(run, by)
    ok_mark.delete()
    return UndoResult(_("“OK” on 1 sample"), 0, 0, ok_mark.sample)


def load_viewed_marks(samples: Iterable[Sample], reader: int) -> dict[str, bool]:
    """Returns {sample id: is marked OK} of the viewed ones of these samples. Load them with their steps."""
    sample_list = list(samples)
    runs = {sample.step.run_id for sample in sample_list}
    rows = ViewedSample.objects.filter(user=reader, run__in=runs, sample__in=[sample.pk for sample in sample_list])
    return dict(rows.values_list("sample", "fine"))


def load_viewer_state(run: Run, user: int | None) -> ViewerState:
    marks = ViewedSample.objects.filter(run=run, user=user).aggregate(rows=Count("pk"), newest=Max("pk"))
    return ViewerState(user, marks["rows"], marks["newest"] or 0)
