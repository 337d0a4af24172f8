"""Removes samples from the bodies and rows of a step, in one transaction per step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from rollouts.errors import ConflictError, StorageUnavailableError
from rollouts.forgetting.bodies import BodyMatches, find_body_matches
from rollouts.forgetting.pending import add_pending
from rollouts.forgetting.raw_dumps import drop_raw_dumps
from rollouts.forgetting.texts import SearchText
from rollouts.indexing import rebuild_step
from rollouts.ingest import mark_superseded_steps
from rollouts.labels import remove_labels_from_action
from rollouts.live import notify_run_changed
from rollouts.maintenance import remove_unused_rows
from rollouts.models import (
    Dump,
    ForgottenPrompt,
    Label,
    LabelAction,
    QueryCurve,
    QueueItem,
    Sample,
    Segment,
    Step,
    StepTemplate,
    ViewedSample,
    get_step_position,
)
from rollouts.retention import StepChangedError
from rollouts.samples import (
    BODY_SCHEMA_VERSION,
    BodyWriter,
    open_body_file,
    remove_missing_results,
    scan_dump_rows_in_file,
)
from rollouts.storage import delete_orphan, get_body_key, write_file

MAX_TRIES = 5  # while workers change the step
IDS_PER_QUERY = 500


def remove_samples(forgotten: ForgottenPrompt, matches: BodyMatches, text: SearchText | None) -> None:
    """Removes the rows step by step. Those that only contain the text go first: while a row with the key remains, a
    command that was killed finds the text again. Raises ConflictError if workers change a step again and again, and
    StorageUnavailableError if another body of a step is missing or damaged."""
    keys = forgotten.all_keys()
    with_key = {dump for dump, ordinals in matches.ordinals.items() if ordinals - matches.added.get(dump, set())}
    steps = group_by_step(matches.dumps[pk] for pk, ordinals in matches.ordinals.items() if ordinals)
    for dumps in sorted(steps, key=lambda dumps: any(dump.pk in with_key for dump in dumps)):
        found = matches
        reason: BaseException | None = None
        for _try in range(MAX_TRIES):
            try:
                remove_step_rows(forgotten, dumps, found.ordinals)
                break
            except StepChangedError as error:
                reason = error.__cause__
                position = get_step_position(dumps[0])
                paths = Segment.objects.filter(dumps__in=Dump.objects.filter(**position)).values_list("path", flat=True)
                found = find_body_matches(forgotten.project, keys, text, list(paths))
                changed = [dump for dump in found.dumps.values() if get_step_position(dump) == position]
                dumps = [dump for dump in changed if found.ordinals.get(dump.pk)]
                if not dumps:
                    break
        else:
            if isinstance(reason, StorageUnavailableError):
                raise reason
            raise ConflictError(f"Step {dumps[0].step} of {dumps[0].run} changes all the time. Run the command again.")


def remove_step_rows(forgotten: ForgottenPrompt, dumps: Collection[Dump], ordinals: dict[int, set[int]]) -> None:
    """Removes rows of the dumps of one step, which are given by dump. Raises StepChangedError.

    `dumps` were read before the rows were found. The paths of the old files are added to `forgotten.pending`.
    """
    with ExitStack() as files:
        kept = {dump.pk: copy_other_rows(dump, ordinals[dump.pk], files) for dump in dumps}
        with transaction.atomic():
            publish_other_rows(forgotten, dumps, kept)
            files.pop_all()  # from here, an orphaned file is better than a row without its file


class OtherRows(NamedTuple):
    """The new body file of a dump, the number of its rows, and its bytes. `path` is "" if no row remains."""

    path: str = ""
    rows: int = 0
    bytes: int = 0


def copy_other_rows(dump: Dump, removed: set[int], files: ExitStack) -> OtherRows:
    """Writes the remaining rows to a new file."""
    if len(removed) >= dump.rows:
        return OtherRows()
    path = f"{dump.run_id}/{dump.split}/{dump.pk}-{uuid4().hex[:8]}.parquet"
    key = get_body_key(path)
    files.callback(delete_orphan, key)
    try:
        with write_file(key) as temporary, open_body_file(dump) as file:
            writer = BodyWriter(temporary, file.schema_arrow)
            first = 0
            for table in scan_dump_rows_in_file(dump, file, None):
                rows = [row for row in range(table.num_rows) if first + row not in removed]
                if rows:
                    writer.write(table.take(rows))
                first += table.num_rows
            writer.close()
            size = temporary.stat().st_size
    except FileNotFoundError as error:  # compaction moved the rows
        raise StepChangedError from error
    return OtherRows(path, writer.rows, size)


def publish_other_rows(forgotten: ForgottenPrompt, dumps: Collection[Dump], kept: dict[int, OtherRows]) -> None:
    """Points the dumps to the new files and computes the rows of the step again. Locks the step."""
    first = next(iter(dumps))
    assert first.step is not None
    step = Step.objects.get_locked(first.run, first.attempt, first.split, first.step_kind, first.step)
    before = set(Sample.objects.filter(step=step).values_list("pk", flat=True))
    edges = Sample.objects.filter(step=step).values_list("pk", "opening", "ending")
    templates = {pk: (opening, ending) for pk, opening, ending in edges} if step.dropped else {}
    old = {dump.segment for dump in dumps if dump.segment}
    for dump in dumps:
        point_dump(dump, kept[dump.pk])
    drop_raw_dumps(forgotten, dumps)
    try:
        rebuild_step(step)
    except StorageUnavailableError as error:
        raise StepChangedError from error
    gone = before - set(Sample.objects.filter(step=step).values_list("pk", flat=True))
    delete_user_records(step, gone)
    remove_missing_results(step)
    if step.dropped:  # the templates remain those of all samples, but not those of the removed ones
        keys = {key for pk in gone for key in templates[pk] if key is not None}
        StepTemplate.objects.filter(step=step, key__in=keys).delete()
    QueryCurve.objects.filter(run=step.run_id).delete()
    for segment in old:
        if not segment.dumps.exists():
            add_pending(forgotten, [f"bodies/{segment.path}"])
            segment.delete()
    notify_run_changed(step.run, split=step.split, step=step.step)
    mark_superseded_steps(step.run)  # without samples, a step hides no step of an earlier attempt


def point_dump(dump: Dump, kept: OtherRows) -> None:
    """Points a dump to its new file. It is never indexed again, since its raw bytes go. Raises StepChangedError."""
    target = None
    if kept.path:
        target = Segment.objects.create(
            run=dump.run, split=dump.split, path=kept.path, rows=kept.rows, bytes=kept.bytes,
            schema=dump.segment.schema if dump.segment else BODY_SCHEMA_VERSION,
        )  # fmt: skip
    unchanged = Dump.objects.filter(
        pk=dump.pk, state=dump.state, rows=dump.rows, segment=dump.segment_id, segment_offset=dump.segment_offset
    )
    now = timezone.now()
    values: dict[str, Any] = {} if dump.is_from_artifact else {"raw_dropped_at": dump.raw_dropped_at or now}
    left_out = {**dump.left_out, "forgotten": dump.left_out.get("forgotten", 0) + dump.rows - kept.rows}
    if not unchanged.update(
        segment=target, segment_offset=0, rows=kept.rows, samples_dropped_at=dump.samples_dropped_at or now,
        left_out=left_out, problems=[], message="", **values,
    ):  # fmt: skip
        raise StepChangedError


def delete_user_records(step: Step, samples: Iterable[str]) -> None:
    """Deletes labels with their history, viewed marks, queue items, and what actions remember of these labels."""
    ids = sorted(samples)
    labels: set[int] = set()
    for start in range(0, len(ids), IDS_PER_QUERY):
        part = ids[start : start + IDS_PER_QUERY]
        rows = Label.objects.filter(sample__in=part)
        labels |= set(rows.values_list("pk", flat=True))
        rows.delete()
        ViewedSample.objects.filter(sample__in=part).delete()
        QueueItem.objects.filter(sample__in=part).delete()
    if not labels:
        return
    for action in LabelAction.objects.filter(run=step.run_id):
        before = remove_labels_from_action(action.before, labels)
        if not before["was"]:
            action.delete()
        elif len(before["was"]) < action.changed_count:
            LabelAction.objects.filter(pk=action.pk).update(before=before)
    Label.objects.recount(step)


def rewrite_segments(forgotten: ForgottenPrompt, paths: Iterable[str]) -> list[str]:
    """Removes the rows that no dump uses from body files. Returns the paths of those that are still in use."""
    remaining = []
    for segment in Segment.objects.filter(path__in=list(paths)):
        with transaction.atomic():
            add_pending(forgotten, [f"bodies/{segment.path}"])
        if segment.dumps.exists():
            remove_unused_rows(segment)
        else:
            segment.delete()
        if Segment.objects.filter(path=segment.path).exists():
            remaining.append(segment.path)
    return remaining


def group_by_step(dumps: Iterable[Dump]) -> list[list[Dump]]:
    """Returns the dumps of each step together."""
    steps: dict[tuple[Any, ...], list[Dump]] = {}
    for dump in dumps:
        steps.setdefault(tuple(get_step_position(dump).values()), []).append(dump)
    return list(steps.values())
