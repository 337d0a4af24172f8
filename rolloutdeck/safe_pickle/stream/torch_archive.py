"""Reads the canonical ZIP that `torch.save` writes, and refuses every other ZIP.

The archive fills the file from byte 0 to its only end record, without prefix, tail or comment. It has one root folder,
and each member name is one that torch writes and appears once. Members are STORED one after the other. Every local
header, data descriptor and padding agrees with the directory. The reason: if two readers (`zipfile` and torch's miniz)
interpret a ZIP differently, it can show each of them another pickle. A canonical ZIP has only one interpretation.

What torch's PyTorchStreamWriter (miniz) writes: general purpose flags 0x0808 (UTF-8 name, sizes after the data), local
sizes and CRC 0, an extra field `FB` of Zs that aligns the data, a data descriptor of 16 bytes (24 above 4 GiB), and
always a ZIP64 end record. CRCs are compared with each other but not computed: only the sha256 of the file protects its
bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream.arguments import ByteSpan
from rolloutdeck.safe_pickle.stream.source import ByteSource

PICKLE = "data.pkl"
MAX_DIRECTORY = 16 << 20  # bytes; about 150,000 tensors
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
FLAGS = {0, 0x0800, 0x0808}
HAS_DATA_DESCRIPTOR = 0x0008  # sizes and CRC are in a data descriptor after the data
ZIP64, PADDING = 1, 0x4246

# torch's names of the types of numbers: bytes per number, and the class of their storage below `torch`.
DTYPE_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
STORAGE_DTYPES = {
    "BoolStorage": "bool", "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16",
    "IntStorage": "int32", "LongStorage": "int64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32", "DoubleStorage": "float64",
}  # fmt: skip

_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_NAME = re.compile(
    r"data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d{1,9}"
)


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """`members`: name below the root (`data.pkl`, `data/0`) -> position of its bytes in `source`."""

    source: ByteSource
    root: str
    members: dict[str, ByteSpan]

    @classmethod
    def open(cls, source: ByteSource) -> TorchArchive:
        """Returns the archive in `source`. Raises SafePickleError for the first rule that it breaks."""
        start, length, count = _find_directory(source)
        entries = list(_read_entries(source.read(start, length), count))
        end = 0
        spans = []
        for entry in entries:
            span, end = _check_member(source, entry, end)
            spans.append(span)
        if end != start:
            raise SafePickleError(f"{start - end:,} bytes are between the ZIP's last member and its directory")
        root, names = _check_names([entry.name for entry in entries])
        archive = cls(source, root, dict(zip(names, spans, strict=True)))
        _check_byte_order(archive)
        return archive

    @property
    def pickle(self) -> ByteSource:
        return self.member(PICKLE)

    def member(self, name: str) -> ByteSource:
        """Returns the bytes of a member as a source. Raises SafePickleError if there is none with this name."""
        span = self.members.get(name)
        if span is None:
            raise SafePickleError(f"the ZIP has no member {name!r}")
        return self.source.window(span.start, span.length)

    def find_checksums(self, name: str) -> list[int]:
        """Returns the positions of a member's CRC in the source, 4 bytes each: in the directory and at the member."""
        start, length, count = _find_directory(self.source)
        data, at, span = self.source.read(start, length), 0, self.members[name]
        for _ in range(count):
            entry, end = _read_entry(data, at)
            if entry.name == f"{self.root}/{name}".encode("ascii"):
                member_crc = span.start + span.length + 4 if entry.flags & HAS_DATA_DESCRIPTOR else entry.at + 14
                return [start + at + 16, member_crc]
            at = end
        raise SafePickleError(f"the ZIP has no member {name!r}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the directory. `zip64`: sizes or position need ZIP64."""

    name: bytes
    flags: int
    timestamp: tuple[int, int]
    crc: int
    size: int
    at: int
    zip64: bool


def is_zip(source: ByteSource) -> bool:
    """Whether torch would read it as a ZIP. Torch checks only the first four bytes."""
    return source.size >= 4 and source.read(0, 4) == b"PK\x03\x04"


def _find_directory(source: ByteSource) -> tuple[int, int, int]:
    """Returns the start of the directory, its length in bytes and the number of its entries."""
    if not is_zip(source):
        raise SafePickleError("it is not a ZIP (loading an older torch stream would execute code from it)")
    if source.size < _END.size:
        raise SafePickleError("the ZIP was cut short")
    at = source.size - _END.size
    signature, disk, first_disk, disk_entries, count, length, start, comment = _END.unpack(source.read(at, _END.size))
    if signature != b"PK\x05\x06" or comment or disk or first_disk or disk_entries != count:
        raise SafePickleError("the ZIP does not end with its end record: it was cut short, or has a tail or a comment")
    at, count, length, start = _read_zip64_end(source, at, count, length, start)
    if length > MAX_DIRECTORY:
        raise SafePickleError(f"a ZIP directory of {length:,} bytes; at most {MAX_DIRECTORY:,} are read")
    if start + length != at:
        raise SafePickleError("the ZIP's directory does not fill the space up to its end record")
    return start, length, count


def _read_zip64_end(source: ByteSource, at: int, count: int, length: int, start: int) -> tuple[int, int, int, int]:
    """Returns where the end records start, and (count, length, start) of the directory; checks a ZIP64 end record."""
    if at < _LOCATOR.size or source.read(at - _LOCATOR.size, 4) != b"PK\x06\x07":
        return at, count, length, start
    _, disk, where, disks = _LOCATOR.unpack(source.read(at - _LOCATOR.size, _LOCATOR.size))
    if disk or disks != 1 or where != at - _LOCATOR.size - _END64.size:
        raise SafePickleError("the ZIP64 end record is at the wrong position")
    fields = _END64.unpack(source.read(where, _END64.size))
    signature, size, _, _, disk, first, disk_entries, count64, length64, start64 = fields
    if signature != b"PK\x06\x06" or size != _END64.size - 12 or disk or first or disk_entries != count64:
        raise SafePickleError("the ZIP64 end record is malformed")
    if (count, length, start) != (min(count64, FULL16), min(length64, FULL32), min(start64, FULL32)):
        raise SafePickleError("the two end records of the ZIP differ")
    return where, count64, length64, start64


def _read_entries(data: bytes, count: int) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise SafePickleError("the ZIP's directory has fewer entries than it declares")
        entry, at = _read_entry(data, at)
        yield entry
    if at != len(data):
        raise SafePickleError("the ZIP's directory has more bytes than entries")


def _read_entry(data: bytes, at: int) -> tuple[_Entry, int]:
    fields = _ENTRY.unpack_from(data, at)
    signature, _, _, flags, method, time, date, crc, packed, size, *lengths, disk, _, _, where = fields
    name_length, extra, comment = lengths
    name_start = at + _ENTRY.size
    end = name_start + sum(lengths)
    if signature != b"PK\x01\x02" or end > len(data):
        raise SafePickleError("the ZIP's directory is malformed")
    if flags not in FLAGS or comment or disk:
        raise SafePickleError(f"a ZIP member has flags 0x{flags:04x}, a comment or another disk")
    if method:
        raise SafePickleError("a ZIP member is compressed; torch writes members uncompressed")
    name, rest = data[name_start : name_start + name_length], data[name_start + name_length : end]
    size, packed, where = _read_zip64_sizes(rest, size, packed, where)
    if size != packed:
        raise SafePickleError("a stored ZIP member has two sizes")
    return _Entry(name, flags, (time, date), crc, size, where, bool(extra)), end


def _read_zip64_sizes(extra: bytes, size: int, packed: int, where: int) -> tuple[int, int, int]:
    """Returns sizes and position; those that do not fit into 32 bits are read from the ZIP64 field."""
    values = [size, packed, where]
    oversized = [number for number, value in enumerate(values) if value == FULL32]
    length = 8 * len(oversized)
    if extra[:4] != (struct.pack("<HH", ZIP64, length) if oversized else b"") or len(extra) not in (0, 4 + length):
        raise SafePickleError("a ZIP member has an unexpected extra field in the directory")
    for index, number in enumerate(oversized):
        values[number] = int.from_bytes(extra[4 + 8 * index : 12 + 8 * index], "little")
    return values[0], values[1], values[2]


def _check_member(source: ByteSource, entry: _Entry, at: int) -> tuple[ByteSpan, int]:
    """Checks a member. Returns the position of its bytes, and the position where the next member begins."""
    if entry.at != at:
        raise SafePickleError(f"a ZIP member begins at {entry.at:,} instead of {at:,}: members overlap or leave a gap")
    head = source.read(at, _LOCAL.size)
    signature, _, flags, method, time, date, crc, packed, size, name_length, extra = _LOCAL.unpack(head)
    data_start = at + _LOCAL.size + name_length + extra
    tail = source.read(at + _LOCAL.size, name_length + extra)
    header = (signature, flags, method, (time, date), tail[:name_length], (crc, packed, size))
    sizes = (0, 0, 0) if flags & HAS_DATA_DESCRIPTOR else (entry.crc, entry.size, entry.size)
    if header != (b"PK\x03\x04", entry.flags, 0, entry.timestamp, entry.name, sizes):
        raise SafePickleError("a ZIP member's local header differs from the directory")
    _check_extra(tail[name_length:], entry)
    end = _check_data_descriptor(source, entry, data_start + entry.size)
    return ByteSpan(data_start, entry.size), end


def _check_extra(extra: bytes, entry: _Entry) -> None:
    """Accepts only torch's padding, and the ZIP64 field of a member that needs one."""
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at) if at + 4 <= len(extra) else (0, 0)
        field = extra[at + 4 : at + 4 + length]
        padding = kind == PADDING and not field.strip(b"Z")
        zip64 = kind == ZIP64 and entry.zip64 and length in (8, 16, 24)
        if not (padding or zip64) or len(field) != length:
            raise SafePickleError("a ZIP member has an unexpected extra field")
        at += 4 + length


def _check_data_descriptor(source: ByteSource, entry: _Entry, at: int) -> int:
    """Checks the data descriptor, if the flags announce one. Returns the position of its end."""
    if not entry.flags & HAS_DATA_DESCRIPTOR:
        return at
    struct_format = "<4sIQQ" if entry.zip64 else "<4sIII"
    length = struct.calcsize(struct_format)
    if source.read(at, length) != struct.pack(struct_format, b"PK\x07\x08", entry.crc, entry.size, entry.size):
        raise SafePickleError("the data descriptor of a ZIP member differs from the directory")
    return at + length


def _check_names(raw: list[bytes]) -> tuple[str, list[str]]:
    """Returns the root folder and the names below it."""
    try:
        names = [name.decode("ascii") for name in raw]
    except UnicodeDecodeError as error:
        raise SafePickleError("a ZIP member's name is not ASCII") from error
    root = names[0].partition("/")[0] if names else ""
    below = [name.removeprefix(f"{root}/") for name in names]
    for name, rest in zip(names, below, strict=True):
        if not root or name == rest or not _NAME.fullmatch(rest):
            raise SafePickleError(f"a ZIP member is called {name[:80]!r}, which torch.save never writes")
    if len(set(below)) != len(below):
        raise SafePickleError("two members of the ZIP have the same name")
    if PICKLE not in below:
        raise SafePickleError(f"the ZIP has no {PICKLE}")
    return root, below


def _check_byte_order(archive: TorchArchive) -> None:
    """Accepts only little-endian numbers: no trainer writes another byte order, and few readers support one."""
    span = archive.members.get("byteorder")
    if span is not None and (span.length != 6 or archive.source.read(span.start, 6) != b"little"):
        raise SafePickleError("the numbers in the ZIP are not little-endian")
