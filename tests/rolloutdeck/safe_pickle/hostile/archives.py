"""ZIPs that two readers read in two ways, or that torch never writes."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import replace

from tests.rolloutdeck.safe_pickle.assembler import (
    NONE,
    Member,
    archive,
    changed,
    data,
    members,
    pickled,
    queued,
    saved,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case, legacy


def joined(first: bytes, second: bytes) -> bytes:
    """Two archives, one behind the other: each reader takes the one that it finds."""
    return first + second


def appended() -> bytes:
    """The second is written behind the first as if it were one file: its positions are right, its first is not 0."""
    first = evil()
    files = members(pickled(NONE, 2))
    return archive([replace(files[0], before=first), *files[1:]])


def zipped(body: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive by Python's own writer."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as target:
        target.writestr("archive/data.pkl", pickled(body, 2))
        target.writestr("archive/version", "3\n")
    return file.getvalue()


def bomb() -> bytes:
    """A deflated member of 20 MB in 20 kB."""
    return zipped(NONE + b"0" + data(bytes(20 << 20)), zipfile.ZIP_DEFLATED)


def evil() -> bytes:
    return saved(SYSTEM)


def more(*extra: Member) -> bytes:
    return archive([*members(pickled(NONE, 2)), *extra])


def altered(name: str, **changes: object) -> bytes:
    return archive(changed(queued(), f"archive/{name}", **changes))


def overlapping() -> bytes:
    """The directory's second entry points at the first member."""
    full = bytearray(saved(NONE))
    second = full.index(b"PK\x01\x02", full.index(b"PK\x01\x02") + 4)
    full[second + 42 : second + 46] = bytes(4)
    return bytes(full)


def patched(at: int, value: bytes, behind: bytes = b"") -> bytes:
    """Bytes replaced at a distance behind the first `behind`."""
    full = bytearray(archive(queued()))
    begin = full.index(behind) + at
    full[begin : begin + len(value)] = value
    return bytes(full)


def gaping() -> bytes:
    """Bytes between the last member and the directory."""
    files = queued()
    behind = struct.pack("<4sIII", b"PK\x07\x08", zlib.crc32(b"0" * 40), 40, 40) + b"gap"
    return archive([*files[:-1], replace(files[-1], behind=behind)])


ENTRY = b"PK\x01\x02"
ARCHIVES = {
    "an archive that runs something": Case(evil, "it names 'os.system'"),
    "two archives, the second runs something": Case(
        lambda: joined(archive(queued()), evil()), "the ZIP64 end record is at the wrong position"
    ),
    "two archives, the first runs something": Case(
        lambda: joined(evil(), archive(queued())), "the ZIP64 end record is at the wrong position"
    ),
    "two archives by another writer": Case(
        lambda: joined(zipped(NONE), zipped(SYSTEM)), "the ZIP's directory does not fill the space up to its end record"
    ),
    "two archives, the second counted from the first": Case(
        appended, "a ZIP member begins at N instead of 0: members overlap or leave a gap"
    ),
    "an archive behind a pickle": Case(lambda: pickled(SYSTEM) + archive(queued()), "it names 'os.system'"),
    "an archive behind a legacy stream": Case(
        lambda: legacy(SYSTEM) + archive(queued()), "it does not contain a batch of verl or ROLL"
    ),
    "a legacy stream": Case(lambda: legacy(SYSTEM), "it does not contain a batch of verl or ROLL"),
    "a tail behind the archive": Case(
        lambda: archive(queued()) + b"\0",
        "the ZIP does not end with its end record: it was cut short, or has a tail or a comment",
    ),
    "a comment": Case(
        lambda: archive(queued(), comment=b"hello"),
        "the ZIP does not end with its end record: it was cut short, or has a tail or a comment",
    ),
    "an archive inside the comment": Case(
        lambda: archive(queued(), comment=evil()), "the ZIP64 end record is at the wrong position"
    ),
    "a header that names another file": Case(
        lambda: altered("data.pkl", local_name="archive/data.bad"),
        "a ZIP member's local header differs from the directory",
    ),
    "a header of another length": Case(
        lambda: altered("data.pkl", local_size=7), "a ZIP member's local header differs from the directory"
    ),
    "a length behind the member that differs": Case(
        lambda: altered("data.pkl", behind=struct.pack("<4sIII", b"PK\x07\x08", 0, 1, 1)),
        "the data descriptor of a ZIP member differs from the directory",
    ),
    "a length in the directory that differs": Case(
        lambda: altered("data.pkl", told_size=30), "the data descriptor of a ZIP member differs from the directory"
    ),
    "flags of encryption": Case(
        lambda: altered("data.pkl", flags=0x0809), "a ZIP member has flags 0x0809, a comment or another disk"
    ),
    "a method of compression": Case(
        lambda: altered("data.pkl", method=8), "a ZIP member is compressed; torch writes members uncompressed"
    ),
    "deflated by another writer": Case(
        lambda: zipped(SYSTEM, zipfile.ZIP_DEFLATED), "a ZIP member is compressed; torch writes members uncompressed"
    ),
    "a bomb": Case(bomb, "a ZIP member is compressed; torch writes members uncompressed"),
    "a comment of a member": Case(
        lambda: altered("version", comment=b"x"), "a ZIP member has flags 0x0808, a comment or another disk"
    ),
    "an extra field": Case(
        lambda: altered("version", extra=b"up\x00\x00"), "a ZIP member has an unexpected extra field"
    ),
    "padding that hides something": Case(
        lambda: altered("version", extra=b"FB\x04\x00PK\x03\x04"), "a ZIP member has an unexpected extra field"
    ),
    "two pickles of one name": Case(
        lambda: more(Member("archive/data.pkl", pickled(SYSTEM, 2))), "two members of the ZIP have the same name"
    ),
    "a pickle in capitals": Case(
        lambda: more(Member("archive/DATA.PKL", pickled(SYSTEM, 2))),
        "a ZIP member is called 'archive/DATA.PKL', which torch.save never writes",
    ),
    "a second root": Case(
        lambda: more(Member("evil/data.pkl", pickled(SYSTEM, 2))),
        "a ZIP member is called 'evil/data.pkl', which torch.save never writes",
    ),
    "a root inside a root": Case(
        lambda: archive(members(pickled(NONE, 2), root="a/b")),
        "a ZIP member is called 'a/b/data.pkl', which torch.save never writes",
    ),
    "no root": Case(
        lambda: archive([Member("data.pkl", pickled(NONE, 2))]),
        "a ZIP member is called 'data.pkl', which torch.save never writes",
    ),
    "a path upwards": Case(
        lambda: more(Member("archive/../data.pkl", pickled(SYSTEM, 2))),
        "a ZIP member is called 'archive/../data.pkl', which torch.save never writes",
    ),
    "a TorchScript archive": Case(
        lambda: more(Member("archive/constants.pkl", pickled(SYSTEM, 2))),
        "a ZIP member is called 'archive/constants.pkl', which torch.save never writes",
    ),
    "code": Case(
        lambda: more(Member("archive/code/__torch__.py", b"")),
        "a ZIP member is called 'archive/code/__torch__.py', which torch.save never writes",
    ),
    "no pickle": Case(lambda: archive(members(pickled(NONE, 2))[1:]), "the ZIP has no data.pkl"),
    "no member at all": Case(lambda: archive([]), "it ends inside a line"),
    "a gap": Case(
        lambda: altered("version", before=b"gap"),
        "a ZIP member begins at N instead of 2,318: members overlap or leave a gap",
    ),
    "something before the directory": Case(
        lambda: archive([*queued()[:-1], Member("archive/.data/serialization_id", b"0", behind=bytes(16) + b"x")]),
        "the data descriptor of a ZIP member differs from the directory",
    ),
    "something between the members and the directory": Case(
        gaping, "3 bytes are between the ZIP's last member and its directory"
    ),
    "a beginning without an end": Case(lambda: b"PK\x03\x04", "the ZIP was cut short"),
    "a ZIP64 end record of another kind": Case(
        lambda: patched(3, b"\x09", b"PK\x06\x06"), "the ZIP64 end record is malformed"
    ),
    "a directory of another kind": Case(lambda: patched(3, b"\x09", ENTRY), "the ZIP's directory is malformed"),
    "a member with two sizes": Case(lambda: patched(20, b"\x01", ENTRY), "a stored ZIP member has two sizes"),
    "an extra field in the directory": Case(
        lambda: altered("version", inside=b"up\x00\x00"), "a ZIP member has an unexpected extra field in the directory"
    ),
    "a member of another day": Case(
        lambda: patched(10, b"\x01"), "a ZIP member's local header differs from the directory"
    ),
    "a name that is not ASCII": Case(lambda: more(Member("archive/dätä", b"")), "a ZIP member's name is not ASCII"),
    "members on top of each other": Case(
        overlapping, "a ZIP member begins at N instead of 74: members overlap or leave a gap"
    ),
    "an entry too few": Case(
        lambda: archive(queued(), count=len(queued()) - 1), "the ZIP's directory has more bytes than entries"
    ),
    "an entry too many": Case(
        lambda: archive(queued(), count=len(queued()) + 1), "the ZIP's directory has fewer entries than it declares"
    ),
    "two end records that differ": Case(
        lambda: archive(queued(), wide=(1, 1, 1)), "the two end records of the ZIP differ"
    ),
    "a directory of gigabytes": Case(
        lambda: b"PK\x03\x04" + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFF00, 4, 0),
        "a ZIP directory of 4,294,967,040 bytes; at most 16,777,216 are read",
    ),
    "big-endian numbers": Case(
        lambda: altered("byteorder", content=b"big"), "the numbers in the ZIP are not little-endian"
    ),
    "a pickle behind the pickle": Case(
        lambda: archive(members(pickled(NONE, 2) + pickled(SYSTEM, 2))), "41 bytes follow the end of the pickle", True
    ),
}
