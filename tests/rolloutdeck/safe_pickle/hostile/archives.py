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
    whole = bytearray(saved(NONE))
    second = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02") + 4)
    whole[second + 42 : second + 46] = bytes(4)
    return bytes(whole)


def patched(at: int, value: bytes, behind: bytes = b"") -> bytes:
    """Bytes replaced at a distance behind the first `behind`."""
    whole = bytearray(archive(queued()))
    begin = whole.index(behind) + at
    whole[begin : begin + len(value)] = value
    return bytes(whole)


def gaping() -> bytes:
    """Bytes between the last member and the directory."""
    files = queued()
    behind = struct.pack("<4sIII", b"PK\x07\x08", zlib.crc32(b"0" * 40), 40, 40) + b"gap"
    return archive([*files[:-1], replace(files[-1], behind=behind)])


ENTRY = b"PK\x01\x02"
ARCHIVES = {
    "an archive that runs something": Case(evil, "'os.system'"),
    "two archives, the second runs something": Case(lambda: joined(archive(queued()), evil()), "at the wrong position"),
    "two archives, the first runs something": Case(lambda: joined(evil(), archive(queued())), "at the wrong position"),
    "two archives by another writer": Case(lambda: joined(zipped(NONE), zipped(SYSTEM)), "does not fill the space"),
    "two archives, the second counted from the first": Case(appended, "instead of 0"),
    "an archive behind a pickle": Case(lambda: pickled(SYSTEM) + archive(queued()), "'os.system'"),
    "an archive behind a legacy stream": Case(
        lambda: legacy(SYSTEM) + archive(queued()), "not contain a batch of verl"
    ),
    "a legacy stream": Case(lambda: legacy(SYSTEM), "not contain a batch of verl"),
    "a tail behind the archive": Case(lambda: archive(queued()) + b"\0", "does not end with its end record"),
    "a comment": Case(lambda: archive(queued(), comment=b"hello"), "does not end with its end record"),
    "an archive inside the comment": Case(lambda: archive(queued(), comment=evil()), "end record"),
    "a header that names another file": Case(lambda: altered("data.pkl", local_name="archive/data.bad"), "differs"),
    "a header of another length": Case(lambda: altered("data.pkl", local_size=7), "differs"),
    "a length behind the member that differs": Case(
        lambda: altered("data.pkl", behind=struct.pack("<4sIII", b"PK\x07\x08", 0, 1, 1)),
        "data descriptor of a ZIP member differs",
    ),
    "a length in the directory that differs": Case(lambda: altered("data.pkl", told_size=30), "differs"),
    "flags of encryption": Case(lambda: altered("data.pkl", flags=0x0809), "flags 0x0809"),
    "a method of compression": Case(lambda: altered("data.pkl", method=8), "is compressed"),
    "deflated by another writer": Case(lambda: zipped(SYSTEM, zipfile.ZIP_DEFLATED), "compressed"),
    "a bomb": Case(bomb, "compressed"),
    "a comment of a member": Case(lambda: altered("version", comment=b"x"), "a comment"),
    "an extra field": Case(lambda: altered("version", extra=b"up\x00\x00"), "unexpected extra field"),
    "padding that hides something": Case(lambda: altered("version", extra=b"FB\x04\x00PK\x03\x04"), "unexpected extra"),
    "two pickles of one name": Case(lambda: more(Member("archive/data.pkl", pickled(SYSTEM, 2))), "same name"),
    "a pickle in capitals": Case(lambda: more(Member("archive/DATA.PKL", pickled(SYSTEM, 2))), "never writes"),
    "a second root": Case(lambda: more(Member("evil/data.pkl", pickled(SYSTEM, 2))), "never writes"),
    "a root inside a root": Case(lambda: archive(members(pickled(NONE, 2), root="a/b")), "never writes"),
    "no root": Case(lambda: archive([Member("data.pkl", pickled(NONE, 2))]), "never writes"),
    "a path upwards": Case(lambda: more(Member("archive/../data.pkl", pickled(SYSTEM, 2))), "never writes"),
    "a TorchScript archive": Case(lambda: more(Member("archive/constants.pkl", pickled(SYSTEM, 2))), "never writes"),
    "code": Case(lambda: more(Member("archive/code/__torch__.py", b"")), "never writes"),
    "no pickle": Case(lambda: archive(members(pickled(NONE, 2))[1:]), "no data.pkl"),
    "no member at all": Case(lambda: archive([]), "ends inside a line"),
    "a gap": Case(lambda: altered("version", before=b"gap"), "leave a gap|overlap"),
    "something before the directory": Case(
        lambda: archive([*queued()[:-1], Member("archive/.data/serialization_id", b"0", behind=bytes(16) + b"x")]),
        "differs",
    ),
    "something between the members and the directory": Case(gaping, "are between"),
    "a beginning without an end": Case(lambda: b"PK\x03\x04", "cut short"),
    "a ZIP64 end record of another kind": Case(lambda: patched(3, b"\x09", b"PK\x06\x06"), "malformed"),
    "a directory of another kind": Case(lambda: patched(3, b"\x09", ENTRY), "directory is malformed"),
    "a member with two sizes": Case(lambda: patched(20, b"\x01", ENTRY), "two sizes"),
    "an extra field in the directory": Case(lambda: altered("version", inside=b"up\x00\x00"), "extra field in the dir"),
    "a member of another day": Case(lambda: patched(10, b"\x01"), "local header differs"),
    "a name that is not ASCII": Case(lambda: more(Member("archive/dätä", b"")), "not ASCII"),
    "members on top of each other": Case(overlapping, "members overlap"),
    "an entry too few": Case(lambda: archive(queued(), count=len(queued()) - 1), "more bytes than entries"),
    "an entry too many": Case(lambda: archive(queued(), count=len(queued()) + 1), "fewer entries"),
    "two end records that differ": Case(lambda: archive(queued(), wide=(1, 1, 1)), "end records of the ZIP differ"),
    "a directory of gigabytes": Case(
        lambda: b"PK\x03\x04" + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFF00, 4, 0), "ZIP directory of"
    ),
    "big-endian numbers": Case(lambda: altered("byteorder", content=b"big"), "not little-endian"),
    "a pickle behind the pickle": Case(
        lambda: archive(members(pickled(NONE, 2) + pickled(SYSTEM, 2))), "bytes follow", True
    ),
}
