"""Writes the canonical archive that `torch.save` writes, around the batch of a TransferQueue or the tensors of a batch.

As in `archive`: one ZIP from byte 0 to its only end record, stored, flags 0x0808, each member's data at a multiple of
64 bytes. The bytes depend on nothing but the values; tensors are copied from where they lie, a block at a time.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.load import STORAGE_DTYPES, Consolidated, Datum, Name, Stack, Tree
from rolloutdeck.safe_pickle.rewrite.pickle_writer import COPY_BLOCK_BYTES, WRITERS_BY_TYPE, PickleWriter
from rolloutdeck.safe_pickle.rewrite.row_selection import SelectedJaggedTensor, SelectedTensor

ROOT = "archive"
ALIGNMENT = 64
FLAGS = 0x0808
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF

KINDS = {dtype: Name("torch", storage) for storage, dtype in STORAGE_DTYPES.items()}
TENSOR = Name("torch._utils", "_rebuild_tensor_v2")
TYPED = Name("torch._tensor", "_rebuild_from_type_v2")
NESTED = "torch.nested._internal.nested_tensor"
TENSORDICT = Name("tensordict._td", "TensorDict")
MADE = Name("tensordict._reductions", "_make_td")
WHOLE = Name("tensordict._reductions", "_rebuild_tensordict_files_consolidated")
STACK, DATUM = (Name("tensordict.tensorclass", name) for name in ("NonTensorStack", "NonTensorData"))


def write_torch_batch(value: Any, file: BinaryIO) -> None:
    """Raises SafePickleError for a value that can't be written again."""
    archive = ZipWriter(file)
    archive.begin("data.pkl")
    packer = ArchivePickler(archive)  # type: ignore[arg-type]
    packer.put(b"\x80\x04")
    packer.value(value)
    packer.put(b".")
    archive.begin("byteorder")
    archive.write(b"little")
    for place, tensor in enumerate(packer.tensors):
        archive.begin(f"data/{place}", len(tensor.data))
        for piece in tensor.data.pieces(COPY_BLOCK_BYTES):
            archive.write(piece)
    archive.begin("version")
    archive.write(b"3\n")
    archive.end()


class ArchivePickler(PickleWriter):
    """The pickle of an archive. `tensors`: what its members `data/0`, `data/1`, … hold."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.tensors: list[SelectedTensor] = []

    def plain(self, value: SelectedTensor) -> None:
        """A tensor on a storage of its own; one that stands in several places is one tensor in all of them."""
        if self.known(id(value)):
            return
        stride: list[int] = []
        step = 1
        for size in reversed(value.shape):
            stride.insert(0, step)
            step *= size
        self.name(TENSOR)
        self.put(b"(")
        self.value(("storage", KINDS[value.dtype], str(len(self.tensors)), "cpu", step))
        self.put(b"Q")
        self.tensors.append(value)
        for part in (0, value.shape, tuple(stride), False):
            self.value(part)
        self.value(OrderedDict())
        self.put(b"tR")
        self.remember(id(value), value)

    def ragged(self, value: SelectedJaggedTensor) -> None:
        """A jagged tensor; torch finds out for itself which row is the longest."""
        if self.known(id(value)):
            return
        parts: dict[str, Any] = {
            "values": value.values,
            "offsets": value.offsets,
            "lengths": None,
            "_ragged_idx": 1,
            "_metadata_cache": {},
            "requires_grad": False,
        }
        self.call(TYPED, (Name(NESTED, "_rebuild_njt"), Name(NESTED, "NestedTensor"), (parts,), {}), value)

    def tree(self, value: Tree) -> None:
        if not self.known(id(value)):
            self.call(MADE, (TENSORDICT, value.state), value)

    def whole(self, value: Consolidated) -> None:
        if not self.known(id(value)):
            self.call(WHOLE, (value.metadata, value.data), value)

    def stack(self, value: Stack) -> None:
        self.filled(STACK, value)

    def datum(self, value: Datum) -> None:
        self.filled(DATUM, value)

    def filled(self, name: Name, value: Stack | Datum) -> None:
        if self.known(id(value)):
            return
        self.name(name)
        self.put(b")\x81")
        self.remember(id(value), value)
        self.state(value.state)

    table = {
        **WRITERS_BY_TYPE,
        SelectedTensor: plain,
        SelectedJaggedTensor: ragged,
        Tree: tree,
        Consolidated: whole,
        Stack: stack,
        Datum: datum,
    }


class ZipWriter:
    """Members one after the other; each is ended by the next, and all by `end`."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.at = 0
        self.waiting = bytearray()  # a pickle comes in a few bytes at a time
        self.entries: list[bytes] = []
        self.member: ZipMember | None = None

    def begin(self, name: str, length: int = 0) -> None:
        """`length`: how many bytes will come, where it may be 4 GiB or more."""
        self.close()
        self.member = ZipMember(f"{ROOT}/{name}".encode(), self.at, length)
        self.put(self.member.head())

    def write(self, data: bytes) -> None:
        self.waiting += data
        if len(self.waiting) >= COPY_BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        assert self.member is not None
        self.member.crc = zlib.crc32(self.waiting, self.member.crc)
        self.member.size += len(self.waiting)
        self.put(self.waiting)
        self.waiting = bytearray()

    def put(self, data: bytes | bytearray) -> None:
        self.file.write(data)
        self.at += len(data)

    def close(self) -> None:
        if self.member is not None:
            self.flush()
            self.put(self.member.behind())
            self.entries.append(self.member.entry())

    def end(self) -> None:
        """The directory, and both end records, as torch always writes them."""
        self.close()
        directory, count, start = b"".join(self.entries), len(self.entries), self.at
        wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, count, count, len(directory), start)
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(directory), 1)
        few = (min(count, FULL16), min(count, FULL16), min(len(directory), FULL32), min(start, FULL32))
        self.put(directory + wide + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, *few, 0))


class ZipMember:
    """`at`: where it begins. Its checksum and size stand behind its data, and in the directory."""

    def __init__(self, name: bytes, at: int, length: int) -> None:
        self.name, self.at = name, at
        self.wide = length >= FULL32 or at >= FULL32
        self.crc = self.size = 0

    def head(self) -> bytes:
        begin = self.at + 30 + len(self.name) + 4
        padding = b"Z" * (-begin % ALIGNMENT)
        fixed = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, FLAGS, 0, 0, 0, 0, 0, 0, len(self.name), 4 + len(padding))
        return fixed + self.name + b"FB" + struct.pack("<H", len(padding)) + padding

    def behind(self) -> bytes:
        return struct.pack("<4sIQQ" if self.wide else "<4sIII", b"PK\x07\x08", self.crc, self.size, self.size)

    def entry(self) -> bytes:
        large = [value for value in (self.size, self.size, self.at) if value >= FULL32]
        extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size = min(self.size, FULL32)
        fixed = struct.pack("<4s6H3I", b"PK\x01\x02", 0, 0, FLAGS, 0, 0, 0, self.crc, size, size)
        rest = struct.pack("<5H2I", len(self.name), len(extra), 0, 0, 0, 0, min(self.at, FULL32))
        return fixed + rest + self.name + extra
