"""Batches of any size that need no disk space: the bytes of their storage are a hole in the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from tests.rolloutdeck.safe_pickle import assembler as asm

ZIP64 = 0xFFFFFFFF


def pack_zip64_extra(*values: int) -> bytes:
    """The ZIP64 extra field for these sizes and positions."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


class SparseWriter:
    """Writes the members of an archive as torch does, from `start` of a file."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self.file = file
        self.start = start
        self.entries: list[bytes] = []

    def get_position(self) -> int:
        return self.file.tell() - self.start

    def write_member(self, name: str, content: bytes, hole: int = 0) -> None:
        """`hole`: the number of zero bytes instead of content. Sizes and positions from 4 GiB need ZIP64."""
        position, size, title = self.get_position(), hole or len(content), name.encode()
        zip64_sizes = [size, size] if size >= ZIP64 else []
        zip64_position = [position] if position >= ZIP64 else []
        extra = (
            pack_zip64_extra(*zip64_sizes[:1], *[0] * len(zip64_sizes[1:]), *zip64_position)
            if zip64_sizes or zip64_position
            else b""
        )
        self.file.write(struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, 0x0808, 0, 0, 0, 0, 0, 0, len(title), len(extra)))
        self.file.write(title + extra + content)
        self.file.seek(hole, 1)
        self.file.write(struct.pack("<4sIQQ" if extra else "<4sIII", b"PK\x07\x08", 0, size, size))
        header_size, header_position = min(size, ZIP64), min(position, ZIP64)
        fields = (0, 0, 0x0808, 0, 0, 0, 0, header_size, header_size, len(title))
        directory_extra = pack_zip64_extra(*zip64_sizes, *zip64_position) if extra else b""
        head = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, len(directory_extra), 0, 0, 0, 0, header_position)
        self.entries.append(head + title + directory_extra)

    def write_end(self) -> None:
        position, directory = self.get_position(), b"".join(self.entries)
        self.file.write(directory + asm.end_records(len(self.entries), len(directory), position))


def write_archive(file: BinaryIO, size: int) -> None:
    """A tensordict with one field of two rows and `size` bytes, at the file's position."""
    shape = asm.list_(asm.number(2), asm.number(size // 16))
    field = asm.tuple_(asm.text("torch.int64"), shape, asm.number(0), asm.number(size), asm.number(0))
    program = asm.build_pickle(asm.consolidated_tensordict(asm.tensor(asm.storage(size), size), prompts=field), 2)
    writer = SparseWriter(file, file.tell())
    for item in asm.members(program, b""):
        writer.write_member(item.name, item.content, hole=size if item.name.endswith("data/0") else 0)
    writer.write_end()


def write_batch(path: Path, size: int) -> Path:
    """A `gen_batch.dp` with one field of `size` bytes."""
    before = asm.build_pickle(asm.new_object("verl.protocol.DataProto") + b"(" + b"\x8e")[:-1]
    with path.open("wb") as file:
        file.write(before + bytes(8))
        write_archive(file, size)
        length = file.tell() - len(before) - 8
        file.write(asm.EMPTY_DICT + asm.EMPTY_DICT + b"tb.")
        file.seek(len(before))
        file.write(struct.pack("<Q", length))
    return path
