"""Writes the batch of a TransferQueue, or the tensors of a batch, as the canonical archive of `torch.save`.

The format is that of `stream.torch_archive`: one ZIP from byte 0 to its only end record, stored, flags 0x0808, each
member's data at a multiple of 64 bytes. The bytes depend only on the values. Tensors are copied from their file in
blocks.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.load import Consolidated, Datum, Name, Stack, Tree
from rolloutdeck.safe_pickle.rewrite.pickle_writer import COPY_BLOCK_BYTES, WRITERS_BY_TYPE, PickleWriter
from rolloutdeck.safe_pickle.rewrite.row_selection import SelectedJaggedTensor, SelectedTensor
from rolloutdeck.safe_pickle.stream import STORAGE_DTYPES

ROOT = "archive"
ALIGNMENT = 64
FLAGS = 0x0808
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF

STORAGE_NAMES = {dtype: Name("torch", storage) for storage, dtype in STORAGE_DTYPES.items()}
REBUILD_TENSOR = Name("torch._utils", "_rebuild_tensor_v2")
REBUILD_TYPED = Name("torch._tensor", "_rebuild_from_type_v2")
NESTED = "torch.nested._internal.nested_tensor"
TENSORDICT = Name("tensordict._td", "TensorDict")
MAKE_TENSORDICT = Name("tensordict._reductions", "_make_td")
REBUILD_CONSOLIDATED = Name("tensordict._reductions", "_rebuild_tensordict_files_consolidated")


def write_torch_batch(value: Any, file: BinaryIO) -> None:
    """Writes a batch to `file`. Raises SafePickleError for a value that can't be written."""
    write_archive(value, file, ArchivePickler)


def write_archive(value: Any, file: BinaryIO, pickler_type: type[ArchivePickler]) -> None:
    archive = ZipWriter(file)
    archive.begin_member("data.pkl")
    pickler = pickler_type(archive.write)
    pickler.write_pickle(value)
    archive.begin_member("byteorder")
    archive.write(b"little")
    for index, tensor in enumerate(pickler.tensors):
        archive.begin_member(f"data/{index}", len(tensor.data))
        for block in tensor.data.pieces(COPY_BLOCK_BYTES):
            archive.write(block)
    archive.begin_member("version")
    archive.write(b"3\n")
    archive.finish()


class ArchivePickler(PickleWriter):
    """Writes the pickle of an archive. `tensors`: the contents of its members `data/0`, `data/1`, …"""

    def __init__(self, put: Callable[[bytes], object]) -> None:
        super().__init__(put)
        self.tensors: list[SelectedTensor] = []

    def write_tensor(self, value: SelectedTensor) -> None:
        """Writes a tensor on a separate storage."""
        stride = tuple(prod(value.shape[dimension + 1 :]) for dimension in range(len(value.shape)))
        self.write_value(REBUILD_TENSOR)
        self.put(b"(")
        self.write_value(("storage", STORAGE_NAMES[value.dtype], str(len(self.tensors)), "cpu", prod(value.shape)))
        self.put(b"Q")
        self.tensors.append(value)
        parts: tuple[Any, ...] = (0, value.shape, stride, False, OrderedDict())
        for part in parts:
            self.write_value(part)
        self.put(b"tR")
        self.memoize(value)

    def write_jagged(self, value: SelectedJaggedTensor) -> None:
        """Writes a jagged tensor. Torch computes the length of the longest row itself."""
        parts = {"values": value.values, "offsets": value.offsets, "lengths": None}
        options = {"_ragged_idx": 1, "_metadata_cache": {}, "requires_grad": False}
        names = Name(NESTED, "_rebuild_njt"), Name(NESTED, "NestedTensor")
        self.write_call(REBUILD_TYPED, (*names, ({**parts, **options},), {}), value)

    def write_tensordict(self, value: Tree) -> None:
        self.write_call(MAKE_TENSORDICT, (TENSORDICT, value.state), value)

    def write_consolidated(self, value: Consolidated) -> None:
        self.write_call(REBUILD_CONSOLIDATED, (value.metadata, value.data), value)

    writers_by_type: Mapping[type, Callable[[Any, Any], None]] = {
        **WRITERS_BY_TYPE,
        SelectedTensor: write_tensor,
        SelectedJaggedTensor: write_jagged,
        Tree: write_tensordict,
        Consolidated: write_consolidated,
        Stack: PickleWriter.write_object,
        Datum: PickleWriter.write_object,
    }


class ZipWriter:
    """Writes members one after the other. `begin_member` ends the previous one, `finish` ends the archive."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.at = 0
        self.buffer = bytearray()  # a pickle is written a few bytes at a time
        self.entries: list[bytes] = []
        self.member: ZipMember | None = None

    def begin_member(self, name: str, length: int = 0) -> None:
        """Begins a member. `length`: its size in bytes, needed only if it can be 4 GiB or more."""
        self.end_member()
        self.member = ZipMember(f"{ROOT}/{name}".encode(), self.at, length)
        self.put(self.member.build_header())

    def write(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) >= COPY_BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        assert self.member is not None
        self.member.crc = zlib.crc32(self.buffer, self.member.crc)
        self.member.size += len(self.buffer)
        self.put(self.buffer)
        self.buffer = bytearray()

    def put(self, data: bytes | bytearray) -> None:
        self.file.write(data)
        self.at += len(data)

    def end_member(self) -> None:
        if self.member is not None:
            self.flush()
            self.put(self.member.build_data_descriptor())
            self.entries.append(self.member.build_directory_entry())

    def finish(self) -> None:
        """Writes the directory and both end records, as torch always does."""
        self.end_member()
        directory, count, start = b"".join(self.entries), len(self.entries), self.at
        zip64_end = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, count, count, len(directory), start)
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(directory), 1)
        capped = (min(count, FULL16), min(count, FULL16), min(len(directory), FULL32), min(start, FULL32))
        self.put(directory + zip64_end + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, *capped, 0))


class ZipMember:
    """A member that begins at `at`. Its checksum and size are written after its data and in the directory."""

    def __init__(self, name: bytes, at: int, length: int) -> None:
        self.name, self.at = name, at
        self.zip64 = length >= FULL32 or at >= FULL32
        self.crc = self.size = 0

    def build_header(self) -> bytes:
        begin = self.at + 30 + len(self.name) + 4
        padding = b"Z" * (-begin % ALIGNMENT)
        lengths = (len(self.name), 4 + len(padding))
        fixed = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, FLAGS, 0, 0, 0, 0, 0, 0, *lengths)
        return fixed + self.name + b"FB" + struct.pack("<H", len(padding)) + padding

    def build_data_descriptor(self) -> bytes:
        return struct.pack("<4sIQQ" if self.zip64 else "<4sIII", b"PK\x07\x08", self.crc, self.size, self.size)

    def build_directory_entry(self) -> bytes:
        oversized = [value for value in (self.size, self.size, self.at) if value >= FULL32]
        extra = struct.pack(f"<HH{len(oversized)}Q", 1, 8 * len(oversized), *oversized) if oversized else b""
        size = min(self.size, FULL32)
        fixed = struct.pack("<4s6H3I", b"PK\x01\x02", 0, 0, FLAGS, 0, 0, 0, self.crc, size, size)
        rest = struct.pack("<5H2I", len(self.name), len(extra), 0, 0, 0, 0, min(self.at, FULL32))
        return fixed + rest + self.name + extra
