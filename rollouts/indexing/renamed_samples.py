"""Moves labels, viewed marks, queue items and evidence items when indexing a dump again gives its samples other ids.

An id is a hash of prompt and response, see `rollouts/samples/identity.py`. It changes if a tokenizer arrives and the
samples get their text, or if a newer version identifies samples in another way.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from rollouts.labels import PAIR_QUESTIONS
from rollouts.models import (
    Dump,
    EvidenceItem,
    Label,
    LabelChange,
    QueueDraft,
    QueueItem,
    Sample,
    Step,
    ViewedSample,
)

MAX_IDS_PER_QUERY = 5000


def find_renamed_samples(dump: Dump, rows: int, ids: Iterable[str]) -> dict[str, str]:
    """Returns {old id: new id} of the samples that the dump owns, before its rows are replaced.

    `rows` is the new number of rows. If it is another one, the order of the rows does not identify them: returns {}.
    """
    if dump.segment is None or dump.rows != rows:
        return {}
    old_ids = dict(Sample.objects.filter(dump=dump).values_list("ordinal", "pk"))
    pairs = ((old_ids.get(ordinal), new) for ordinal, new in enumerate(ids))
    return {old: new for old, new in pairs if old and old != new}


def move_user_records(step: Step, renamed: Mapping[str, str]) -> None:
    """Moves what users recorded about the samples of the step. A record that the new id has already stays as it is."""
    if renamed:
        rename_answers(step, renamed)
        rename_drafts(step, renamed)
    remaining = iter(renamed)
    while old_ids := list(islice(remaining, MAX_IDS_PER_QUERY)):
        move_labels(old_ids, renamed)
        move_viewed_marks(old_ids, renamed)
        move_queue_items(old_ids, renamed)
        for item in EvidenceItem.objects.filter(sample__in=old_ids):
            EvidenceItem.objects.filter(pk=item.pk).update(sample=renamed[item.sample])


def move_labels(old_ids: list[str], renamed: Mapping[str, str]) -> None:
    for label in Label.objects.filter(sample__in=old_ids):
        new = renamed[label.sample]
        same = {"sample": new, "name": label.name, "source": label.source, "author": label.author}
        if not Label.objects.filter(**same).exists():
            Label.objects.filter(pk=label.pk).update(sample=new)


def rename_answers(step: Step, renamed: Mapping[str, str]) -> None:
    """Replaces the ids in answers that name other samples of the group, and in their history."""
    labels = Label.objects.filter(step=step, name__in=PAIR_QUESTIONS)
    for label in labels:
        if (value := rename_ids(label.value, renamed)) != label.value:
            Label.objects.filter(pk=label.pk).update(value=value, answer=f" {' '.join(value)} ")
    for change in LabelChange.objects.filter(label__in=labels):
        if (value := rename_ids(change.value, renamed)) != change.value:
            LabelChange.objects.filter(pk=change.pk).update(value=value)


def rename_drafts(step: Step, renamed: Mapping[str, str]) -> None:
    """Replaces the ids in orders of groups. Drafts of pairs are removed: they have numbers of the responses, which
    follow from the ids."""
    for draft in QueueDraft.objects.filter(item__step=step):
        answers = {name: answer for name, answer in draft.answers.items() if name != "pairs"}
        if "order" in answers:
            order = [rename_ids(place, renamed) for place in answers["order"]["value"]]
            answers["order"] = {**answers["order"], "value": order}
        if answers != draft.answers:
            QueueDraft.objects.filter(pk=draft.pk).update(answers=answers)


def rename_ids(value: Any, renamed: Mapping[str, str]) -> Any:
    return [renamed.get(name, name) for name in value] if isinstance(value, list) else value


def move_queue_items(old_ids: list[str], renamed: Mapping[str, str]) -> None:
    for item in QueueItem.objects.filter(sample__in=old_ids):
        if not QueueItem.objects.filter(queue=item.queue_id, sample=renamed[item.sample]).exists():
            QueueItem.objects.filter(pk=item.pk).update(sample=renamed[item.sample])


def move_viewed_marks(old_ids: list[str], renamed: Mapping[str, str]) -> None:
    """Replaces the rows, because the newest id identifies a user's state. Keeps the times."""
    viewed = list(ViewedSample.objects.filter(sample__in=old_ids))
    ViewedSample.objects.filter(pk__in=[row.pk for row in viewed]).delete()
    for row in viewed:
        new, created = ViewedSample.objects.get_or_create(
            user_id=row.user_id, run_id=row.run_id, sample=renamed[row.sample]
        )
        if created:
            ViewedSample.objects.filter(pk=new.pk).update(at=row.at)
