"""Bytes are read into the memory of the caller, from a file or from memory, and never beyond their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load.placeholders import Piece, read_bytes_into
from rolloutdeck.safe_pickle.stream.arguments import ByteSpan
from rolloutdeck.safe_pickle.stream.source import ByteSource

DATA = bytes(range(200))


def open_memory_source(path: Path) -> ByteSource:
    return ByteSource.from_bytes(DATA)


def open_file_source(path: Path) -> ByteSource:
    path.write_bytes(DATA)
    return ByteSource.open(path)


@pytest.mark.parametrize("open_source", [open_memory_source, open_file_source])
def test_a_part_is_copied_into_a_buffer_and_nothing_beyond_it(
    open_source: Callable[[Path], ByteSource], tmp_path: Path
) -> None:
    with open_source(tmp_path / "file") as source:
        piece = Piece(source.window(10, 100), ByteSpan(20, 50))
        buffer = bytearray(7)
        read_bytes_into(memoryview(buffer)[2:6], piece, 46)
        assert bytes(buffer) == b"\0\0" + DATA[76:80] + b"\0"
        for at, length in [(47, 4), (-1, 4), (0, 51)]:
            with pytest.raises(SafePickleError):
                read_bytes_into(memoryview(bytearray(length)), piece, at)


def test_bytes_are_copied_in_the_same_way_as_a_piece() -> None:
    buffer = bytearray(3)
    read_bytes_into(memoryview(buffer), DATA, 5)
    assert bytes(buffer) == DATA[5:8]
    with pytest.raises(SafePickleError):
        read_bytes_into(memoryview(buffer), DATA, 198)


@pytest.mark.parametrize("open_source", [open_memory_source, open_file_source])
def test_a_buffer_is_never_filled_from_beyond_a_window(
    open_source: Callable[[Path], ByteSource], tmp_path: Path
) -> None:
    with open_source(tmp_path / "file") as source, pytest.raises(SafePickleError):
        source.window(0, 100).read_into(98, memoryview(bytearray(3)))


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open_file_source(path) as source:
        path.write_bytes(DATA[:50])
        with pytest.raises(SafePickleError, match="became shorter"):
            source.read_into(0, memoryview(bytearray(200)))
