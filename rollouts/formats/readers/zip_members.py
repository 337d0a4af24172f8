"""The members of a zip that somebody else wrote, each for itself: one that is torn takes no other with it.

Python before 3.14 does not unpack zstd (method 93), which is what inspect_ai packs with. Of a file that breaks off the
list of members, at its end, is gone; they are found by the header before each, then. Source: .ZIP File Format
Specification 6.3.10, 4.3.7 (local header), 4.4.5 (methods), 4.5.3 (zip64).
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from rolloutdeck.protocol import MAX_DUMP_BYTES, MAX_LINE_BYTES
from rollouts.errors import UnreadableDumpError

HEADER = struct.Struct("<4sHHHHHIIIHH")
BEGINS = b"PK\x03\x04"
STORED, DEFLATED, ZSTD = 0, 8, 93
LOCKED, STREAMED, UTF8 = 0x1, 0x8, 0x800
IN_EXTRA = 0xFFFFFFFF  # a size of 4 GiB and more
MOST_MEMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """`at`: where its header begins; `packed`, `size`: bytes before and after it is unpacked, as the zip says."""

    name: str
    at: int
    method: int
    flags: int
    crc: int
    packed: int
    size: int


class ZipReader:
    """Those of a zip by their names; of several with one name the last counts, as it does for zipfile. `cut`: the file
    breaks off, and there may have been more."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; UnreadableDump where it has more members than anybody writes."""
        self.path, self.unpacked, self.cut = path, 0, False
        try:
            with zipfile.ZipFile(path) as archive:
                found = [listed(one) for one in archive.infolist()]
        except (zipfile.BadZipFile, ValueError, RuntimeError):  # the last where the list asks for a newer zipfile
            with path.open("rb") as file:
                found, self.cut = list(walked(file)), True
        if len(found) > MOST_MEMBERS:
            raise UnreadableDumpError(
                f"The zip says that it has {len(found):,} members; at most {MOST_MEMBERS:,} are read."
            )
        self.found = {one.name: one for one in found}

    def read(self, name: str) -> bytes:
        """The bytes of one. Raises ValueError that says why they cannot be had, UnreadableDump where all of them
        together are more than a dump may have."""
        one = self.found[name]
        with self.path.open("rb") as file:
            body = unpacked(one, packed(one, file))
        self.unpacked += len(body)
        if self.unpacked > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"The zip unpacks to more than {MAX_DUMP_BYTES >> 30} GiB.")
        if len(body) != one.size or zlib.crc32(body) != one.crc:
            raise ValueError("is damaged: its checksum is another")
        return body


def listed(one: zipfile.ZipInfo) -> Member:
    return Member(
        one.filename, one.header_offset, one.compress_type, one.flag_bits, one.CRC, one.compress_size, one.file_size
    )


def walked(file: BinaryIO) -> Iterator[Member]:
    """The members one after another, up to the first that is not there whole."""
    end, at = file.seek(0, io.SEEK_END), 0
    while one := header(file, at):
        behind = data_at(file, at) + one.packed
        if behind > end or one.flags & STREAMED:  # the size of one that was streamed stands behind it
            return
        yield one
        at = behind


def header(file: BinaryIO, at: int) -> Member | None:
    file.seek(at)
    begun = file.read(HEADER.size)
    if len(begun) < HEADER.size or not begun.startswith(BEGINS):
        return None
    _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = HEADER.unpack(begun)
    name, extra = file.read(name_bytes), file.read(extra_bytes)
    if IN_EXTRA in (packed, size):
        size, packed = large(extra) or (size, packed)
    return Member(name.decode("utf-8" if flags & UTF8 else "cp437", "replace"), at, method, flags, crc, packed, size)


def large(extra: bytes) -> tuple[int, int] | None:
    """Size and packed size of a member whose header leaves them to its zip64 field."""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1 and length >= 16 and len(extra) >= 20:
            size, packed = struct.unpack("<QQ", extra[4:20])
            return size, packed
        extra = extra[4 + length :]
    return None


def data_at(file: BinaryIO, at: int) -> int:
    """Where the bytes of a member begin: its header's name and extra may be longer than those of the list. Raises
    ValueError."""
    file.seek(max(0, at))
    begun = file.read(HEADER.size)
    if at < 0 or len(begun) < HEADER.size or not begun.startswith(BEGINS):
        raise ValueError("is not where the zip says")
    name_bytes, extra_bytes = struct.unpack("<HH", begun[-4:])
    return at + HEADER.size + int(name_bytes) + int(extra_bytes)


def packed(one: Member, file: BinaryIO) -> bytes:
    """Raises ValueError."""
    if max(one.size, one.packed) > MAX_LINE_BYTES:
        raise ValueError(f"unpacks to more than {MAX_LINE_BYTES >> 20} MiB")
    if one.flags & LOCKED:
        raise ValueError("is locked with a password")
    file.seek(data_at(file, one.at))
    body = file.read(one.packed)
    if len(body) < one.packed:
        raise ValueError("breaks off")
    return body


def unpacked(one: Member, body: bytes) -> bytes:
    """At most a byte more than it says. Raises ValueError."""
    if one.method == STORED:
        return body
    try:
        if one.method == DEFLATED:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, one.size + 1)
        if one.method == ZSTD:
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as stream:
                return stream.read(one.size + 1)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"does not unpack: {error}") from None
    raise ValueError(f"is packed in a way (method {one.method}) that is not read")
