"""The canonical ZIP that `torch.save` writes, and nothing else that is called a ZIP.

One archive from byte 0 to its only end record: no prefix, tail or comment; one root; the names that torch writes, each
once; STORED; every local header, data descriptor and padding equal to what the directory says, one after the other.
Two readers that disagree about a file (`zipfile` and torch's miniz) can be shown two pickles; here they can't disagree.

From torch's PyTorchStreamWriter (miniz): general purpose flags 0x0808 (UTF-8 name, sizes behind the data), local sizes
and CRC 0, an extra field `FB` of Zs that aligns the data, a data descriptor of 16 bytes (24 beyond 4 GiB), and always
a ZIP64 end record. CRCs are compared with each other but not computed: only the sha256 of the file protects its bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream.opcodes import ByteSpan
from rolloutdeck.safe_pickle.stream.source import ByteSource

PICKLE = "data.pkl"
MAX_DIRECTORY = 16 << 20  # bytes; about 150,000 tensors
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
FLAGS = {0, 0x0800, 0x0808}
BEHIND = 0x0008  # sizes and CRC stand in a data descriptor behind the data
ZIP64, PADDING = 1, 0x4246

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
    """`members`: name below the root (`data.pkl`, `data/0`) -> where its bytes lie in `source`."""

    source: ByteSource
    root: str
    members: dict[str, ByteSpan]

    @classmethod
    def open(cls, source: ByteSource) -> TorchArchive:
        """Raises SafePickleError with the first rule that the archive breaks."""
        start, length, count = _directory(source)
        entries = list(_entries(source.read(start, length), count))
        end = 0
        spans = []
        for entry in entries:
            span, end = _member(source, entry, end)
            spans.append(span)
        if end != start:
            raise SafePickleError(f"{start - end:,} bytes lie between the ZIP's last member and its directory")
        root, names = _names([entry.name for entry in entries])
        archive = cls(source, root, dict(zip(names, spans, strict=True)))
        _check_order(archive)
        return archive

    @property
    def pickle(self) -> ByteSource:
        return self.member(PICKLE)

    def member(self, name: str) -> ByteSource:
        """Raises SafePickleError when there is none of that name."""
        span = self.members.get(name)
        if span is None:
            raise SafePickleError(f"the ZIP has no member {name!r}")
        return self.source.window(span.start, span.length)

    def checksums(self, name: str) -> list[int]:
        """Where in the source the CRC of a member stands, four bytes each: in the directory, and at the member."""
        start, length, count = _directory(self.source)
        data, at, span = self.source.read(start, length), 0, self.members[name]
        for _ in range(count):
            entry, end = _entry(data, at)
            if entry.name == f"{self.root}/{name}".encode("ascii"):
                own = span.start + span.length + 4 if entry.flags & BEHIND else entry.at + 14
                return [start + at + 16, own]
            at = end
        raise SafePickleError(f"the ZIP has no member {name!r}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the directory. `wide`: sizes or position need ZIP64."""

    name: bytes
    flags: int
    stamp: tuple[int, int]
    crc: int
    size: int
    at: int
    wide: bool


def is_zip(source: ByteSource) -> bool:
    """Whether torch would take it for a ZIP: by its first four bytes alone."""
    return source.size >= 4 and source.read(0, 4) == b"PK\x03\x04"


def _directory(source: ByteSource) -> tuple[int, int, int]:
    """Where the directory begins, its bytes, its entries."""
    if not is_zip(source):
        raise SafePickleError("it is no ZIP (an older torch stream executes what it holds)")
    if source.size < _END.size:
        raise SafePickleError("the ZIP was cut short")
    at = source.size - _END.size
    sign, disk, first_disk, here, count, length, start, comment = _END.unpack(source.read(at, _END.size))
    if sign != b"PK\x05\x06" or comment or disk or first_disk or here != count:
        raise SafePickleError("the ZIP does not end with its end record: it was cut short, or has a tail or a comment")
    at, count, length, start = _wide_end(source, at, count, length, start)
    if length > MAX_DIRECTORY:
        raise SafePickleError(f"a ZIP directory of {length:,} bytes; at most {MAX_DIRECTORY:,} are read")
    if start + length != at:
        raise SafePickleError("the ZIP's directory does not reach from where it should begin to its end record")
    return start, length, count


def _wide_end(source: ByteSource, at: int, count: int, length: int, start: int) -> tuple[int, int, int, int]:
    """The ZIP64 end record before the end record, where there is one; it must say the same."""
    if at < _LOCATOR.size or source.read(at - _LOCATOR.size, 4) != b"PK\x06\x07":
        return at, count, length, start
    _, disk, where, disks = _LOCATOR.unpack(source.read(at - _LOCATOR.size, _LOCATOR.size))
    if disk or disks != 1 or where != at - _LOCATOR.size - _END64.size:
        raise SafePickleError("the ZIP64 end record is not where it belongs")
    sign, size, _, _, disk, first, here, count64, length64, start64 = _END64.unpack(source.read(where, _END64.size))
    if sign != b"PK\x06\x06" or size != _END64.size - 12 or disk or first or here != count64:
        raise SafePickleError("the ZIP64 end record is malformed")
    if (count, length, start) != (min(count64, FULL16), min(length64, FULL32), min(start64, FULL32)):
        raise SafePickleError("the two end records of the ZIP differ")
    return where, count64, length64, start64


def _entries(data: bytes, count: int) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise SafePickleError("the ZIP's directory has fewer entries than it says")
        entry, at = _entry(data, at)
        yield entry
    if at != len(data):
        raise SafePickleError("the ZIP's directory has more bytes than entries")


def _entry(data: bytes, at: int) -> tuple[_Entry, int]:
    fields = _ENTRY.unpack_from(data, at)
    sign, _, _, flags, method, time, date, crc, packed, size, named, extra, comment, disk, _, _, where = fields
    begin = at + _ENTRY.size
    end = begin + named + extra + comment
    if sign != b"PK\x01\x02" or end > len(data):
        raise SafePickleError("the ZIP's directory is malformed")
    if flags not in FLAGS or comment or disk:
        raise SafePickleError(f"a ZIP member has flags 0x{flags:04x}, a comment or another disk")
    if method:
        raise SafePickleError("a ZIP member is compressed; torch stores")
    size, packed, where = _wide(data[begin + named : begin + named + extra], size, packed, where)
    if size != packed:
        raise SafePickleError("a stored ZIP member has two sizes")
    name = data[begin : begin + named]
    return _Entry(name, flags, (time, date), crc, size, where, bool(extra)), end


def _wide(extra: bytes, size: int, packed: int, where: int) -> tuple[int, int, int]:
    """Sizes and position, from the ZIP64 field for those that do not fit into 32 bits."""
    values = [size, packed, where]
    wanted = [number for number, value in enumerate(values) if value == FULL32]
    if extra[:4] != struct.pack("<HH", ZIP64, 8 * len(wanted)) * bool(wanted) or len(extra) not in (
        0,
        4 + 8 * len(wanted),
    ):
        raise SafePickleError("a ZIP member has an unexpected extra field in the directory")
    for place, number in enumerate(wanted):
        values[number] = int.from_bytes(extra[4 + 8 * place : 12 + 8 * place], "little")
    return values[0], values[1], values[2]


def _member(source: ByteSource, entry: _Entry, at: int) -> tuple[ByteSpan, int]:
    """Where the member's bytes lie, and where the next member begins."""
    if entry.at != at:
        raise SafePickleError(f"a ZIP member begins at {entry.at:,} instead of {at:,}: members overlap or leave a gap")
    head = source.read(at, _LOCAL.size)
    sign, _, flags, method, time, date, crc, packed, size, named, extra = _LOCAL.unpack(head)
    begin = at + _LOCAL.size + named + extra
    tail = source.read(at + _LOCAL.size, named + extra)
    told = (0, 0, 0) if flags & BEHIND else (entry.crc, entry.size, entry.size)
    if sign != b"PK\x03\x04" or (flags, method, (time, date)) != (entry.flags, 0, entry.stamp):
        raise SafePickleError("a ZIP member's own header differs from the directory")
    if tail[:named] != entry.name or (crc, packed, size) != told:
        raise SafePickleError("a ZIP member's own header differs from the directory")
    _check_extra(tail[named:], entry)
    end = _check_behind(source, entry, begin + entry.size)
    return ByteSpan(begin, entry.size), end


def _check_extra(extra: bytes, entry: _Entry) -> None:
    """Only torch's padding, and the ZIP64 field of a member that needs one."""
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at) if at + 4 <= len(extra) else (0, 0)
        field = extra[at + 4 : at + 4 + length]
        padding = kind == PADDING and not field.strip(b"Z")
        wide = kind == ZIP64 and entry.wide and length in (8, 16, 24)
        if not (padding or wide) or len(field) != length:
            raise SafePickleError("a ZIP member has an unexpected extra field")
        at += 4 + length


def _check_behind(source: ByteSource, entry: _Entry, at: int) -> int:
    """The data descriptor, where the flags announce one; returns where it ends."""
    if not entry.flags & BEHIND:
        return at
    form = "<4sIQQ" if entry.wide else "<4sIII"
    length = struct.calcsize(form)
    if source.read(at, length) != struct.pack(form, b"PK\x07\x08", entry.crc, entry.size, entry.size):
        raise SafePickleError("what stands behind a ZIP member differs from the directory")
    return at + length


def _names(raw: list[bytes]) -> tuple[str, list[str]]:
    """The one root and the names below it."""
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


def _check_order(archive: TorchArchive) -> None:
    """Only little-endian numbers: what another byte order would mean is nowhere needed, and read by few."""
    span = archive.members.get("byteorder")
    if span is not None and (span.length != 6 or archive.source.read(span.start, 6) != b"little"):
        raise SafePickleError("the numbers in the ZIP are not little-endian")
