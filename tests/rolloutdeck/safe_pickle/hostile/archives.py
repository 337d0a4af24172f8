"""ZIPs that two programs read differently, or that torch never writes."""

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
    build_pickle,
    bytes_,
    change_member,
    members,
    queue_members,
    torch_file,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case, build_legacy_stream


def concatenate(first: bytes, second: bytes) -> bytes:
    """Two archives in one file: it depends on the program which one it reads."""
    return first + second


def build_appended_archive() -> bytes:
    """The second archive follows the first in one file: its positions are right, but do not begin at 0."""
    first = build_system_archive()
    files = members(build_pickle(NONE, 2))
    return archive([replace(files[0], gap=first), *files[1:]])


def zip_with_python(body: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive that Python's `zipfile` wrote."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as target:
        target.writestr("archive/data.pkl", build_pickle(body, 2))
        target.writestr("archive/version", "3\n")
    return file.getvalue()


def build_zip_bomb() -> bytes:
    """A deflated member of 20 MB in 20 kB."""
    return zip_with_python(NONE + b"0" + bytes_(bytes(20 << 20)), zipfile.ZIP_DEFLATED)


def build_system_archive() -> bytes:
    return torch_file(SYSTEM)


def add_members(*extra: Member) -> bytes:
    return archive([*members(build_pickle(NONE, 2)), *extra])


def change_queue_member(name: str, **changes: object) -> bytes:
    return archive(change_member(queue_members(), f"archive/{name}", **changes))


def build_overlapping_members() -> bytes:
    """The directory's second entry points at the first member."""
    full = bytearray(torch_file(NONE))
    second = full.index(b"PK\x01\x02", full.index(b"PK\x01\x02") + 4)
    full[second + 42 : second + 46] = bytes(4)
    return bytes(full)


def replace_bytes(offset: int, value: bytes, marker: bytes = b"") -> bytes:
    """An archive whose bytes at `offset` after the first `marker` are replaced."""
    full = bytearray(archive(queue_members()))
    begin = full.index(marker) + offset
    full[begin : begin + len(value)] = value
    return bytes(full)


def build_archive_with_gap() -> bytes:
    """Bytes between the last member and the directory."""
    files = queue_members()
    descriptor = struct.pack("<4sIII", b"PK\x07\x08", zlib.crc32(b"0" * 40), 40, 40) + b"gap"
    return archive([*files[:-1], replace(files[-1], descriptor=descriptor)])


DIRECTORY_ENTRY = b"PK\x01\x02"
ARCHIVES = {
    "an archive that runs something": Case(build_system_archive, "it names 'os.system'"),
    "two archives, the second runs something": Case(
        lambda: concatenate(archive(queue_members()), build_system_archive()),
        "the ZIP64 end record is at the wrong position",
    ),
    "two archives, the first runs something": Case(
        lambda: concatenate(build_system_archive(), archive(queue_members())),
        "the ZIP64 end record is at the wrong position",
    ),
    "two archives by another writer": Case(
        lambda: concatenate(zip_with_python(NONE), zip_with_python(SYSTEM)),
        "the ZIP's directory does not fill the space up to its end record",
    ),
    "two archives, the second counted from the first": Case(
        build_appended_archive, "a ZIP member begins at N instead of 0: members overlap or leave a gap"
    ),
    "an archive behind a pickle": Case(lambda: build_pickle(SYSTEM) + archive(queue_members()), "it names 'os.system'"),
    "an archive behind a legacy stream": Case(
        lambda: build_legacy_stream(SYSTEM) + archive(queue_members()), "it does not contain a batch of verl or ROLL"
    ),
    "a legacy stream": Case(lambda: build_legacy_stream(SYSTEM), "it does not contain a batch of verl or ROLL"),
    "a tail behind the archive": Case(
        lambda: archive(queue_members()) + b"\0",
        "the ZIP does not end with its end record: it was cut short, or has a tail or a comment",
    ),
    "a comment": Case(
        lambda: archive(queue_members(), comment=b"hello"),
        "the ZIP does not end with its end record: it was cut short, or has a tail or a comment",
    ),
    "an archive inside the comment": Case(
        lambda: archive(queue_members(), comment=build_system_archive()),
        "the ZIP64 end record is at the wrong position",
    ),
    "a header that names another file": Case(
        lambda: change_queue_member("data.pkl", local_name="archive/data.bad"),
        "a ZIP member's local header differs from the directory",
    ),
    "a header of another length": Case(
        lambda: change_queue_member("data.pkl", local_size=7), "a ZIP member's local header differs from the directory"
    ),
    "a length behind the member that differs": Case(
        lambda: change_queue_member("data.pkl", descriptor=struct.pack("<4sIII", b"PK\x07\x08", 0, 1, 1)),
        "the data descriptor of a ZIP member differs from the directory",
    ),
    "a length in the directory that differs": Case(
        lambda: change_queue_member("data.pkl", declared_size=30),
        "the data descriptor of a ZIP member differs from the directory",
    ),
    "flags of encryption": Case(
        lambda: change_queue_member("data.pkl", flags=0x0809),
        "a ZIP member has flags 0x0809, a comment or another disk",
    ),
    "a method of compression": Case(
        lambda: change_queue_member("data.pkl", method=8),
        "a ZIP member is compressed; torch writes members uncompressed",
    ),
    "deflated by another writer": Case(
        lambda: zip_with_python(SYSTEM, zipfile.ZIP_DEFLATED),
        "a ZIP member is compressed; torch writes members uncompressed",
    ),
    "a bomb": Case(build_zip_bomb, "a ZIP member is compressed; torch writes members uncompressed"),
    "a comment of a member": Case(
        lambda: change_queue_member("version", comment=b"x"), "a ZIP member has flags 0x0808, a comment or another disk"
    ),
    "an extra field": Case(
        lambda: change_queue_member("version", extra=b"up\x00\x00"), "a ZIP member has an unexpected extra field"
    ),
    "padding that hides something": Case(
        lambda: change_queue_member("version", extra=b"FB\x04\x00PK\x03\x04"),
        "a ZIP member has an unexpected extra field",
    ),
    "two pickles of one name": Case(
        lambda: add_members(Member("archive/data.pkl", build_pickle(SYSTEM, 2))),
        "two members of the ZIP have the same name",
    ),
    "a pickle in capitals": Case(
        lambda: add_members(Member("archive/DATA.PKL", build_pickle(SYSTEM, 2))),
        "a ZIP member is called 'archive/DATA.PKL', which torch.save never writes",
    ),
    "a second root": Case(
        lambda: add_members(Member("evil/data.pkl", build_pickle(SYSTEM, 2))),
        "a ZIP member is called 'evil/data.pkl', which torch.save never writes",
    ),
    "a root inside a root": Case(
        lambda: archive(members(build_pickle(NONE, 2), root="a/b")),
        "a ZIP member is called 'a/b/data.pkl', which torch.save never writes",
    ),
    "no root": Case(
        lambda: archive([Member("data.pkl", build_pickle(NONE, 2))]),
        "a ZIP member is called 'data.pkl', which torch.save never writes",
    ),
    "a path upwards": Case(
        lambda: add_members(Member("archive/../data.pkl", build_pickle(SYSTEM, 2))),
        "a ZIP member is called 'archive/../data.pkl', which torch.save never writes",
    ),
    "a TorchScript archive": Case(
        lambda: add_members(Member("archive/constants.pkl", build_pickle(SYSTEM, 2))),
        "a ZIP member is called 'archive/constants.pkl', which torch.save never writes",
    ),
    "code": Case(
        lambda: add_members(Member("archive/code/__torch__.py", b"")),
        "a ZIP member is called 'archive/code/__torch__.py', which torch.save never writes",
    ),
    "no pickle": Case(lambda: archive(members(build_pickle(NONE, 2))[1:]), "the ZIP has no data.pkl"),
    "no member at all": Case(lambda: archive([]), "it ends inside a line"),
    "a gap": Case(
        lambda: change_queue_member("version", gap=b"gap"),
        "a ZIP member begins at N instead of 2,318: members overlap or leave a gap",
    ),
    "something before the directory": Case(
        lambda: archive(
            [*queue_members()[:-1], Member("archive/.data/serialization_id", b"0", descriptor=bytes(16) + b"x")]
        ),
        "the data descriptor of a ZIP member differs from the directory",
    ),
    "something between the members and the directory": Case(
        build_archive_with_gap, "3 bytes are between the ZIP's last member and its directory"
    ),
    "a beginning without an end": Case(lambda: b"PK\x03\x04", "the ZIP was cut short"),
    "a ZIP64 end record of another kind": Case(
        lambda: replace_bytes(3, b"\x09", b"PK\x06\x06"), "the ZIP64 end record is malformed"
    ),
    "a directory of another kind": Case(
        lambda: replace_bytes(3, b"\x09", DIRECTORY_ENTRY), "the ZIP's directory is malformed"
    ),
    "a member with two sizes": Case(
        lambda: replace_bytes(20, b"\x01", DIRECTORY_ENTRY), "a stored ZIP member has two sizes"
    ),
    "an extra field in the directory": Case(
        lambda: change_queue_member("version", directory_extra=b"up\x00\x00"),
        "a ZIP member has an unexpected extra field in the directory",
    ),
    "a member of another day": Case(
        lambda: replace_bytes(10, b"\x01"), "a ZIP member's local header differs from the directory"
    ),
    "a name that is not ASCII": Case(
        lambda: add_members(Member("archive/dätä", b"")), "a ZIP member's name is not ASCII"
    ),
    "members on top of each other": Case(
        build_overlapping_members, "a ZIP member begins at N instead of 74: members overlap or leave a gap"
    ),
    "an entry too few": Case(
        lambda: archive(queue_members(), count=len(queue_members()) - 1),
        "the ZIP's directory has more bytes than entries",
    ),
    "an entry too many": Case(
        lambda: archive(queue_members(), count=len(queue_members()) + 1),
        "the ZIP's directory has fewer entries than it declares",
    ),
    "two end records that differ": Case(
        lambda: archive(queue_members(), zip64=(1, 1, 1)), "the two end records of the ZIP differ"
    ),
    "a directory of gigabytes": Case(
        lambda: b"PK\x03\x04" + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFF00, 4, 0),
        "a ZIP directory of 4,294,967,040 bytes; at most 16,777,216 are read",
    ),
    "big-endian numbers": Case(
        lambda: change_queue_member("byteorder", content=b"big"), "the numbers in the ZIP are not little-endian"
    ),
    "a pickle behind the pickle": Case(
        lambda: archive(members(build_pickle(NONE, 2) + build_pickle(SYSTEM, 2))),
        "41 bytes follow the end of the pickle",
        True,
    ),
}
