"""Writes pickles and torch archives opcode by opcode and header by header, so that a test can make one part invalid."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

NONE, TRUE, FALSE = b"N", b"\x88", b"\x89"
EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE = b"}", b"]", b")"
STOP = b"."

TENSOR = "torch._utils._rebuild_tensor_v2"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def bytes_(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def tuple_(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def list_(*parts: bytes) -> bytes:
    return b"](" + b"".join(parts) + b"e"


def dict_(**parts: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + part for key, part in parts.items()) + b"u"


def global_name(dotted: str) -> bytes:
    """A global, as protocol 4 writes it; in torch's archives GLOBAL says the same."""
    module, _, name = dotted.rpartition(".")
    return text(module) + text(name) + b"\x93"


def call(target: bytes | str, *args: bytes) -> bytes:
    return (global_name(target) if isinstance(target, str) else target) + tuple_(*args) + b"R"


def new_object(dotted: str) -> bytes:
    return global_name(dotted) + EMPTY_TUPLE + b"\x81"


def set_state(instance: bytes, state: bytes) -> bytes:
    return instance + state + b"b"


def build_pickle(body: bytes, protocol: int = 4) -> bytes:
    return b"\x80" + bytes([protocol]) + body + STOP


# numpy

SIMPLE = (number(3), text("<"), NONE, NONE, NONE, number(-1), number(-1), number(0))
OBJECTS = (number(3), text("|"), NONE, NONE, NONE, number(-1), number(-1), number(63))


def dtype(code: str = "i8", state: tuple[bytes, ...] = SIMPLE) -> bytes:
    return set_state(call("numpy.dtype", text(code), FALSE, TRUE), tuple_(*state))


def empty_array() -> bytes:
    return call("numpy._core.multiarray._reconstruct", global_name("numpy.ndarray"), tuple_(number(0)), bytes_(b"b"))


def array(content: bytes, count: int, kind: bytes | None = None) -> bytes:
    state = tuple_(number(1), tuple_(number(count)), dtype() if kind is None else kind, FALSE, content)
    return set_state(empty_array(), state)


def object_array(*values: bytes) -> bytes:
    return array(list_(*values), len(values), dtype("O8", OBJECTS))


# torch and tensordict

HOOKS = call("collections.OrderedDict")


def storage(elements: int, key: str = "0", kind: str = "Byte", place: str = "cpu") -> bytes:
    return tuple_(text("storage"), global_name(f"torch.{kind}Storage"), text(key), text(place), number(elements)) + b"Q"


def tensor_arguments(
    backing: bytes, size: int, stride: int = 1, hooks: bytes = HOOKS, offset: int = 0
) -> tuple[bytes, ...]:
    return backing, number(offset), tuple_(number(size)), tuple_(number(stride)), FALSE, hooks


def tensor(backing: bytes, size: int, stride: int = 1, hooks: bytes = HOOKS, offset: int = 0) -> bytes:
    return call(TENSOR, *tensor_arguments(backing, size, stride, hooks, offset))


def expanded_tensor(backing: bytes, rows: int, size: int) -> bytes:
    """The same `size` numbers in each row: `backing.expand(rows, size)`."""
    shape, stride = tuple_(number(rows), number(size)), tuple_(number(0), number(1))
    return call(TENSOR, backing, number(0), shape, stride, FALSE, HOOKS)


def leaf(dtype: str, size: int, start: int, stop: int) -> bytes:
    return tuple_(text(dtype), list_(number(size)), number(start), number(stop), number(0))


def consolidated_tensordict(tensor_bytes: bytes, cls: bytes | None = None, **leaves: bytes) -> bytes:
    settings = dict_(device=NONE, names=list_(NONE), batch_size=list_(number(2)), is_locked=FALSE)
    values = {
        "cls": text("TensorDict") if cls is None else cls,
        "non_tensors": EMPTY_DICT,
        "leaves": dict_(**leaves),
        "cls_metadata": settings,
    }
    return call("tensordict._reductions._rebuild_tensordict_files_consolidated", dict_(**values), tensor_bytes)


def jagged_tensor(values: bytes, offsets: bytes, attributes: bytes = b"") -> bytes:
    """`attributes`: the attributes that torch adds to the arguments."""
    module = "torch.nested._internal.nested_tensor"
    result = dict_(
        values=values,
        offsets=offsets,
        lengths=NONE,
        _ragged_idx=number(1),
        _metadata_cache=EMPTY_DICT,
        requires_grad=FALSE,
    )
    names = global_name(f"{module}._rebuild_njt"), global_name(f"{module}.NestedTensor")
    return call(
        "torch._tensor._rebuild_from_type_v2", *names, tuple_(result), attributes or dict_(_ragged_idx=number(1))
    )


def tensordict(**content: bytes) -> bytes:
    size = call("torch.Size", tuple_(number(2)))
    state = dict_(_tensordict=dict_(**content), _device=NONE, _batch_size=size, _td_dim_names=NONE)
    return call("tensordict._reductions._make_td", global_name("tensordict._td.TensorDict"), state)


def non_tensor_data(content: bytes) -> bytes:
    result = dict_(data=content, _metadata=NONE, _is_non_tensor=TRUE)
    return set_state(
        new_object("tensordict.tensorclass.NonTensorData"), dict_(tensordict=tensordict(), non_tensordict=result)
    )


def non_tensor_stack(*values: bytes, **more: bytes) -> bytes:
    size = call("torch.Size", tuple_(number(len(values))))
    state = dict_(_is_locked=NONE, stack_dim=number(0), _batch_size=size, tensordicts=list_(*values), **more)
    return set_state(new_object("tensordict.tensorclass.NonTensorStack"), state)


def queue_pickle(content: bytes) -> bytes:
    """The pickle of a `tq_batch.pt` of two rows."""
    keys, tags = list_(text("a_0_0"), text("a_1_0")), list_(EMPTY_DICT, EMPTY_DICT)
    return build_pickle(dict_(tensordict=content, tags=tags, keys=keys, global_steps=number(1)), 2)


# torch's ZIP


@dataclass(frozen=True)
class Member:
    """A file in an archive. Its local header and its entry in the directory may differ."""

    name: str
    content: bytes
    local_name: str = ""
    flags: int = 0x0808
    method: int = 0
    local_size: int = 0
    declared_size: int = -1  # in the directory and in the data descriptor
    descriptor: bytes | None = None  # the data descriptor after the content
    gap: bytes = b""  # before the local header
    extra: bytes = b"FB\x04\x00ZZZZ"
    directory_extra: bytes = b""
    comment: bytes = b""

    def build_local(self) -> bytes:
        name = (self.local_name or self.name).encode()
        sizes = self._crc(False), self.local_size, self.local_size, len(name), len(self.extra)
        head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, self.flags, self.method, 0, 0, *sizes)
        return head + name + self.extra + self.content + self._build_descriptor()

    def _crc(self, always: bool) -> int:
        return zlib.crc32(self.content) if always or not self.flags & 8 else 0

    def _size(self) -> int:
        return len(self.content) if self.declared_size < 0 else self.declared_size

    def _build_descriptor(self) -> bytes:
        if self.descriptor is not None:
            return self.descriptor
        result = struct.pack("<4sIII", b"PK\x07\x08", self._crc(True), self._size(), self._size())
        return result if self.flags & 8 else b""

    def build_entry(self, offset: int) -> bytes:
        name = self.name.encode()
        fields = (0, 0, self.flags, self.method, 0, 0, self._crc(True), self._size(), self._size(), len(name))
        head = struct.pack(
            "<4s6H3I5H2I", b"PK\x01\x02", *fields, len(self.directory_extra), len(self.comment), 0, 0, 0, offset
        )
        return head + name + self.directory_extra + self.comment


def members(program: bytes, *storages: bytes, root: str = "archive") -> list[Member]:
    files = {"data.pkl": program, ".format_version": b"1", ".storage_alignment": b"64", "byteorder": b"little"}
    files |= {f"data/{number}": content for number, content in enumerate(storages)}
    files |= {"version": b"3\n", ".data/serialization_id": b"0" * 40}
    return [Member(f"{root}/{name}", content) for name, content in files.items()]


def change_member(files: list[Member], name: str, **changes: object) -> list[Member]:
    return [replace(file, **changes) if file.name == name else file for file in files]  # type: ignore[arg-type]


def archive(files: list[Member], comment: bytes = b"", count: int = -1, zip64: tuple[int, ...] | None = None) -> bytes:
    """torch's layout: members, directory, ZIP64 end record, its locator, end record."""
    body = b""
    directory = b""
    for file in files:
        body += file.gap
        directory += file.build_entry(len(body))
        body += file.build_local()
    total = len(files) if count < 0 else count
    return body + directory + end_records(total, len(directory), len(body), comment, zip64)


def end_records(
    count: int, length: int, start: int, comment: bytes = b"", zip64: tuple[int, ...] | None = None
) -> bytes:
    """The records after a directory; `zip64`: number of entries, length and start in the ZIP64 record."""
    end64 = struct.pack(
        "<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, (zip64 or (count,))[0], *(zip64 or (count, length, start))
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + length, 1)
    result = (count, count, length, min(start, 0xFFFFFFFF), len(comment))
    return end64 + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, *result) + comment


# Complete valid files

BYTES = bytes(16)
FIELDS = {"prompts": leaf("torch.int64", 2, 0, 16)}


def torch_file(body: bytes, *storages: bytes) -> bytes:
    """A file as `torch.save` writes it for an object."""
    return archive(members(build_pickle(body, 2), *storages))


def batch() -> bytes:
    return torch_file(consolidated_tensordict(tensor(storage(16), 16), **FIELDS), BYTES)


def proto(content: bytes | None = None, columns: bytes = EMPTY_DICT, meta: bytes = EMPTY_DICT) -> bytes:
    """A `gen_batch.dp`; `content` are the opcodes of its batch."""
    content = bytes_(batch()) if content is None else content
    return build_pickle(set_state(new_object("verl.protocol.DataProto"), tuple_(content, columns, meta)))


def buffer(content: bytes | None = None, position: bytes | None = None, attributes: bytes = NONE) -> bytes:
    """A BytesIO; `content` are the opcodes of its bytes."""
    content = bytes_(batch()) if content is None else content
    return set_state(new_object("_io.BytesIO"), tuple_(content, position or number(0), attributes))


def roll_batch(content: bytes | None = None, remote_batch: bytes = NONE, meta: bytes = EMPTY_DICT) -> bytes:
    """A `step_000000.pkl` of ROLL; `content` is its buffer."""
    parts = (buffer() if content is None else content), EMPTY_DICT, remote_batch, meta
    return build_pickle(set_state(new_object("roll.distributed.scheduler.protocol.DataProto"), tuple_(*parts)))


def queue_members() -> list[Member]:
    """The members of a `tq_batch.pt`."""
    values, offsets = tensor(storage(8, "0", "Long"), 8), tensor(storage(3, "1", "Long"), 3)
    content = tensordict(
        prompts=jagged_tensor(values, offsets),
        uid=non_tensor_stack(non_tensor_data(text("a")), non_tensor_data(text("b"))),
    )
    return members(queue_pickle(content), bytes(64), struct.pack("<3q", 0, 3, 8))


def memo_entry(index: int) -> bytes:
    """The memo entry with this number."""
    return b"j" + struct.pack("<I", index)


def build_repeated(prepare: bytes, use: bytes, times: int, protocol: int = 4) -> bytes:
    """A pickle that fills the memo by `prepare`, and then builds the same value again and again. Its value is None."""
    return build_pickle(NONE + prepare + (use + b"0") * times, protocol)
