"""Small bodies folded into big files: ten thousand small Parquet files scan ten times slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from django.db import transaction
from django.db.models import Count, Q, Sum

from rollouts.maintenance.sweep import ORPHAN_LIFETIME_SECONDS, find_older_files
from rollouts.models import Dump, Run, Segment
from rollouts.samples import (
    BODY_SCHEMA_VERSION,
    FIXED_FIELDS,
    REWARD_METADATA,
    BodyWriter,
    open_body_file,
    scan_dump_rows_in_file,
)
from rollouts.storage import delete_on_failure, get_body_file_path, get_data_root, retire_body_file, write_atomically

SMALL = 8 << 20  # bytes; larger files stay as they are
FULL = 64 << 20
MANY = 32  # small files that are worth folding, however little they hold


class MovedRows(NamedTuple):
    """Where a dump's rows were, and where they begin in the new file."""

    dump: Dump
    offset: int


class RowsChangedError(Exception):
    """A dump was indexed again, or folded by another worker, while its rows were copied."""


def find_due_body_files() -> list[tuple[int, str]]:
    """(run, split) with many small Parquet files, or enough of them to make one of full size."""
    small = Segment.objects.filter(bytes__lt=SMALL).values("run", "split")
    several = small.annotate(files=Count("pk"), total=Sum("bytes")).filter(files__gt=1)
    return list(several.filter(Q(files__gte=MANY) | Q(total__gte=FULL)).values_list("run", "split"))


def compact_body_files(run_id: int, split: str) -> int:
    """Joins a run's small body files into segments of up to 64 MB, oldest dumps first; returns how many files went.

    Safe to kill and to run twice: the new file is whole before the rows point to it, in one transaction. The old ones
    go an hour after that: on SQLite an answer that is being written sees the rows as they were when it began.
    """
    return sum(join(run_id, split, part) for part in shares(run_id, split) if len(part) > 1)


def shares(run_id: int, split: str) -> Iterator[list[Segment]]:
    """Small segments in order, as many at a time as make a full one. Those that no dump is in are left to the sweep."""
    share: list[Segment] = []
    size = 0
    small = Segment.objects.filter(run=run_id, split=split, bytes__lt=SMALL, dumps__isnull=False)
    for segment in small.distinct().order_by("pk"):
        if share and size + segment.bytes > FULL:
            yield share
            share, size = [], 0
        share.append(segment)
        size += segment.bytes
    yield share


def join(run_id: int, split: str, small: Sequence[Segment]) -> int:
    """Copies the rows that dumps still point to; garbage that a re-index left behind stays out."""
    path = f"{run_id}/{split}/segment-{uuid4().hex}.parquet"
    target = get_body_file_path(path)
    dumps = list(Dump.objects.filter(segment__in=small).select_related("segment").order_by("segment", "segment_offset"))
    try:
        with write_atomically(target) as aside:
            moved = copy_rows(dumps, aside)
        with transaction.atomic(), delete_on_failure(target):
            swap(Run(pk=run_id), split, path, moved, small)
    except (RowsChangedError, FileNotFoundError):  # the next fold sees how things stand then
        return 0
    return len(small)


def copy_rows(dumps: Sequence[Dump], path: Path) -> list[MovedRows]:
    schema = joined_schema([get_body_file_path(dump.segment.path) for dump in dumps if dump.segment])
    writer = BodyWriter(path, schema)
    moved = []
    try:
        for _, inside in groupby(dumps, lambda dump: dump.segment_id):
            lying = list(inside)
            with open_body_file(lying[0]) as file:
                for dump in lying:
                    moved.append(MovedRows(dump, writer.rows))
                    for table in scan_dump_rows_in_file(dump, file, None):
                        writer.write(fitted(table, schema))
    finally:
        writer.close()
    return moved


def joined_schema(paths: Sequence[Path]) -> pa.Schema:
    """The fixed columns and every column of the run's own; one that is a reward anywhere is a reward."""
    own: dict[str, pa.Field] = {}
    for field in chain.from_iterable(pq.read_schema(path) for path in dict.fromkeys(paths)):
        if field.name not in own or field.metadata == REWARD_METADATA:
            own[field.name] = field
    fixed = [field.name for field in FIXED_FIELDS]
    rest = [field for name, field in own.items() if name not in fixed]
    return pa.schema([*FIXED_FIELDS, *rest], metadata={"rolloutdeck": str(BODY_SCHEMA_VERSION)})


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of `schema`, null where it has none."""
    columns = [
        table[field.name] if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def swap(run: Run, split: str, path: str, moved: Sequence[MovedRows], small: Sequence[Segment]) -> None:
    """Points the dumps to the new file. Raises Changed when one of them is not where its rows were copied from."""
    whole = Segment.objects.create(
        run=run, split=split, path=path, rows=sum(move.dump.rows for move in moved),
        bytes=get_body_file_path(path).stat().st_size, schema=BODY_SCHEMA_VERSION,
    )  # fmt: skip
    for dump, offset in moved:
        there = Dump.objects.filter(
            pk=dump.pk, segment=dump.segment, segment_offset=dump.segment_offset, rows=dump.rows
        )
        if not there.update(segment=whole, segment_offset=offset):
            raise RowsChangedError
    for segment in small:
        if segment.dumps.exists():
            raise RowsChangedError
        old = get_body_file_path(segment.path)
        segment.delete()
        transaction.on_commit(partial(retire_body_file, old))


def delete_orphan_bodies() -> int:
    """Removes body files older than an hour that no row names, and rows of segments that no dump is in."""
    for segment in Segment.objects.filter(dumps__isnull=True):
        segment.delete()
    return delete_orphan_body_files()


def delete_orphan_body_files() -> int:
    """Removes Parquet files that no segment names (a worker died between file and row); returns how many."""
    bodies = get_data_root() / "bodies"
    old = list(find_older_files(bodies.rglob("*"), ORPHAN_LIFETIME_SECONDS))
    names = {str(path.relative_to(bodies)): path for path in old}
    known = set(Segment.objects.values_list("path", flat=True)) if names else set()
    for name in names.keys() - known:
        names[name].unlink(missing_ok=True)
    return len(names.keys() - known)
