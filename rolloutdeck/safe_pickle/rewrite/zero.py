"""Sets rows of a mask in ROLL's batch to 0, so they have no loss. Other bytes but its checksums are unchanged."""

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
from rolloutdeck.safe_pickle.load import Buffer, Piece, Rollout, Unreadable, load_pickle
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import COPY_BLOCK_BYTES
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, TorchArchive


def zero_rows(source: str | os.PathLike[str], target: str | os.PathLike[str], name: str, rows: Collection[int]) -> None:
    """Writes `target` as `source` with `rows`, counted from 0, of the tensor `name` set to 0.

    Raises SafePickleError for a row that does not exist and for a tensor that shares its bytes with another; OSError.
    """
    with ByteSource.open(source) as byte_source:
        contents = read_roll_contents(byte_source)
        row_spans = [find_row_span(contents, name, row) for row in sorted(set(rows))]
        member = find_member(byte_source, contents.tensors[name])
        if len(row_spans) == contents.rows:
            raise SafePickleError("all its rows are selected, nothing would be left to train on")
    with open_checked_output(Path(target)) as file:
        with Path(source).open("rb") as original:
            shutil.copyfileobj(original, file, COPY_BLOCK_BYTES)
        for span in row_spans:
            file.seek(span.start)
            file.write(bytes(span.length))
        file.flush()
        write_checksums(file, *member)


def find_row_span(contents: BatchContents, name: str, row: int) -> ByteSpan:
    """Returns the position of a row in the file."""
    if not 0 <= row < contents.rows:
        raise SafePickleError(f"row {row} is selected and the batch has {contents.rows}")
    tensor_span = find_tensor_span(contents, name)
    if tensor_span is None:
        raise SafePickleError(f"its {name} is not a plain tensor")
    start, end = tensor_span.start, tensor_span.start + tensor_span.length
    others = (find_tensor_span(contents, other) for other in contents.tensors if other != name)
    if any(span and span.start < end and start < span.start + span.length for span in others):
        raise SafePickleError(f"its {name} shares its bytes with another tensor")
    if any(isinstance(contents.columns[other], Unreadable) for other in contents.tensordict_columns):
        raise SafePickleError(f"its {name} may share its bytes with a tensor that can't be read")
    size = tensor_span.length // contents.rows
    return ByteSpan(start + row * size, size)


def find_tensor_span(contents: BatchContents, name: str) -> ByteSpan | None:
    """Returns the position of a tensor in the file, or None if it is not stored there in one piece."""
    tensor = contents.tensors.get(name)
    if not isinstance(tensor, DenseField) or not isinstance(tensor.data, Piece):
        return None
    at = tensor.data.source.start + tensor.data.span.start + tensor.start
    return ByteSpan(at, tensor.row_bytes * tensor.shape[0])


def find_member(byte_source: ByteSource, tensor: object) -> tuple[ByteSpan, list[int]]:
    """Returns the archive member that contains a tensor, and the positions of its CRC, all in the file."""
    value = load_pickle(byte_source)  # read_roll_contents has checked it
    assert isinstance(value, Rollout) and value.state and isinstance(value.state[0], Buffer)
    assert isinstance(tensor, DenseField) and isinstance(tensor.data, Piece)
    archive = TorchArchive.open(build_source(value.state[0].data))
    start, member = archive.source.start, tensor.data.span
    name = next(name for name, span in archive.members.items() if span == member)
    return ByteSpan(start + member.start, member.length), [start + at for at in archive.find_checksums(name)]


def write_checksums(file: BinaryIO, span: ByteSpan, positions: Collection[int]) -> None:
    """Computes the CRC of the member's new bytes and writes it to `positions`."""
    crc = 0
    with Path(file.name).open("rb") as copy:
        copy.seek(span.start)
        remaining = span.length
        while remaining and (block := copy.read(min(COPY_BLOCK_BYTES, remaining))):
            crc, remaining = zlib.crc32(block, crc), remaining - len(block)
    for position in positions:
        file.seek(position)
        file.write(struct.pack("<I", crc))
