"""Batches of any size that take no room on the disk: the bytes of their storage are a hole in the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from tests.rolloutdeck.safe_pickle import assembler as made

ZIP64 = 0xFFFFFFFF


def wide(*values: int) -> bytes:
    """The ZIP64 extra field for these sizes and positions."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


class Writer:
    """Members one after the other, as torch writes them, at `start` of a file."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self.file = file
        self.start = start
        self.entries: list[bytes] = []

    def at(self) -> int:
        return self.file.tell() - self.start

    def member(self, name: str, content: bytes, hole: int = 0) -> None:
        """`hole`: so many bytes of zeros instead of content. Beyond 4 GiB sizes and positions need ZIP64."""
        at, size, title = self.at(), hole or len(content), name.encode()
        large = [size, size] if size >= ZIP64 else []
        far = [at] if at >= ZIP64 else []
        extra = wide(*large[:1], *[0] * len(large[1:]), *far) if large or far else b""
        self.file.write(struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, 0x0808, 0, 0, 0, 0, 0, 0, len(title), len(extra)))
        self.file.write(title + extra + content)
        self.file.seek(hole, 1)
        self.file.write(struct.pack("<4sIQQ" if extra else "<4sIII", b"PK\x07\x08", 0, size, size))
        result, where = min(size, ZIP64), min(at, ZIP64)
        fields = (0, 0, 0x0808, 0, 0, 0, 0, result, result, len(title))
        inside = wide(*large, *far) if extra else b""
        head = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, len(inside), 0, 0, 0, 0, where)
        self.entries.append(head + title + inside)

    def end(self) -> None:
        at, directory = self.at(), b"".join(self.entries)
        self.file.write(directory + made.ending(len(self.entries), len(directory), at))


def archive(file: BinaryIO, size: int) -> None:
    """A tensordict with one field of two rows and `size` bytes, at the file's position."""
    shape = made.listed(made.number(2), made.number(size // 16))
    field = made.row(made.text("torch.int64"), shape, made.number(0), made.number(size), made.number(0))
    program = made.pickled(made.consolidated(made.tensor(made.storage(size), size), prompts=field), 2)
    writer = Writer(file, file.tell())
    for item in made.members(program, b""):
        writer.member(item.name, item.content, hole=size if item.name.endswith("data/0") else 0)
    writer.end()


def batch(path: Path, size: int) -> Path:
    """A `gen_batch.dp` with one field of `size` bytes."""
    before = made.pickled(made.new("verl.protocol.DataProto") + b"(" + b"\x8e")[:-1]
    with path.open("wb") as file:
        file.write(before + bytes(8))
        archive(file, size)
        length = file.tell() - len(before) - 8
        file.write(made.EMPTY_DICT + made.EMPTY_DICT + b"tb.")
        file.seek(len(before))
        file.write(struct.pack("<Q", length))
    return path
