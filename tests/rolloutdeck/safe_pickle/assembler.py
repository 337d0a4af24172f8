"""Pickles and torch archives written opcode by opcode and header by header, so that one thing in them can be wrong."""

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


def data(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def row(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def listed(*parts: bytes) -> bytes:
    return b"](" + b"".join(parts) + b"e"


def mapped(**parts: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + part for key, part in parts.items()) + b"u"


def named(dotted: str) -> bytes:
    """A global, as protocol 4 writes it; in torch's archives GLOBAL says the same."""
    module, _, name = dotted.rpartition(".")
    return text(module) + text(name) + b"\x93"


def call(target: bytes | str, *args: bytes) -> bytes:
    return (named(target) if isinstance(target, str) else target) + row(*args) + b"R"


def new(dotted: str) -> bytes:
    return named(dotted) + EMPTY_TUPLE + b"\x81"


def set_state(thing: bytes, state: bytes) -> bytes:
    return thing + state + b"b"


def pickled(body: bytes, protocol: int = 4) -> bytes:
    return b"\x80" + bytes([protocol]) + body + STOP


# numpy

SIMPLE = (number(3), text("<"), NONE, NONE, NONE, number(-1), number(-1), number(0))
OBJECTS = (number(3), text("|"), NONE, NONE, NONE, number(-1), number(-1), number(63))


def dtype(code: str = "i8", state: tuple[bytes, ...] = SIMPLE) -> bytes:
    return set_state(call("numpy.dtype", text(code), FALSE, TRUE), row(*state))


def blank() -> bytes:
    return call("numpy._core.multiarray._reconstruct", named("numpy.ndarray"), row(number(0)), data(b"b"))


def array(content: bytes, count: int, kind: bytes | None = None) -> bytes:
    state = row(number(1), row(number(count)), dtype() if kind is None else kind, FALSE, content)
    return set_state(blank(), state)


def objects(*values: bytes) -> bytes:
    return array(listed(*values), len(values), dtype("O8", OBJECTS))


# torch and tensordict

HOOKS = call("collections.OrderedDict")


def storage(elements: int, key: str = "0", kind: str = "Byte", place: str = "cpu") -> bytes:
    return row(text("storage"), named(f"torch.{kind}Storage"), text(key), text(place), number(elements)) + b"Q"


def parts(held: bytes, size: int, stride: int = 1, hooks: bytes = HOOKS, offset: int = 0) -> tuple[bytes, ...]:
    return held, number(offset), row(number(size)), row(number(stride)), FALSE, hooks


def tensor(held: bytes, size: int, stride: int = 1, hooks: bytes = HOOKS, offset: int = 0) -> bytes:
    return call(TENSOR, *parts(held, size, stride, hooks, offset))


def expanded(held: bytes, rows: int, size: int) -> bytes:
    """The same `size` numbers in each row: `held.expand(rows, size)`."""
    shape, stride = row(number(rows), number(size)), row(number(0), number(1))
    return call(TENSOR, held, number(0), shape, stride, FALSE, HOOKS)


def leaf(dtype: str, size: int, start: int, stop: int) -> bytes:
    return row(text(dtype), listed(number(size)), number(start), number(stop), number(0))


def consolidated(held: bytes, cls: bytes | None = None, **leaves: bytes) -> bytes:
    settings = mapped(device=NONE, names=listed(NONE), batch_size=listed(number(2)), is_locked=FALSE)
    values = {
        "cls": text("TensorDict") if cls is None else cls,
        "non_tensors": EMPTY_DICT,
        "leaves": mapped(**leaves),
        "cls_metadata": settings,
    }
    return call("tensordict._reductions._rebuild_tensordict_files_consolidated", mapped(**values), held)


def jagged(values: bytes, offsets: bytes, kept: bytes = b"") -> bytes:
    """`kept`: the attributes that torch adds to the arguments."""
    inside = "torch.nested._internal.nested_tensor"
    result = mapped(
        values=values,
        offsets=offsets,
        lengths=NONE,
        _ragged_idx=number(1),
        _metadata_cache=EMPTY_DICT,
        requires_grad=FALSE,
    )
    names = named(f"{inside}._rebuild_njt"), named(f"{inside}.NestedTensor")
    return call("torch._tensor._rebuild_from_type_v2", *names, row(result), kept or mapped(_ragged_idx=number(1)))


def tensordict(**content: bytes) -> bytes:
    size = call("torch.Size", row(number(2)))
    state = mapped(_tensordict=mapped(**content), _device=NONE, _batch_size=size, _td_dim_names=NONE)
    return call("tensordict._reductions._make_td", named("tensordict._td.TensorDict"), state)


def value(content: bytes) -> bytes:
    result = mapped(data=content, _metadata=NONE, _is_non_tensor=TRUE)
    return set_state(
        new("tensordict.tensorclass.NonTensorData"), mapped(tensordict=tensordict(), non_tensordict=result)
    )


def stack(*values: bytes, **more: bytes) -> bytes:
    size = call("torch.Size", row(number(len(values))))
    state = mapped(_is_locked=NONE, stack_dim=number(0), _batch_size=size, tensordicts=listed(*values), **more)
    return set_state(new("tensordict.tensorclass.NonTensorStack"), state)


def queue(content: bytes) -> bytes:
    """The pickle of a `tq_batch.pt` of two rows."""
    keys, tags = listed(text("a_0_0"), text("a_1_0")), listed(EMPTY_DICT, EMPTY_DICT)
    return pickled(mapped(tensordict=content, tags=tags, keys=keys, global_steps=number(1)), 2)


# torch's ZIP


@dataclass(frozen=True)
class Member:
    """A file in an archive; what stands in its own header may be told otherwise than in the directory."""

    name: str
    content: bytes
    local_name: str = ""
    flags: int = 0x0808
    method: int = 0
    local_size: int = 0
    told_size: int = -1  # in the directory and in the data descriptor
    behind: bytes | None = None
    before: bytes = b""  # a gap
    extra: bytes = b"FB\x04\x00ZZZZ"
    inside: bytes = b""  # an extra field in the directory
    comment: bytes = b""

    def local(self) -> bytes:
        name = (self.local_name or self.name).encode()
        sizes = self._crc(False), self.local_size, self.local_size, len(name), len(self.extra)
        head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, self.flags, self.method, 0, 0, *sizes)
        return head + name + self.extra + self.content + self._behind()

    def _crc(self, always: bool) -> int:
        return zlib.crc32(self.content) if always or not self.flags & 8 else 0

    def _size(self) -> int:
        return len(self.content) if self.told_size < 0 else self.told_size

    def _behind(self) -> bytes:
        if self.behind is not None:
            return self.behind
        result = struct.pack("<4sIII", b"PK\x07\x08", self._crc(True), self._size(), self._size())
        return result if self.flags & 8 else b""

    def entry(self, at: int) -> bytes:
        name = self.name.encode()
        fields = (0, 0, self.flags, self.method, 0, 0, self._crc(True), self._size(), self._size(), len(name))
        head = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, len(self.inside), len(self.comment), 0, 0, 0, at)
        return head + name + self.inside + self.comment


def members(program: bytes, *storages: bytes, root: str = "archive") -> list[Member]:
    inside = {"data.pkl": program, ".format_version": b"1", ".storage_alignment": b"64", "byteorder": b"little"}
    inside |= {f"data/{number}": content for number, content in enumerate(storages)}
    inside |= {"version": b"3\n", ".data/serialization_id": b"0" * 40}
    return [Member(f"{root}/{name}", content) for name, content in inside.items()]


def changed(files: list[Member], name: str, **changes: object) -> list[Member]:
    return [replace(file, **changes) if file.name == name else file for file in files]  # type: ignore[arg-type]


def archive(files: list[Member], comment: bytes = b"", count: int = -1, wide: tuple[int, ...] | None = None) -> bytes:
    """torch's layout: members, directory, ZIP64 end record, its locator, end record."""
    body = b""
    directory = b""
    for file in files:
        body += file.before
        directory += file.entry(len(body))
        body += file.local()
    total = len(files) if count < 0 else count
    return body + directory + ending(total, len(directory), len(body), comment, wide)


def ending(count: int, length: int, start: int, comment: bytes = b"", wide: tuple[int, ...] | None = None) -> bytes:
    """The records behind a directory; `wide`: what the ZIP64 one says of entries, length and start."""
    end64 = struct.pack(
        "<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, (wide or (count,))[0], *(wide or (count, length, start))
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + length, 1)
    result = (count, count, length, min(start, 0xFFFFFFFF), len(comment))
    return end64 + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, *result) + comment


# Whole files that nothing is wrong with

BYTES = bytes(16)
FIELDS = {"prompts": leaf("torch.int64", 2, 0, 16)}


def saved(body: bytes, *storages: bytes) -> bytes:
    """What `torch.save` writes for an object."""
    return archive(members(pickled(body, 2), *storages))


def batch() -> bytes:
    return saved(consolidated(tensor(storage(16), 16), **FIELDS), BYTES)


def proto(inside: bytes | None = None, columns: bytes = EMPTY_DICT, meta: bytes = EMPTY_DICT) -> bytes:
    """A `gen_batch.dp`; `inside` are the opcodes of its batch."""
    held = data(batch()) if inside is None else inside
    return pickled(set_state(new("verl.protocol.DataProto"), row(held, columns, meta)))


def buffer(inside: bytes | None = None, position: bytes | None = None, attributes: bytes = NONE) -> bytes:
    """A BytesIO; `inside` are the opcodes of its bytes."""
    held = data(batch()) if inside is None else inside
    return set_state(new("_io.BytesIO"), row(held, position or number(0), attributes))


def rollout(held: bytes | None = None, elsewhere: bytes = NONE, meta: bytes = EMPTY_DICT) -> bytes:
    """A `step_000000.pkl` of ROLL; `held` is its buffer."""
    parts = (buffer() if held is None else held), EMPTY_DICT, elsewhere, meta
    return pickled(set_state(new("roll.distributed.scheduler.protocol.DataProto"), row(*parts)))


def queued() -> list[Member]:
    """The members of a `tq_batch.pt`."""
    values, offsets = tensor(storage(8, "0", "Long"), 8), tensor(storage(3, "1", "Long"), 3)
    content = tensordict(prompts=jagged(values, offsets), uid=stack(value(text("a")), value(text("b"))))
    return members(queue(content), bytes(64), struct.pack("<3q", 0, 3, 8))


def get(index: int) -> bytes:
    """The memo entry with this number."""
    return b"j" + struct.pack("<I", index)


def build_repeated(prepare: bytes, use: bytes, times: int, protocol: int = 4) -> bytes:
    """A pickle that fills the memo by `prepare`, and then builds the same value again and again. Its value is None."""
    return pickled(NONE + prepare + (use + b"0") * times, protocol)
