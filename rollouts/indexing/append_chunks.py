"""Chunks of a file that grows. Equal samples in two chunks of it are two samples.

So the ids of a chunk continue the counts of the chunks before it: those that end where it begins, or earlier. Chunks
that overlap, as after a watch lost its state, have the same samples. Chunks are indexed in any order: if one before it
is indexed meanwhile, a chunk is read again at once; if one is indexed afterwards, it is queued again. Both happen only
if they have an id in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.utils import timezone

from rollouts.errors import RolloutError
from rollouts.indexing.split_steps import get_part_format
from rollouts.models import Dump, DuplicateSource, Sample

FILE_FIELDS = ("run_id", "attempt_id", "split", "step_kind", "source", "producer", "generation")


class EarlierChunkError(RolloutError):
    """A chunk before this one was indexed meanwhile, and has an id that this one has too."""

    permanent = False
    code = "earlier_chunk"

    def __init__(self) -> None:
        super().__init__("Another chunk of its file was indexed at the same time.")


class EarlierChunks(NamedTuple):
    """The chunks before a chunk when it was read: {dump: segment}, and their sample ids."""

    segments: dict[int, int | None]
    ids: frozenset[str]


def find_chunks(dump: Dump) -> tuple[list[Dump], list[Dump]]:
    """Returns the indexed chunks of its file and step that end before `dump`, and those that begin after it."""
    if dump.offset is None:
        return [], []
    chunks = Dump.objects.filter(**{name: getattr(dump, name) for name in FILE_FIELDS}).exclude(offset=None)
    indexed = chunks.filter(step=dump.step, segment__isnull=False).exclude(pk=dump.pk)
    others = list(indexed.only("pk", "offset", "bytes", "segment", "format"))
    if not others:
        return [], []
    # A chunk with several steps was split: its parts have its offset and another length.
    split = chunks.filter(step=None).only("offset", "bytes", "format")
    sizes = {(chunk.offset, get_part_format(chunk)): chunk.bytes for chunk in split.order_by("bytes")}
    starts = {chunk.pk: chunk.offset or 0 for chunk in [dump, *others]}
    ends = {
        chunk.pk: starts[chunk.pk] + sizes.get((chunk.offset, chunk.format), chunk.bytes) for chunk in [dump, *others]
    }
    before = [chunk for chunk in others if ends[chunk.pk] <= starts[dump.pk]]
    return before, [chunk for chunk in others if starts[chunk.pk] >= ends[dump.pk]]


def load_earlier_chunks(dump: Dump) -> EarlierChunks:
    before, _ = find_chunks(dump)
    return EarlierChunks(get_segments(before), frozenset[str]().union(*load_sample_ids(before).values()))


def get_segments(chunks: Sequence[Dump]) -> dict[int, int | None]:
    return {chunk.pk: chunk.segment_id for chunk in chunks}


def load_sample_ids(chunks: Sequence[Dump]) -> dict[int, set[str]]:
    """Returns {dump: ids of its samples}."""
    ids = defaultdict[int, set[str]](set)
    if chunks:
        for dump, sample in Sample.objects.filter(dump__in=chunks).values_list("dump_id", "pk"):
            ids[dump].add(sample)
        for dump, sample in DuplicateSource.objects.filter(dump__in=chunks).values_list("dump_id", "sample"):
            ids[dump].add(sample)
    return ids


def check_earlier_chunks(dump: Dump, read: EarlierChunks, ids: Iterable[str]) -> None:
    """Raises EarlierChunkError if `ids`, those of the dump, are not continued from all chunks before it. The caller
    holds the step's lock."""
    before, _ = find_chunks(dump)
    if get_segments(before) == read.segments:
        return
    own = set(ids)
    if any(not own.isdisjoint(others) for others in load_sample_ids(before).values()):
        raise EarlierChunkError


def requeue_later_chunks(dump: Dump, ids: Iterable[str]) -> None:
    """Queues the chunks after `dump` again that have one of its ids. The caller holds the step's lock."""
    _, after = find_chunks(dump)
    own = set(ids) if after else set()
    colliding = [chunk for chunk, others in load_sample_ids(after).items() if not own.isdisjoint(others)]
    done = Dump.objects.filter(pk__in=colliding, state=Dump.State.INDEXED)
    done.filter(raw_dropped_at=None, samples_dropped_at=None).requeue(timezone.now())
