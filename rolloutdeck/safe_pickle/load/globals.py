"""The globals that the machine knows, and what it builds where the pickle would call them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load.placeholders import (
    DTYPE_CODE,
    Array,
    Buffer,
    Consolidated,
    Datum,
    Dtype,
    Name,
    Nested,
    Proto,
    Rollout,
    Scalar,
    Size,
    Stack,
    Storage,
    Tensor,
    Tree,
    Unreadable,
    count_elements,
)

NDARRAY = Name("numpy", "ndarray")
TENSORDICT = Name("tensordict._td", "TensorDict")


def build_call_result(name: Name, args: tuple[Any, ...]) -> Any:
    """What REDUCE and NEWOBJ leave on the stack; inert when the name is unknown, or its arguments are not its own."""
    known = CALLS.get(str(name))
    if known is None:
        return Unreadable(str(name))
    try:
        return known(name, *args)
    except SafePickleError as error:
        return Unreadable(f"{name}: {error}")
    except (TypeError, ValueError, LookupError, AttributeError):
        return Unreadable(f"{name} with arguments that no dump has")


def convert_dict_key(value: Any) -> Any:
    """A dict key or set member: plain and cheap to hash, or inert. Hashes of tuples and huge integers can be forged."""
    if isinstance(value, str | bytes | bool | float | None) or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    return value if isinstance(value, Unreadable) else Unreadable(f"a key of type {type(value).__name__}")


def _array(name: Name, kind: Name, shape: tuple[int, ...], code: bytes) -> Array | Unreadable:
    return Array(name) if kind == NDARRAY else Unreadable("numpy array of another class")


def _from_buffer(name: Name, data: bytes, dtype: Dtype, shape: tuple[int, ...], order: str) -> Array:
    """How protocol 5 writes an array."""
    made = Array(Name(name.module.replace("numeric", "multiarray"), "_reconstruct"))
    made.build((1, shape, dtype, order != "C", data))
    return made


def _dtype(name: Name, code: str, align: bool = False, copy: bool = True) -> Dtype | Unreadable:
    if not DTYPE_CODE.fullmatch(code):
        return Unreadable(f"numpy dtype {code:.40}")
    return Dtype("O8" if code == "O" else code)


def _scalar(name: Name, dtype: Dtype | Unreadable, data: bytes) -> Scalar | Unreadable:
    if isinstance(dtype, Unreadable) or dtype.kind == "O":
        return Unreadable("numpy scalar of an unreadable type")
    if type(data) is not bytes or len(data) != dtype.size:
        raise SafePickleError(f"a numpy scalar of type {dtype.code} with other than {dtype.size} bytes")
    return Scalar(name, dtype, data)


def _encode(name: Name, text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != "latin1":
        raise SafePickleError(f"bytes written as {encoding!r:.40}")
    return text.encode("latin1")


def _set(name: Name, members: list[Any]) -> set[Any]:
    return {convert_dict_key(member) for member in members}


def _size(name: Name, shape: tuple[int, ...] | list[int] = ()) -> Size:
    count_elements(shape)
    return Size(shape)


def _tensor(
    name: Name,
    storage: Storage | Unreadable,
    start: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    *rest: Any,
) -> Tensor | Unreadable:
    if isinstance(storage, Unreadable):
        return Unreadable(f"tensor on {storage.name}")
    if not isinstance(storage, Storage) or type(start) is not int or len(shape) != len(stride):
        raise SafePickleError("a tensor without a storage, or whose shape and strides differ")
    count_elements((*shape, start))
    return Tensor(storage, start, tuple(shape), tuple(stride))


def _typed(name: Name, function: Name, kind: Name, args: tuple[Any, ...], state: Any) -> Any:
    """A tensor of a class of its own, or with attributes: only its numbers are taken."""
    build = TYPED.get(str(function)) if isinstance(function, Name) else None
    return build(function, *args) if build else Unreadable(str(name))


def _nested(name: Name, parts: Mapping[str, Any]) -> Nested | Unreadable:
    values, offsets, lengths = parts["values"], parts["offsets"], parts.get("lengths")
    if parts.get("_ragged_idx", 1) != 1 or isinstance(values, Unreadable):
        return Unreadable("nested tensor that is not jagged along its rows")
    if not isinstance(values, Tensor) or not isinstance(offsets, Tensor) or not isinstance(lengths, Tensor | None):
        raise SafePickleError("a nested tensor without its values and offsets")
    return Nested(values, offsets, lengths)


def _consolidated(name: Name, metadata: Mapping[str, Any], data: Tensor) -> Consolidated:
    if not isinstance(metadata, dict) or not isinstance(data, Tensor) or data.storage.dtype != "uint8":
        raise SafePickleError("a consolidated TensorDict without its bytes")
    return Consolidated(metadata, data)


def _tree(name: Name, kind: Name, state: Mapping[str, Any]) -> Tree | Unreadable:
    if kind != TENSORDICT:
        return Unreadable("tensordict of another class")
    fields, batch_size = state["_tensordict"], state.get("_batch_size") or ()
    if not isinstance(fields, dict) or not isinstance(batch_size, tuple):
        raise SafePickleError("a TensorDict without its fields")
    return Tree(fields, batch_size, state)


def _empty(made: Callable[[], Any]) -> Callable[[Name], Any]:
    return lambda name: made()


TYPED: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.nested._internal.nested_tensor._rebuild_njt": _nested,
}
CALLS: dict[str, Callable[..., Any]] = {
    **TYPED,
    "numpy._core.multiarray._reconstruct": _array,
    "numpy.core.multiarray._reconstruct": _array,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy.dtype": _dtype,
    "_codecs.encode": _encode,
    "_io.BytesIO": _empty(Buffer),
    "builtins.set": _set,
    "__builtin__.bytes": _empty(bytes),
    "__builtin__.set": _set,
    "collections.OrderedDict": _empty(OrderedDict),
    "torch.Size": _size,
    "torch._tensor._rebuild_from_type_v2": _typed,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
    "tensordict._reductions._make_td": _tree,
    "tensordict.tensorclass.NonTensorStack": _empty(Stack),
    "tensordict.tensorclass.NonTensorData": _empty(Datum),
    "roll.distributed.scheduler.protocol.DataProto": Rollout,
    "verl.protocol.DataProto": Proto,
}
