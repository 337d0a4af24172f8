"""Whole samples, read back from Parquet: one row group each, joined over the dumps that tell of the sample."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import NotFoundError, StorageUnavailableError
from rollouts.models import Dump, Sample, Segment, Sighting
from rollouts.samples import parquet
from rollouts.samples.record import Record
from rollouts.storage import get_body_file_path

MISSING_BODY_MESSAGE: Final = N_("The text of this sample is not available. Re-index the run to restore it.")
MOVED_TRIES = 3  # a body may be folded into a segment between asking where it is and opening it


@dataclass(slots=True)
class SampleBody(Record):
    """A sample with everything its dumps tell; `seen_in` lists them, the one that owns its row first."""

    seen_in: list[Dump] = field(default_factory=list)


def load_bodies(samples: Sequence[Sample]) -> dict[str, SampleBody]:
    """Bodies by sample id. Raises StorageUnavailable when a file cannot be read."""
    places: dict[int, dict[int, str]] = defaultdict(dict)
    owners = {sample.id: sample.dump_id for sample in samples}
    for sample in samples:
        places[sample.dump_id][sample.ordinal] = sample.id
    for sight in Sighting.objects.filter(sample__in=list(owners)):
        places[sight.dump_id][sight.ordinal] = sight.sample
    dumps = Dump.objects.filter(pk__in=places).select_related("segment").order_by("received_at", "pk")
    told: dict[str, list[tuple[Dump, Record]]] = defaultdict(list)
    for dump in dumps:
        wanted = places[dump.pk]
        for ordinal, record in load_dump_records(dump, sorted(wanted)).items():
            told[wanted[ordinal]].append((dump, record))
    for sample_id, sights in told.items():
        sights.sort(key=lambda sight: sight[0].pk != owners[sample_id])
    return {sample_id: joined(sights) for sample_id, sights in told.items()}


def load_body(sample: Sample) -> SampleBody:
    """The body of one sample. Raises NotThere where it is gone, StorageUnavailable."""
    body = load_bodies([sample]).get(sample.pk)
    if body is None:
        raise NotFoundError(_(MISSING_BODY_MESSAGE), "sample")
    return body


def joined(sights: Sequence[tuple[Dump, Record]]) -> SampleBody:
    """The first record, with what it lacks from the later ones."""
    first = sights[0][1]
    body = SampleBody(**{known.name: getattr(first, known.name) for known in fields(Record)})
    body.seen_in = [dump for dump, _ in sights]
    for _dump, record in sights[1:]:
        if body.textless and not record.textless:
            body.response, body.textless = record.response, False
        for known in fields(Record):
            if getattr(body, known.name) in (None, ""):
                setattr(body, known.name, getattr(record, known.name))
        body.rewards = {**record.rewards, **{key: value for key, value in body.rewards.items() if value is not None}}
        body.extras = {**record.extras, **body.extras}
    return body


def load_dump_records(dump: Dump, ordinals: Sequence[int]) -> dict[int, Record]:
    """Records of a dump by ordinal; ordinals that its body does not have are left out."""
    for _try in range(MOVED_TRIES):
        try:
            with open_body_file(dump) as file:
                return dict(picked(file, dump.segment_offset, ordinals))
        except FileNotFoundError:
            dump.refresh_from_db(fields=["segment", "segment_offset"])
        except (OSError, pa.ArrowException) as error:
            said = _("Cannot read the sample texts of dump {dump}: {error}.")
            raise StorageUnavailableError(said.format(dump=dump.pk, error=error)) from error
    said = _("The sample texts of dump {dump} are missing on disk. Re-index the run to restore them.")
    raise StorageUnavailableError(said.format(dump=dump.pk))


def open_body_file(dump: Dump) -> pq.ParquetFile:
    """The Parquet file that holds a dump's body. Raises FileNotFoundError, also where the dump has another since its
    row was read."""
    try:
        segment = dump.segment
    except Segment.DoesNotExist:
        segment = None
    if segment is None:
        raise FileNotFoundError
    return pq.ParquetFile(get_body_file_path(segment.path), memory_map=True)


def picked(file: pq.ParquetFile, offset: int, ordinals: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """Reads each row group that is needed once."""
    ends = list(accumulate(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)))
    wanted: dict[int, list[int]] = defaultdict(list)
    for ordinal in ordinals:
        if offset + ordinal < (ends[-1] if ends else 0):
            wanted[bisect_right(ends, offset + ordinal)].append(ordinal)
    for group, inside in wanted.items():
        table = file.read_row_group(group)
        start = ends[group] - table.num_rows
        found = parquet.build_records(table.take([offset + ordinal - start for ordinal in inside]))
        yield from zip(inside, found, strict=True)


def scan_dump_rows(dump: Dump, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """A dump's rows in order, a row group at a time; these columns only, unless None."""
    with open_body_file(dump) as file:
        yield from scan_dump_rows_in_file(dump, file, columns)


def scan_dump_rows_in_file(dump: Dump, file: pq.ParquetFile, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """The same from its open file: opening a segment of hundreds of dumps takes longer than reading one of them."""
    at, end = 0, dump.segment_offset + dump.rows
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        first, last = max(at, dump.segment_offset), min(at + rows, end)
        if first < last:
            table = file.read_row_group(group, columns=columns)
            yield table.slice(first - at, last - first)
        at += rows
