"""The globals that the interpreter knows, and what it builds instead of calling them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import placeholders
from rolloutdeck.safe_pickle.load.pictures import Picture, is_picture_class
from rolloutdeck.safe_pickle.load.placeholders import Array, Dtype, Name, Storage, Tensor, Unreadable, count_elements

NDARRAY = Name("numpy", "ndarray")
TENSORDICT = Name("tensordict._td", "TensorDict")

MAX_ARGUMENTS = 64  # of a call; a global that we know has at most 7

Shape = tuple[int, ...]


def build_call_result(name: Name, args: tuple[Any, ...], count_arguments: Callable[[tuple[Any, ...]], None]) -> Any:
    """Returns what REDUCE and NEWOBJ push: inert if the name is unknown or its arguments are unexpected.

    Arguments that are used are passed to `count_arguments` before.
    """
    builder = CALL_BUILDERS.get(str(name))
    if builder is None:  # there can be millions of such calls, so they share the text
        return Picture() if is_picture_class(name) and not args else Unreadable(sys.intern(str(name)))
    if len(args) > MAX_ARGUMENTS:
        return Unreadable(f"{name} with more than {MAX_ARGUMENTS} arguments")
    count_arguments(args)
    try:
        return builder(name, *args)
    except SafePickleError as error:
        return Unreadable(f"{name}: {error}")
    except (TypeError, ValueError, LookupError, AttributeError):
        return Unreadable(f"{name} with arguments that no known dump has")


def convert_dict_key(value: Any) -> Any:
    """Returns a plain key, or an inert one: a file could choose tuples or huge integers that all have one hash."""
    if isinstance(value, str | bytes | bool | float | None) or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    return value if isinstance(value, Unreadable) else Unreadable(f"a key of type {type(value).__name__}")


def _build_array(name: Name, kind: Name, shape: Shape, code: bytes) -> Array | Unreadable:
    return Array(name) if kind == NDARRAY else Unreadable("numpy array of another class")


def _build_array_from_buffer(name: Name, data: bytes, dtype: Dtype, shape: Shape, order: str) -> Array:
    """Builds an array as protocol 5 writes it."""
    array = Array(Name(name.module.replace("numeric", "multiarray"), "_reconstruct"))
    array.set_state((1, shape, dtype, order != "C", data))
    return array


def _build_dtype(name: Name, code: str, align: bool = False, copy: bool = True) -> Dtype | Unreadable:
    if not placeholders.DTYPE_CODE.fullmatch(code):
        return Unreadable(f"numpy dtype {code:.40}")
    return Dtype("O8" if code == "O" else code)


def _build_scalar(name: Name, dtype: Dtype | Unreadable, data: bytes) -> placeholders.Scalar | Unreadable:
    if isinstance(dtype, Unreadable) or dtype.kind == "O":
        return Unreadable("numpy scalar of an unreadable type")
    if type(data) is not bytes or len(data) != dtype.size:
        raise SafePickleError(f"a numpy scalar of type {dtype.code} with other than {dtype.size} bytes")
    return placeholders.Scalar(name, dtype, data)


def _build_bytes(name: Name, text: str, encoding: str) -> bytes:
    """Builds bytes as protocol 2 writes them."""
    if encoding != "latin1":
        raise SafePickleError(f"bytes written as {encoding!r:.40}")
    return text.encode("latin1")


def _build_set(name: Name, members: list[Any]) -> set[Any]:
    return {convert_dict_key(member) for member in members}


def _build_size(name: Name, shape: Shape | list[int] = ()) -> placeholders.Size:
    count_elements(shape)
    return placeholders.Size(shape)


def _build_tensor(
    name: Name, storage: Storage | Unreadable, start: int, shape: Shape, stride: Shape, *options: Any
) -> Tensor | Unreadable:
    if isinstance(storage, Unreadable):
        return Unreadable(f"tensor on {storage.name:.200}")
    if not isinstance(storage, Storage) or type(start) is not int or len(shape) != len(stride):
        raise SafePickleError("a tensor without a storage, or with a different number of sizes and strides")
    count_elements(shape)
    count_elements((start,))
    return Tensor(storage, start, tuple(shape), tuple(stride))


def _build_typed_tensor(name: Name, function: Name, kind: Name, args: tuple[Any, ...], state: Any) -> Any:
    """Builds a tensor of a subclass or with attributes. Only its numbers are read."""
    builder = TENSOR_BUILDERS.get(str(function)) if isinstance(function, Name) else None
    return builder(function, *args) if builder else Unreadable(str(name))


def _build_nested(name: Name, parts: Mapping[str, Any]) -> placeholders.Nested | Unreadable:
    values, offsets, lengths = parts["values"], parts["offsets"], parts.get("lengths")
    if parts.get("_ragged_idx", 1) != 1 or isinstance(values, Unreadable):
        return Unreadable("nested tensor that is not jagged along its rows")
    if not isinstance(values, Tensor) or not isinstance(offsets, Tensor) or not isinstance(lengths, Tensor | None):
        raise SafePickleError("a nested tensor without its values and offsets")
    return placeholders.Nested(values, offsets, lengths)


def _build_consolidated(name: Name, metadata: Mapping[str, Any], data: Tensor) -> placeholders.Consolidated:
    if not isinstance(metadata, dict) or not isinstance(data, Tensor) or data.storage.dtype != "uint8":
        raise SafePickleError("a consolidated TensorDict without its bytes")
    return placeholders.Consolidated(metadata, data)


def _build_tree(name: Name, kind: Name, state: Mapping[str, Any]) -> placeholders.Tree | Unreadable:
    if kind != TENSORDICT:
        return Unreadable("tensordict of another class")
    fields, batch_size = state["_tensordict"], state.get("_batch_size") or ()
    if not isinstance(fields, dict) or not isinstance(batch_size, tuple):
        raise SafePickleError("a TensorDict without its fields")
    return placeholders.Tree(fields, batch_size, state)


def _build_tensor_batch(name: Name, kind: Name, state: Mapping[str, Any]) -> placeholders.TensorBatch:
    batch = placeholders.TensorBatch()
    batch.set_state(state)
    return batch


def _build_empty(factory: Callable[[], Any]) -> Callable[[Name], Any]:
    return lambda name: factory()


TENSOR_BUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _build_tensor,
    "torch.nested._internal.nested_tensor._rebuild_njt": _build_nested,
}
CALL_BUILDERS: dict[str, Callable[..., Any]] = {
    **TENSOR_BUILDERS,
    "numpy._core.multiarray._reconstruct": _build_array,
    "numpy.core.multiarray._reconstruct": _build_array,
    "numpy._core.multiarray.scalar": _build_scalar,
    "numpy.core.multiarray.scalar": _build_scalar,
    "numpy._core.numeric._frombuffer": _build_array_from_buffer,
    "numpy.core.numeric._frombuffer": _build_array_from_buffer,
    "numpy.dtype": _build_dtype,
    "_codecs.encode": _build_bytes,
    "_io.BytesIO": _build_empty(placeholders.Buffer),
    "builtins.set": _build_set,
    "__builtin__.bytes": _build_empty(bytes),
    "__builtin__.set": _build_set,
    "collections.OrderedDict": _build_empty(OrderedDict),
    "torch.Size": _build_size,
    "torch._tensor._rebuild_from_type_v2": _build_typed_tensor,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _build_consolidated,
    "tensordict._reductions._make_td": _build_tree,
    "tensordict.tensorclass.NonTensorStack": _build_empty(placeholders.Stack),
    "tensordict.tensorclass.NonTensorData": _build_empty(placeholders.Datum),
    "roll.distributed.scheduler.protocol.DataProto": placeholders.Rollout,
    "verl.protocol.DataProto": placeholders.Proto,
    "skyrl.backends.skyrl_train.training_batch._rebuild_tensor_batch": _build_tensor_batch,
    "skyrl.backends.skyrl_train.training_batch.TrainingInputBatch": _build_empty(placeholders.TensorBatch),
    "skyrl_train.training_batch.TrainingInputBatch": _build_empty(placeholders.TensorBatch),
}
