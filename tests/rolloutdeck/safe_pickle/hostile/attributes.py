"""Objects of torch, tensordict and the standard library with one argument or attribute that they never have."""

from __future__ import annotations

import struct

from tests.rolloutdeck.safe_pickle.assembler import (
    BYTES,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    HOOKS,
    NONE,
    OBJECTS,
    TRUE,
    array,
    batch,
    call,
    data,
    dtype,
    leaf,
    listed,
    mapped,
    named,
    new,
    number,
    proto,
    row,
    saved,
    set_state,
    storage,
    tensor,
    tensordict,
    text,
    value,
)
from tests.rolloutdeck.safe_pickle.hostile.case import Case, build_file, columns

REDUCTIONS = "tensordict._reductions"
INSIDE = "torch.nested._internal.nested_tensor"
SIZE = call("torch.Size", row(number(2)))
RANGE = "torch._dynamo.decorators._DimRange"


def jagged(**changes: bytes) -> bytes:
    """A jagged tensor, some of whose arguments are others."""
    values = {
        "values": tensor(storage(8, "0", "Long"), 8),
        "offsets": tensor(storage(3, "1", "Long"), 3),
        "lengths": NONE,
        "_ragged_idx": number(1),
        "_metadata_cache": EMPTY_DICT,
        "requires_grad": FALSE,
    } | changes
    names = named(f"{INSIDE}._rebuild_njt"), named(f"{INSIDE}.NestedTensor")
    held = call("torch._tensor._rebuild_from_type_v2", *names, row(mapped(**values)), EMPTY_DICT)
    return saved(held, bytes(64), struct.pack("<3q", 0, 3, 8))


def consolidated(held: bytes | None = None, settings: bytes | None = None, **changes: bytes) -> bytes:
    """A tensordict, some of whose metadata are others."""
    usual = mapped(device=NONE, names=NONE, batch_size=listed(number(2)), is_locked=FALSE)
    values = {
        "cls": text("TensorDict"),
        "non_tensors": EMPTY_DICT,
        "leaves": EMPTY_DICT,
        "cls_metadata": settings or usual,
    } | changes
    bytes_of = tensor(storage(16), 16) if held is None else held
    return saved(call(f"{REDUCTIONS}._rebuild_tensordict_files_consolidated", mapped(**values), bytes_of), BYTES)


def settings(**changes: bytes) -> bytes:
    values = {"device": NONE, "names": NONE, "batch_size": listed(number(2)), "is_locked": FALSE} | changes
    return consolidated(settings=mapped(**values))


def dictionary(cls: str = "tensordict._td.TensorDict", **changes: bytes) -> bytes:
    """A tensordict with attributes, some of which are others."""
    state = {"_tensordict": EMPTY_DICT, "_device": NONE, "_batch_size": SIZE, "_td_dim_names": NONE} | changes
    return saved(call(f"{REDUCTIONS}._make_td", named(cls), mapped(**state)))


def column(**changes: bytes) -> bytes:
    state = {"stack_dim": number(0), "_batch_size": SIZE, "tensordicts": listed(value(NONE))} | changes
    return saved(set_state(new("tensordict.tensorclass.NonTensorStack"), mapped(**state)))


def build_batch(td: bytes | None = None, **changes: bytes) -> bytes:
    values = {"data": NONE, "_metadata": NONE, "_is_non_tensor": TRUE} | changes
    state = mapped(tensordict=tensordict() if td is None else td, non_tensordict=mapped(**values))
    return saved(set_state(new("tensordict.tensorclass.NonTensorData"), state))


def field(shape: bytes) -> bytes:
    return consolidated(leaves=mapped(a=row(text("torch.int64"), shape, number(0), number(16), number(0))))


def non_tensor(*parts: bytes) -> bytes:
    return consolidated(non_tensors=mapped(a=row(*parts)))


def spanned(state: bytes) -> bytes:
    return saved(set_state(new(RANGE), state))


def raw(sizes: bytes, device: bytes, fields: bytes) -> bytes:
    return proto(row(sizes, device, fields))


def stored(*args: bytes) -> bytes:
    return columns(call("torch.storage._load_from_bytes", *args))


PLAIN = {
    "a list as a key": Case(
        lambda: proto(meta=b"}" + EMPTY_LIST + NONE + b"s"), "a key that is not a plain value", True
    ),
    "a text that is not latin1": Case(
        lambda: columns(call("_codecs.encode", text("日"), text("latin1"))), "encode: a text that is not latin1"
    ),
    "a terabyte of zeros": Case(
        lambda: columns(call("__builtin__.bytes", number(1 << 40))), "bytes: an object created with arguments"
    ),
    "an ordered dict of pairs": Case(
        lambda: columns(call("collections.OrderedDict", EMPTY_LIST)), "OrderedDict: an object created with arguments"
    ),
    "a set of lists": Case(
        lambda: columns(call("builtins.set", listed(EMPTY_LIST))), "set: a set of values that are not plain"
    ),
    "a dtype with other flags": Case(
        lambda: columns(call("numpy.dtype", text("i8"), TRUE, TRUE)), "dtype: a dtype that numpy does not write"
    ),
    "an array of torch's class": Case(
        lambda: build_file(
            call("numpy._core.multiarray._reconstruct", named("torch.Size"), row(number(0)), data(b"b"))
        ),
        "_reconstruct: an array that is not a numpy.ndarray",
    ),
    "an array whose shape is a list": Case(
        lambda: build_file(
            set_state(
                call("numpy._core.multiarray._reconstruct", named("numpy.ndarray"), row(number(0)), data(b"b")),
                row(number(1), listed(number(1)), dtype(), FALSE, data(bytes(8))),
            )
        ),
        "array: an invalid shape",
    ),
    "an array's state in four parts": Case(
        lambda: build_file(
            set_state(
                call("numpy._core.multiarray._reconstruct", named("numpy.ndarray"), row(number(0)), data(b"b")),
                row(number(1), row(number(1)), dtype(), FALSE),
            )
        ),
        "array: an invalid array state",
    ),
    "a whole persistent id outside of an archive": Case(
        lambda: columns(storage(16)), "a persistent id: a persistent id outside of a torch archive", True
    ),
    "a size of nothing": Case(lambda: columns(call("torch.Size")), "Size: an invalid size", True),
    "torch's bytes that are none": Case(lambda: stored(NONE), "_load_from_bytes: a value that is not bytes", True),
    "torch's bytes that hold no storage": Case(
        lambda: stored(data(saved(EMPTY_LIST))), "_load_from_bytes: embedded bytes that are not a storage", True
    ),
    "objects where a raw field has bytes": Case(
        lambda: raw(
            row(number(2)), NONE, mapped(a=row(text("int64"), SIZE, array(listed(NONE, NONE), 2, dtype("O8", OBJECTS))))
        ),
        "batch: the field 'a' does not have as many bytes as its shape",
    ),
    "a raw batch on a device": Case(
        lambda: raw(row(number(2)), text("meta"), EMPTY_DICT), "batch: a batch on an unexpected device"
    ),
    "a raw field in two parts": Case(
        lambda: raw(row(number(2)), NONE, mapped(a=row(NONE))), "batch: the field 'a' is invalid"
    ),
}
TORCH = {
    "fewer strides than dimensions": Case(
        lambda: saved(
            call("torch._utils._rebuild_tensor_v2", storage(16), number(0), row(number(2)), EMPTY_TUPLE, FALSE, HOOKS),
            BYTES,
        ),
        "_rebuild_tensor_v2: a tensor with fewer strides than dimensions",
    ),
    "a type without arguments": Case(
        lambda: saved(call("torch._tensor._rebuild_from_type_v2", named("torch.Tensor"), NONE)),
        "_rebuild_from_type_v2: a tensor type that torch does not write",
    ),
    "a jagged tensor with one argument more": Case(
        lambda: jagged(device=NONE), "_rebuild_from_type_v2: a jagged tensor with unexpected arguments"
    ),
    "a jagged tensor that is ragged elsewhere": Case(
        lambda: jagged(_ragged_idx=number(2)),
        "_rebuild_from_type_v2: a jagged tensor that is ragged along another dimension",
    ),
    "a jagged tensor of nothing": Case(
        lambda: jagged(values=NONE), "_rebuild_from_type_v2: a jagged tensor without values"
    ),
    "a jagged tensor without offsets": Case(
        lambda: jagged(offsets=NONE), "_rebuild_from_type_v2: a jagged tensor without offsets"
    ),
    "offsets of another type": Case(
        lambda: jagged(offsets=tensor(storage(24, "1"), 24)), "_rebuild_from_type_v2: a jagged tensor without offsets"
    ),
    "lengths beyond the values": Case(
        lambda: jagged(lengths=tensor(storage(3, "1", "Long"), 2, offset=1)),
        "_rebuild_from_type_v2: a jagged tensor whose offsets reach beyond its values",
    ),
    "a cache of something": Case(
        lambda: jagged(_metadata_cache=mapped(min_seqlen=NONE)),
        "_rebuild_from_type_v2: a jagged tensor with an unexpected cache",
    ),
    "a range made of something": Case(
        lambda: saved(named(RANGE) + row(number(0), NONE, NONE) + b"\x81"),
        "_DimRange: an object created with arguments",
    ),
    "a range of one number": Case(lambda: spanned(listed(number(0))), "range: an invalid dimension range"),
    "a range of texts": Case(lambda: spanned(listed(text("a"), NONE, NONE)), "range: an invalid dimension range"),
}
DICTS = {
    "a tensordict of nothing": Case(
        lambda: consolidated(held=NONE), "_rebuild_tensordict_files_consolidated: an invalid tensordict"
    ),
    "a tensordict with more metadata": Case(
        lambda: consolidated(extra=NONE),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict of numbers": Case(
        lambda: consolidated(held=tensor(storage(2, "0", "Long"), 2)),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict whose fields are a list": Case(
        lambda: consolidated(leaves=NONE),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a field in four parts": Case(
        lambda: consolidated(leaves=mapped(a=row(text("torch.int64"), listed(number(2)), number(0), number(16)))),
        "_rebuild_tensordict_files_consolidated: the field 'a' is invalid",
    ),
    "a field whose shape is a text": Case(
        lambda: field(text("a")), "_rebuild_tensordict_files_consolidated: an invalid shape"
    ),
    "a jagged field": Case(
        lambda: consolidated(leaves=mapped(**{"<NJT>a": leaf("torch.int64", 2, 0, 16)})),
        "_rebuild_tensordict_files_consolidated: the field '<NJT>a' is invalid",
    ),
    "a value in two parts": Case(
        lambda: non_tensor(NONE, EMPTY_LIST), "_rebuild_tensordict_files_consolidated: an invalid value in a tensordict"
    ),
    "a value on a device": Case(
        lambda: non_tensor(NONE, EMPTY_LIST, text("meta")),
        "_rebuild_tensordict_files_consolidated: an invalid value in a tensordict",
    ),
    "a tensordict on a device": Case(
        lambda: settings(device=text("meta")),
        "_rebuild_tensordict_files_consolidated: a tensordict on an unexpected device, or with unexpected settings",
    ),
    "a tensordict with another setting": Case(
        lambda: settings(lock=TRUE),
        "_rebuild_tensordict_files_consolidated: a tensordict on an unexpected device, or with unexpected settings",
    ),
    "a tensordict without a size": Case(
        lambda: settings(batch_size=NONE), "_rebuild_tensordict_files_consolidated: a tensordict without a batch size"
    ),
    "a tensordict with names that are none": Case(
        lambda: settings(names=number(1)),
        "_rebuild_tensordict_files_consolidated: a tensordict with unexpected names of dimensions",
    ),
    "a tensordict of a listed class": Case(
        lambda: dictionary("tensordict.tensorclass.NonTensorData"), "_make_td: a tensordict of another class"
    ),
    "a tensordict with a plain field": Case(
        lambda: dictionary(_tensordict=mapped(a=NONE)), "_make_td: a tensordict with an invalid field"
    ),
    "attributes without a size": Case(
        lambda: dictionary(_batch_size=NONE), "_make_td: a tensordict without a batch size, or on an unexpected device"
    ),
    "a lock that is no yes or no": Case(
        lambda: dictionary(_is_locked=number(7)), "_make_td: a tensordict whose lock flag is not a boolean"
    ),
    "an attribute twice": Case(
        lambda: saved(
            call(
                f"{REDUCTIONS}._make_td",
                named("tensordict._td.TensorDict"),
                b"}(" + (text("_device") + NONE) * 2 + b"u",
            )
        ),
        "_make_td: a state that is not a dict of names",
    ),
    "a column without a dimension": Case(lambda: column(stack_dim=NONE), "stack: a column without a dimension"),
    "a column that is filled twice": Case(
        lambda: saved(
            set_state(
                set_state(
                    new("tensordict.tensorclass.NonTensorStack"),
                    mapped(stack_dim=number(0), _batch_size=SIZE, tensordicts=EMPTY_LIST),
                ),
                EMPTY_DICT,
            )
        ),
        "stack: an object that is filled twice, or with something else than its attributes",
    ),
    "a value without data": Case(lambda: build_batch(EMPTY_DICT), "value: an invalid value"),
    "a value with something beside it": Case(
        lambda: build_batch(beside=NONE), "value: a value with unexpected attributes"
    ),
    "a value with metadata": Case(
        lambda: build_batch(_metadata=EMPTY_DICT), "value: a value that is not a plain value"
    ),
}
ATTRIBUTES = {**PLAIN, **TORCH, **DICTS}
BENIGN = [
    jagged(),
    consolidated(),
    settings(),
    dictionary(),
    column(),
    build_batch(),
    spanned(listed(number(0), NONE, NONE)),
    batch(),
]
