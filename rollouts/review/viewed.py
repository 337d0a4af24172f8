"""Viewed marks: a user had a sample open for a second. And the quick answers of a review: OK, cannot judge.

The marks are private to their user and send no notification. The answers are labels, which everybody sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Count, F, Max
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.labels import Answer, UndoResult, store_labels, undo_label_action
from rollouts.models import NOT_BLIND, REVIEW_NAME, BlindQueues, Label, LabelAction, Run, Sample, ViewedSample

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_SAMPLES = 500  # per call


@dataclass(frozen=True, slots=True)
class ViewerState:
    """A user's id, the number and the newest id of their marks in a run, and the blind queues that they review. Used as
    a part of cache keys."""

    pk: int | None
    marks: int
    newest: int
    blind: BlindQueues = NOT_BLIND


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
def approve_sample(run: Run, sample_id: str, by: User, rationale: str = "") -> LabelAction:
    """Says that a sample is OK. See `answer_review`."""
    return answer_review(run, sample_id, by, "ok", rationale)


@transaction.atomic
def answer_review(run: Run, sample_id: str, by: User, value: str, rationale: str = "") -> LabelAction:
    """Stores `ok` or `cannot-judge` as the user's label `review` with their comment, and marks the sample as viewed. An
    OK withdraws the user's flags that say bad. The caller has checked that the user may annotate. Raises
    InvalidInputError, and NotFoundError if the run does not have the sample."""
    if not (sample_id.isascii() and sample_id.isalnum()):
        message = _("Sample {sample} not found in {run}.")
        raise NotFoundError(message.format(sample=sample_id[:60], run=run.name), "sample")
    if not rationale:  # the same answer again, where there is no field for a comment
        own = Label.objects.active().filter(sample=sample_id, name=REVIEW_NAME, source="human", user=by, value=value)
        rationale = own.values_list("rationale", flat=True).first() or ""
    action = store_labels(run, by, [Answer(sample_id, REVIEW_NAME, value, rationale)])
    mark_viewed(run, [sample_id], by)
    return action


@transaction.atomic
def undo_review_action(run: Run, by: User) -> UndoResult:
    """Undoes the user's newest action on labels of this run. A sample whose OK is undone counts as not viewed. Raises
    NotFoundError if there is nothing to undo."""
    result = undo_label_action(run, by)
    if result.sample and result.names == {REVIEW_NAME}:
        ViewedSample.objects.filter(run=run, user=by, sample=result.sample).delete()
    return result


def load_viewed_marks(samples: Iterable[Sample], reader: int) -> dict[str, bool]:
    """Returns {sample id: the user says OK} of these samples that the user has viewed or said OK to. Load them with
    their steps."""
    sample_list = list(samples)
    own = {
        "user": reader,
        "run__in": {sample.step.run_id for sample in sample_list},
        "sample__in": [sample.pk for sample in sample_list],
    }
    viewed = ViewedSample.objects.filter(**own).values_list("sample", flat=True)
    approvals = Label.objects.approvals().active().filter(**own, author=F("user__username"))  # not imported for others
    approved = approvals.values_list("sample", flat=True)
    return dict.fromkeys(viewed, False) | dict.fromkeys(approved, True)


def load_viewer_state(run: Run, user: int | None, blind: BlindQueues = NOT_BLIND) -> ViewerState:
    marks = ViewedSample.objects.filter(run=run, user=user).aggregate(rows=Count("pk"), newest=Max("pk"))
    return ViewerState(user, marks["rows"], marks["newest"] or 0, blind)
