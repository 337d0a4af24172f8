"""Reads the members of a zip one by one, so that a damaged member does not affect the others.

Python before 3.14 cannot decompress zstd (method 93), which inspect_ai uses. A truncated file has no list of members,
which is at its end: the members are found by their own headers then. Source: .ZIP File Format Specification 6.3.10,
4.3.7 (local header), 4.4.5 (methods), 4.5.3 (zip64).
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from rolloutdeck.protocol import MAX_DUMP_BYTES, MAX_LINE_BYTES
from rollouts.errors import UnreadableDumpError

HEADER = struct.Struct("<4sHHHHHIIIHH")
HEADER_MAGIC = b"PK\x03\x04"
ZSTD = 93
ENCRYPTED, STREAMED, UTF8 = 0x1, 0x8, 0x800  # flags
SIZE_IN_EXTRA = 0xFFFFFFFF  # a size of 4 GiB or more is in the zip64 field
MAX_MEMBERS = 1 << 20


class ZipReader:
    """The `members` by name: the last counts, as for zipfile. `is_truncated`: members at the end are missing."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and UnreadableDumpError if there are more than `MAX_MEMBERS`."""
        self.path, self.bytes_read, self.is_truncated = path, 0, False
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, ValueError, RuntimeError):  # RuntimeError: a newer zip version is required
            with path.open("rb") as file:
                members, self.is_truncated = list(scan_members(file)), True
        if len(members) > MAX_MEMBERS:
            raise UnreadableDumpError(f"The zip lists {len(members):,} members; at most {MAX_MEMBERS:,} are read.")
        self.members = {member.filename: member for member in members}

    def read(self, name: str) -> bytes:
        """Returns the bytes of a member. Raises ValueError with the reason if it cannot be read, UnreadableDumpError if
        all members together are larger than a dump may be."""
        member = self.members[name]
        with self.path.open("rb") as file:
            body = decompress(member, read_compressed(member, file))
        self.bytes_read += len(body)
        if self.bytes_read > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"The zip decompresses to more than {MAX_DUMP_BYTES >> 30} GiB.")
        if len(body) != member.file_size or zlib.crc32(body) != member.CRC:
            raise ValueError("is damaged: its checksum differs")
        return body


def scan_members(file: BinaryIO) -> Iterator[zipfile.ZipInfo]:
    """Yields members in the order of the file, up to the first incomplete one."""
    end, offset = file.seek(0, io.SEEK_END), 0
    while header := read_header(file, offset):
        member, start = header
        offset = start + member.compress_size
        if offset > end or member.flag_bits & STREAMED:  # the size of a streamed member follows its bytes
            return
        yield member


def read_header(file: BinaryIO, offset: int) -> tuple[zipfile.ZipInfo, int] | None:
    """Returns the member whose header is at `offset`, and the offset of its bytes; None if there is no header."""
    file.seek(max(0, offset))
    header = file.read(HEADER.size)
    if offset < 0 or len(header) < HEADER.size or not header.startswith(HEADER_MAGIC):
        return None
    _, _, flags, method, _, _, crc, compressed, size, name_bytes, extra_bytes = HEADER.unpack(header)
    name, extra = file.read(name_bytes), file.read(extra_bytes)
    if SIZE_IN_EXTRA in (compressed, size):
        size, compressed = read_zip64_sizes(extra) or (size, compressed)
    member = zipfile.ZipInfo(name.decode("utf-8" if flags & UTF8 else "cp437", "replace"))
    member.header_offset, member.flag_bits, member.compress_type, member.CRC = offset, flags, method, crc
    member.file_size, member.compress_size = size, compressed
    return member, offset + HEADER.size + name_bytes + extra_bytes


def read_zip64_sizes(extra: bytes) -> tuple[int, int] | None:
    """Returns size and compressed size from the zip64 field."""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1 and length >= 16 and len(extra) >= 20:
            size, compressed = struct.unpack("<QQ", extra[4:20])
            return size, compressed
        extra = extra[4 + length :]
    return None


def read_compressed(member: zipfile.ZipInfo, file: BinaryIO) -> bytes:
    """Raises ValueError. Name and extra field of the header may be longer than those in the list of members."""
    if max(member.file_size, member.compress_size) > MAX_LINE_BYTES:
        raise ValueError(f"decompresses to more than {MAX_LINE_BYTES >> 20} MiB")
    if member.flag_bits & ENCRYPTED:
        raise ValueError("is encrypted with a password")
    header = read_header(file, member.header_offset)
    if not header:
        raise ValueError("is not at the offset that the zip lists")
    file.seek(header[1])
    body = file.read(member.compress_size)
    if len(body) < member.compress_size:
        raise ValueError("is truncated")
    return body


def decompress(member: zipfile.ZipInfo, body: bytes) -> bytes:
    """Returns at most one byte more than the listed size. Raises ValueError."""
    if member.compress_type == zipfile.ZIP_STORED:
        return body
    try:
        if member.compress_type == zipfile.ZIP_DEFLATED:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, member.file_size + 1)
        if member.compress_type == ZSTD:
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as stream:
                return stream.read(member.file_size + 1)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"cannot be decompressed: {error}") from None
    raise ValueError(f"has compression method {member.compress_type}, which is not supported")
