"""Takes the weight from rows of a batch that ROLL will load: their mask becomes 0 where it stands in the file, and all
other bytes stay what they are."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle.batches import BatchContents, DenseField, build_source, read_roll_contents
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Buffer, Piece, Rollout, load_pickle
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, TorchArchive

BLOCK = 1 << 20


def zero_rows(source: str | os.PathLike[str], target: str | os.PathLike[str], name: str, rows: Collection[int]) -> None:
    """Writes `target` as `source` with these rows, counted from 0, of the tensor `name` 0. Raises SafePickleError for a
    row that is not there and for a tensor that shares its bytes with another; OSError."""
    with ByteSource.open(source) as opened:
        found = read_roll_contents(opened)
        places = [place_of(found, name, row) for row in sorted(set(rows))]
        held = member_of(opened, found.cells[name])
        if len(places) == found.rows:
            raise SafePickleError("all its rows are flagged, nothing would be left to train on")
    with open_checked_output(Path(target)) as file:
        with Path(source).open("rb") as original:
            shutil.copyfileobj(original, file, BLOCK)
        for place in places:
            file.seek(place.start)
            file.write(bytes(place.length))
        file.flush()
        check(file, *held)


def place_of(found: BatchContents, name: str, row: int) -> ByteSpan:
    """Where a row lies in the file."""
    if not 0 <= row < found.rows:
        raise SafePickleError(f"row {row} is flagged and the batch has {found.rows}")
    own = span_of(found, name)
    others = [span for other in found.cells if other != name and (span := span_of(found, other))]
    if own is None:
        raise SafePickleError(f"its {name} is no plain tensor")
    if any(span.start < own.start + own.length and own.start < span.start + span.length for span in others):
        raise SafePickleError(f"its {name} shares its bytes with another tensor")
    size = own.length // found.rows
    return ByteSpan(own.start + row * size, size)


def span_of(found: BatchContents, name: str) -> ByteSpan | None:
    """Where a tensor lies in the file; None for one that does not lie there in one piece."""
    cells = found.cells.get(name)
    if not isinstance(cells, DenseField) or not isinstance(cells.data, Piece):
        return None
    at = cells.data.source.start + cells.data.span.start + cells.start
    return ByteSpan(at, cells.row_bytes * cells.shape[0])


def member_of(opened: ByteSource, cells: object) -> tuple[ByteSpan, list[int]]:
    """The member of the archive in which a tensor lies, and where its CRC stands: positions in the file."""
    value = load_pickle(opened)
    assert (
        isinstance(value, Rollout) and value.state and isinstance(value.state[0], Buffer)
    )  # it was read as one before
    assert isinstance(cells, DenseField) and isinstance(cells.data, Piece)
    archive = TorchArchive.open(build_source(value.state[0].data))
    start, held = archive.source.start, cells.data.span
    name = next(name for name, span in archive.members.items() if span == held)
    return ByteSpan(start + held.start, held.length), [start + at for at in archive.checksums(name)]


def check(file: BinaryIO, span: ByteSpan, places: Collection[int]) -> None:
    """Writes the CRC of what now lies there."""
    crc = 0
    with Path(file.name).open("rb") as written:
        written.seek(span.start)
        left = span.length
        while left and (piece := written.read(min(BLOCK, left))):
            crc, left = zlib.crc32(piece, crc), left - len(piece)
    for place in places:
        file.seek(place)
        file.write(struct.pack("<I", crc))
