"""Objects of torch, tensordict and the standard library with one invalid argument or attribute."""

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
    bytes_,
    call,
    dict_,
    dtype,
    global_name,
    leaf,
    list_,
    new_object,
    non_tensor_data,
    number,
    proto,
    set_state,
    storage,
    tensor,
    tensordict,
    text,
    torch_file,
    tuple_,
)
from tests.rolloutdeck.safe_pickle.hostile.case import Case, build_column_batch, build_value_batch

REDUCTIONS = "tensordict._reductions"
NESTED_TENSOR = "torch.nested._internal.nested_tensor"
SIZE = call("torch.Size", tuple_(number(2)))
RANGE = "torch._dynamo.decorators._DimRange"


def build_jagged(**changes: bytes) -> bytes:
    """A jagged tensor with some arguments changed."""
    values = {
        "values": tensor(storage(8, "0", "Long"), 8),
        "offsets": tensor(storage(3, "1", "Long"), 3),
        "lengths": NONE,
        "_ragged_idx": number(1),
        "_metadata_cache": EMPTY_DICT,
        "requires_grad": FALSE,
    } | changes
    names = global_name(f"{NESTED_TENSOR}._rebuild_njt"), global_name(f"{NESTED_TENSOR}.NestedTensor")
    jagged = call("torch._tensor._rebuild_from_type_v2", *names, tuple_(dict_(**values)), EMPTY_DICT)
    return torch_file(jagged, bytes(64), struct.pack("<3q", 0, 3, 8))


def build_consolidated(storage_tensor: bytes | None = None, settings: bytes | None = None, **changes: bytes) -> bytes:
    """A consolidated tensordict with some metadata changed."""
    default_settings = dict_(device=NONE, names=NONE, batch_size=list_(number(2)), is_locked=FALSE)
    values = {
        "cls": text("TensorDict"),
        "non_tensors": EMPTY_DICT,
        "leaves": EMPTY_DICT,
        "cls_metadata": settings or default_settings,
    } | changes
    tensor_bytes = tensor(storage(16), 16) if storage_tensor is None else storage_tensor
    return torch_file(
        call(f"{REDUCTIONS}._rebuild_tensordict_files_consolidated", dict_(**values), tensor_bytes), BYTES
    )


def build_with_settings(**changes: bytes) -> bytes:
    values = {"device": NONE, "names": NONE, "batch_size": list_(number(2)), "is_locked": FALSE} | changes
    return build_consolidated(settings=dict_(**values))


def build_tensordict(cls: str = "tensordict._td.TensorDict", **changes: bytes) -> bytes:
    """A tensordict with some attributes changed."""
    state = {"_tensordict": EMPTY_DICT, "_device": NONE, "_batch_size": SIZE, "_td_dim_names": NONE} | changes
    return torch_file(call(f"{REDUCTIONS}._make_td", global_name(cls), dict_(**state)))


def build_stack(**changes: bytes) -> bytes:
    state = {"stack_dim": number(0), "_batch_size": SIZE, "tensordicts": list_(non_tensor_data(NONE))} | changes
    return torch_file(set_state(new_object("tensordict.tensorclass.NonTensorStack"), dict_(**state)))


def build_non_tensor_data(td: bytes | None = None, **changes: bytes) -> bytes:
    values = {"data": NONE, "_metadata": NONE, "_is_non_tensor": TRUE} | changes
    state = dict_(tensordict=tensordict() if td is None else td, non_tensordict=dict_(**values))
    return torch_file(set_state(new_object("tensordict.tensorclass.NonTensorData"), state))


def build_with_field(shape: bytes) -> bytes:
    return build_consolidated(leaves=dict_(a=tuple_(text("torch.int64"), shape, number(0), number(16), number(0))))


def build_with_non_tensor(*parts: bytes) -> bytes:
    return build_consolidated(non_tensors=dict_(a=tuple_(*parts)))


def build_range(state: bytes) -> bytes:
    return torch_file(set_state(new_object(RANGE), state))


def build_raw_batch(sizes: bytes, device: bytes, fields: bytes) -> bytes:
    return proto(tuple_(sizes, device, fields))


def build_embedded_storage(*args: bytes) -> bytes:
    return build_value_batch(call("torch.storage._load_from_bytes", *args))


PLAIN = {
    "a list as a key": Case(
        lambda: proto(meta=b"}" + EMPTY_LIST + NONE + b"s"), "a key that is not a plain value", True
    ),
    "a text that is not latin1": Case(
        lambda: build_value_batch(call("_codecs.encode", text("日"), text("latin1"))),
        "encode: a text that is not latin1",
    ),
    "a terabyte of zeros": Case(
        lambda: build_value_batch(call("__builtin__.bytes", number(1 << 40))), "bytes: an object created with arguments"
    ),
    "an ordered dict of pairs": Case(
        lambda: build_value_batch(call("collections.OrderedDict", EMPTY_LIST)),
        "OrderedDict: an object created with arguments",
    ),
    "a set of lists": Case(
        lambda: build_value_batch(call("builtins.set", list_(EMPTY_LIST))), "set: a set of values that are not plain"
    ),
    "a dtype with other flags": Case(
        lambda: build_value_batch(call("numpy.dtype", text("i8"), TRUE, TRUE)),
        "dtype: a dtype that numpy does not write",
    ),
    "an array of torch's class": Case(
        lambda: build_column_batch(
            call("numpy._core.multiarray._reconstruct", global_name("torch.Size"), tuple_(number(0)), bytes_(b"b"))
        ),
        "_reconstruct: an array that is not a numpy.ndarray",
    ),
    "an array whose shape is a list": Case(
        lambda: build_column_batch(
            set_state(
                call(
                    "numpy._core.multiarray._reconstruct", global_name("numpy.ndarray"), tuple_(number(0)), bytes_(b"b")
                ),
                tuple_(number(1), list_(number(1)), dtype(), FALSE, bytes_(bytes(8))),
            )
        ),
        "array: an invalid shape",
    ),
    "an array's state in four parts": Case(
        lambda: build_column_batch(
            set_state(
                call(
                    "numpy._core.multiarray._reconstruct", global_name("numpy.ndarray"), tuple_(number(0)), bytes_(b"b")
                ),
                tuple_(number(1), tuple_(number(1)), dtype(), FALSE),
            )
        ),
        "array: an invalid array state",
    ),
    "a whole persistent id outside of an archive": Case(
        lambda: build_value_batch(storage(16)), "a persistent id: a persistent id outside of a torch archive", True
    ),
    "a size of nothing": Case(lambda: build_value_batch(call("torch.Size")), "Size: an invalid size", True),
    "torch's bytes that are none": Case(
        lambda: build_embedded_storage(NONE), "_load_from_bytes: a value that is not bytes", True
    ),
    "torch's bytes that hold no storage": Case(
        lambda: build_embedded_storage(bytes_(torch_file(EMPTY_LIST))),
        "_load_from_bytes: embedded bytes that are not a storage",
        True,
    ),
    "objects where a raw field has bytes": Case(
        lambda: build_raw_batch(
            tuple_(number(2)),
            NONE,
            dict_(a=tuple_(text("int64"), SIZE, array(list_(NONE, NONE), 2, dtype("O8", OBJECTS)))),
        ),
        "batch: the field 'a' does not have as many bytes as its shape",
    ),
    "a raw batch on a device": Case(
        lambda: build_raw_batch(tuple_(number(2)), text("meta"), EMPTY_DICT), "batch: a batch on an unexpected device"
    ),
    "a raw field in two parts": Case(
        lambda: build_raw_batch(tuple_(number(2)), NONE, dict_(a=tuple_(NONE))), "batch: the field 'a' is invalid"
    ),
}
TORCH = {
    "fewer strides than dimensions": Case(
        lambda: torch_file(
            call(
                "torch._utils._rebuild_tensor_v2", storage(16), number(0), tuple_(number(2)), EMPTY_TUPLE, FALSE, HOOKS
            ),
            BYTES,
        ),
        "_rebuild_tensor_v2: a tensor with fewer strides than dimensions",
    ),
    "a type without arguments": Case(
        lambda: torch_file(call("torch._tensor._rebuild_from_type_v2", global_name("torch.Tensor"), NONE)),
        "_rebuild_from_type_v2: a tensor type that torch does not write",
    ),
    "a jagged tensor with one argument more": Case(
        lambda: build_jagged(device=NONE), "_rebuild_from_type_v2: a jagged tensor with unexpected arguments"
    ),
    "a jagged tensor that is ragged elsewhere": Case(
        lambda: build_jagged(_ragged_idx=number(2)),
        "_rebuild_from_type_v2: a jagged tensor that is ragged along another dimension",
    ),
    "a jagged tensor of nothing": Case(
        lambda: build_jagged(values=NONE), "_rebuild_from_type_v2: a jagged tensor without values"
    ),
    "a jagged tensor without offsets": Case(
        lambda: build_jagged(offsets=NONE), "_rebuild_from_type_v2: a jagged tensor without offsets"
    ),
    "offsets of another type": Case(
        lambda: build_jagged(offsets=tensor(storage(24, "1"), 24)),
        "_rebuild_from_type_v2: a jagged tensor without offsets",
    ),
    "lengths beyond the values": Case(
        lambda: build_jagged(lengths=tensor(storage(3, "1", "Long"), 2, offset=1)),
        "_rebuild_from_type_v2: a jagged tensor whose offsets reach beyond its values",
    ),
    "a cache of something": Case(
        lambda: build_jagged(_metadata_cache=dict_(min_seqlen=NONE)),
        "_rebuild_from_type_v2: a jagged tensor with an unexpected cache",
    ),
    "a range made of something": Case(
        lambda: torch_file(global_name(RANGE) + tuple_(number(0), NONE, NONE) + b"\x81"),
        "_DimRange: an object created with arguments",
    ),
    "a range of one number": Case(lambda: build_range(list_(number(0))), "range: an invalid dimension range"),
    "a range of texts": Case(lambda: build_range(list_(text("a"), NONE, NONE)), "range: an invalid dimension range"),
}
DICTS = {
    "a tensordict of nothing": Case(
        lambda: build_consolidated(storage_tensor=NONE), "_rebuild_tensordict_files_consolidated: an invalid tensordict"
    ),
    "a tensordict with more metadata": Case(
        lambda: build_consolidated(extra=NONE),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict of numbers": Case(
        lambda: build_consolidated(storage_tensor=tensor(storage(2, "0", "Long"), 2)),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict whose fields are a list": Case(
        lambda: build_consolidated(leaves=NONE),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a field in four parts": Case(
        lambda: build_consolidated(
            leaves=dict_(a=tuple_(text("torch.int64"), list_(number(2)), number(0), number(16)))
        ),
        "_rebuild_tensordict_files_consolidated: the field 'a' is invalid",
    ),
    "a field whose shape is a text": Case(
        lambda: build_with_field(text("a")), "_rebuild_tensordict_files_consolidated: an invalid shape"
    ),
    "a jagged field": Case(
        lambda: build_consolidated(leaves=dict_(**{"<NJT>a": leaf("torch.int64", 2, 0, 16)})),
        "_rebuild_tensordict_files_consolidated: the field '<NJT>a' is invalid",
    ),
    "a value in two parts": Case(
        lambda: build_with_non_tensor(NONE, EMPTY_LIST),
        "_rebuild_tensordict_files_consolidated: an invalid value in a tensordict",
    ),
    "a value on a device": Case(
        lambda: build_with_non_tensor(NONE, EMPTY_LIST, text("meta")),
        "_rebuild_tensordict_files_consolidated: an invalid value in a tensordict",
    ),
    "a tensordict on a device": Case(
        lambda: build_with_settings(device=text("meta")),
        "_rebuild_tensordict_files_consolidated: a tensordict on an unexpected device, or with unexpected settings",
    ),
    "a tensordict with another setting": Case(
        lambda: build_with_settings(lock=TRUE),
        "_rebuild_tensordict_files_consolidated: a tensordict on an unexpected device, or with unexpected settings",
    ),
    "a tensordict without a size": Case(
        lambda: build_with_settings(batch_size=NONE),
        "_rebuild_tensordict_files_consolidated: a tensordict without a batch size",
    ),
    "a tensordict with names that are none": Case(
        lambda: build_with_settings(names=number(1)),
        "_rebuild_tensordict_files_consolidated: a tensordict with unexpected names of dimensions",
    ),
    "a tensordict of a listed class": Case(
        lambda: build_tensordict("tensordict.tensorclass.NonTensorData"), "_make_td: a tensordict of another class"
    ),
    "a tensordict with a plain field": Case(
        lambda: build_tensordict(_tensordict=dict_(a=NONE)), "_make_td: a tensordict with an invalid field"
    ),
    "attributes without a size": Case(
        lambda: build_tensordict(_batch_size=NONE),
        "_make_td: a tensordict without a batch size, or on an unexpected device",
    ),
    "a lock that is no yes or no": Case(
        lambda: build_tensordict(_is_locked=number(7)), "_make_td: a tensordict whose lock flag is not a boolean"
    ),
    "an attribute twice": Case(
        lambda: torch_file(
            call(
                f"{REDUCTIONS}._make_td",
                global_name("tensordict._td.TensorDict"),
                b"}(" + (text("_device") + NONE) * 2 + b"u",
            )
        ),
        "_make_td: a state that is not a dict of names",
    ),
    "a column without a dimension": Case(lambda: build_stack(stack_dim=NONE), "stack: a column without a dimension"),
    "a column that is filled twice": Case(
        lambda: torch_file(
            set_state(
                set_state(
                    new_object("tensordict.tensorclass.NonTensorStack"),
                    dict_(stack_dim=number(0), _batch_size=SIZE, tensordicts=EMPTY_LIST),
                ),
                EMPTY_DICT,
            )
        ),
        "stack: an object that is filled twice, or with something else than its attributes",
    ),
    "a value without data": Case(lambda: build_non_tensor_data(EMPTY_DICT), "value: an invalid value"),
    "a value with something beside it": Case(
        lambda: build_non_tensor_data(beside=NONE), "value: a value with unexpected attributes"
    ),
    "a value with metadata": Case(
        lambda: build_non_tensor_data(_metadata=EMPTY_DICT), "value: a value that is not a plain value"
    ),
}
ATTRIBUTES = {**PLAIN, **TORCH, **DICTS}
BENIGN = [
    build_jagged(),
    build_consolidated(),
    build_with_settings(),
    build_tensordict(),
    build_stack(),
    build_non_tensor_data(),
    build_range(list_(number(0), NONE, NONE)),
    batch(),
]
