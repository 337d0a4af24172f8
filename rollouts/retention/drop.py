"""Drops the samples of a step that a policy does not keep.

The kept rows are copied to new body files. One transaction then deletes the other rows, points the dumps to the new
files and records what was dropped. The old files are removed after the commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
from django.db import transaction
from django.utils import timezone

from rollouts.errors import RolloutError, StorageUnavailableError
from rollouts.indexing import find_body_difference
from rollouts.live import notify_run_changed
from rollouts.models import (
    Dump,
    DuplicateSource,
    Project,
    RetentionPolicy,
    Sample,
    Segment,
    Step,
    get_step_position,
)
from rollouts.retention.protection import load_protection
from rollouts.retention.raw_dumps import drop_split_sources
from rollouts.retention.selection import StepDecision, StepsOverLimits, decide_step
from rollouts.retention.sizes import measure_raw_dump
from rollouts.samples import (
    BODY_SCHEMA_VERSION,
    BodyWriter,
    open_body_file,
    remove_missing_results,
    scan_dump_rows_in_file,
)
from rollouts.storage import (
    delete_orphan,
    delete_unused_raw_files,
    get_body_key,
    is_file_lost,
    touch_file,
    write_file,
)


class StepChangedError(Exception):
    """The step changed while its kept rows were copied. The next pass checks it again."""


class NotReproducedError(RolloutError):
    """A body does not have all rows of its dump, so its raw bytes cannot be dropped."""

    code = "not_reproduced"


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A dump of the step, the ordinals that remain, and the new file; `path` is "" if none remain."""

    dump: Dump
    ordinals: list[int]
    path: str
    bytes: int = 0


def drop_step_samples(decision: StepDecision, policy: RetentionPolicy, limits: StepsOverLimits) -> int:
    """Returns the number of dropped samples. Raises StepChangedError, NotReproducedError, StorageUnavailableError."""
    step = decision.step
    assert decision.kept_groups is not None
    dumps = list(Dump.objects.filter(**get_step_position(step), segment__isnull=False).select_related("segment", "run"))
    with ExitStack() as files:
        kept = [copy_kept_rows(dump, find_kept_ordinals(dump, decision.kept_groups), files) for dump in dumps]
        with transaction.atomic():
            hashes = publish_kept_rows(decision, policy, limits, kept)
            files.pop_all()  # from here, an orphaned file is better than a row without its file
    delete_unused_raw_files(policy.project_id, hashes)
    return decision.dropped


def find_kept_ordinals(dump: Dump, groups: frozenset[str]) -> list[int]:
    """Returns the rows of the dump's body that belong to samples of these groups, its own or duplicates."""
    own = Sample.objects.filter(dump=dump, group__in=groups).values_list("ordinal", flat=True)
    kept_samples = Sample.objects.filter(step__in=find_step(dump), group__in=groups).values("pk")
    others = DuplicateSource.objects.filter(dump=dump, sample__in=kept_samples).values_list("ordinal", flat=True)
    return sorted({*own, *others})


def find_step(dump: Dump) -> Any:
    return Step.objects.filter(**get_step_position(dump)).values("pk")


def copy_kept_rows(dump: Dump, ordinals: list[int], files: ExitStack) -> KeptRows:
    """Writes the rows to a new file that survives a power cut, since the raw bytes go. Raises NotReproducedError, and
    StorageUnavailableError if the body is damaged."""
    if not ordinals:
        return KeptRows(dump, [], "")
    if not dump.is_from_artifact and dump.raw_dropped_at is None and (reason := find_body_difference(dump)):
        Dump.objects.filter(pk=dump.pk).update(raw_kept_at=timezone.now())
        raise NotReproducedError(f"Dump {dump.pk}: {reason}.")
    path = f"{dump.run_id}/{dump.split}/{dump.pk}-{uuid4().hex[:8]}.parquet"
    key = get_body_key(path)
    files.callback(delete_orphan, key)
    try:
        with write_file(key) as temporary, open_body_file(dump) as file:
            writer = BodyWriter(temporary, file.schema_arrow)
            first = 0
            for table in scan_dump_rows_in_file(dump, file, None):
                rows = [ordinal - first for ordinal in ordinals if first <= ordinal < first + table.num_rows]
                if rows:
                    writer.write(table.take(rows))
                first += table.num_rows
            writer.close()
            size = temporary.stat().st_size
    except FileNotFoundError as error:  # compaction moved the rows
        raise StepChangedError from error
    except (OSError, pa.ArrowException) as error:
        if not is_file_lost(error):
            raise
        raise StorageUnavailableError(f"The body of dump {dump.pk} is damaged ({error}).") from error
    return KeptRows(dump, ordinals, path, size)


def publish_kept_rows(
    decision: StepDecision, policy: RetentionPolicy, limits: StepsOverLimits, kept: Sequence[KeptRows]
) -> list[str]:
    """Changes all rows. Locks the project (a pin takes this lock first) and the step (as a flag does), so nothing that
    protects a sample can appear meanwhile. Returns the hashes of the raw files to remove."""
    Project.objects.lock(policy.project)
    step = (
        Step.objects.select_for_update(no_key=True, of=("self",))
        .select_related("run__project")
        .get(pk=decision.step.pk)
    )
    again = decide_step(step, policy, load_protection(policy.project, step), limits)
    if again.kept_groups != decision.kept_groups or again.dropped != decision.dropped:
        raise StepChangedError
    now, hashes, freed = timezone.now(), list[str](), 0.0
    for rows in kept:
        freed += point_dump(rows, now, hashes)
    delete_rows(step, [rows.dump for rows in kept], again.kept_groups or frozenset())
    move_ordinals(kept)
    delete_unused_segments({rows.dump.segment for rows in kept if rows.dump.segment})
    Step.objects.filter(pk=step.pk).update(
        dropped=step.dropped + again.dropped,
        dropped_bytes=step.dropped_bytes + int(freed),
        dropped_at=now,
        dropped_rule=again.rule,
        version=step.version + 1,
    )
    notify_run_changed(step.run, split=step.split, step=step.step)
    return hashes


def point_dump(rows: KeptRows, now: object, hashes: list[str]) -> float:
    """Points a dump to its new file and marks its raw bytes as dropped. Returns the bytes that this frees."""
    dump = rows.dump
    segment, old_bytes = dump.segment, 0.0
    if segment and segment.rows:
        old_bytes = segment.bytes * dump.rows / segment.rows
    new_bytes = rows.bytes
    target = None
    if rows.path:
        target = Segment.objects.create(
            run=dump.run, split=dump.split, path=rows.path, rows=len(rows.ordinals), bytes=new_bytes,
            schema=segment.schema if segment else BODY_SCHEMA_VERSION,
        )  # fmt: skip
    has_raw = not dump.is_from_artifact and dump.raw_dropped_at is None
    raw_bytes = measure_raw_dump(dump.run.project_id, dump.sha256) if has_raw else dump.raw_dropped_bytes
    unchanged = Dump.objects.filter(
        pk=dump.pk, state=dump.state, rows=dump.rows, segment=dump.segment_id, segment_offset=dump.segment_offset
    )
    values = {"raw_dropped_at": now, "raw_dropped_bytes": raw_bytes} if has_raw else {}
    if not unchanged.update(
        segment=target, segment_offset=0, rows=len(rows.ordinals), samples_dropped_at=now, **values
    ):
        raise StepChangedError
    if has_raw:
        hashes += [dump.sha256, *drop_split_sources(dump)]
    return max(0.0, old_bytes - new_bytes) + (raw_bytes if has_raw else 0)


def delete_rows(step: Step, dumps: Sequence[Dump], groups: frozenset[str]) -> None:
    Sample.objects.filter(step=step).exclude(group__in=groups).delete()
    remaining = Sample.objects.filter(step=step).values("pk")
    DuplicateSource.objects.filter(dump__in=dumps).exclude(sample__in=remaining).delete()
    remove_missing_results(step)


def move_ordinals(kept: Sequence[KeptRows]) -> None:
    """Sets the new positions of the remaining rows."""
    positions: dict[int, dict[int, int]] = defaultdict(dict)
    for rows in kept:
        positions[rows.dump.pk] = {ordinal: position for position, ordinal in enumerate(rows.ordinals)}
    for model in (Sample, DuplicateSource):
        moved = list(model.objects.filter(dump__in=list(positions)))
        for row in moved:
            row.ordinal = positions[row.dump_id][row.ordinal]
        model.objects.bulk_update(moved, ["ordinal"], batch_size=500)


def delete_unused_segments(segments: set[Segment]) -> None:
    for segment in segments:
        if not segment.dumps.exists():
            key = get_body_key(segment.path)
            segment.delete()
            transaction.on_commit(partial(touch_file, key))
