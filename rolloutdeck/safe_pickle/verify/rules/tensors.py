"""Rules for torch storages, tensors, jagged tensors and sizes, as torch pickles them inside its ZIP."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    get_safety_level,
    is_count,
    multiply_sizes,
    parse_sizes,
)

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Verifier

TENSOR_DTYPE_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
STORAGE_DTYPES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
}  # fmt: skip
MAX_ROWS = 1_000_000  # of a jagged tensor
MAX_EXPANSION = 64  # a tensor with strides of 0 has at most this many times the elements of its storage
_DTYPES_BY_STORAGE = {GlobalReference(f"torch.{name}Storage"): dtype for name, dtype in STORAGE_DTYPES.items()}
_DEVICE = re.compile(r"cpu|(cuda|npu):\d{1,4}")
_COMPILE_ATTRIBUTES = re.compile(r"_dynamo_\w{1,40}|_specialize_on|_has_dynamo_dim_marking")  # set by torch.compile

TENSOR = "torch._utils._rebuild_tensor_v2"
NESTED = "torch.nested._internal.nested_tensor"


def verify_storage(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """A persistent id, ('storage', type, key, device, elements). It may only name the ZIP's member `data/{key}`."""
    if verifier.archive is None:
        raise RuleViolationError("a persistent id outside of a torch archive")
    if len(args) != 5 or args[0] != "storage" or args[1] not in _DTYPES_BY_STORAGE or type(args[2]) is not str:
        raise RuleViolationError("a persistent id that is not a torch storage")
    if type(args[3]) is not str or not _DEVICE.fullmatch(args[3]) or not is_count(args[4]):
        raise RuleViolationError("a storage on an unknown device")
    dtype, key, elements = _DTYPES_BY_STORAGE[args[1]], args[2], args[4]
    member = verifier.archive.members.get(f"data/{key}")
    if member is None or member.length != elements * TENSOR_DTYPE_SIZES[dtype]:
        raise RuleViolationError("a storage whose length differs from its member in the ZIP")
    if verifier.storages.setdefault(key, (dtype, elements)) != (dtype, elements):
        raise RuleViolationError("one storage with two types")
    return AbstractObject("storage", facts={"dtype": dtype, "elements": elements, "key": key})


def verify_tensor(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """(storage, offset, size, stride, requires grad, no hooks[, no metadata])."""
    if (
        len(args) not in (6, 7)
        or not isinstance(args[0], AbstractObject)
        or args[0].kind != "storage"
        or not is_count(args[1])
    ):
        raise RuleViolationError("a tensor without a storage")
    if type(args[4]) is not bool or not _is_empty_dict(args[5]) or (len(args) == 7 and args[6] is not None):
        raise RuleViolationError("a tensor with hooks or metadata")
    elements = args[0].facts["elements"]
    size, stride = parse_sizes(args[2]), parse_sizes(args[3])
    _check_bounds(args[1], size, stride, elements)
    facts = {"shape": size, "stride": stride, "offset": args[1]}
    return AbstractObject("tensor", HARMLESS, facts={**args[0].facts, **facts})


def _is_empty_dict(value: AbstractValue) -> bool:
    return isinstance(value, AbstractContainer) and value.kind == "dict" and not value.items


def _check_bounds(offset: int, size: list[int], stride: list[int], elements: int) -> None:
    if len(size) != len(stride):
        raise RuleViolationError("a tensor with fewer strides than dimensions")
    total = multiply_sizes(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if (total and last >= elements) or total > MAX_EXPANSION * elements or offset > elements:
        raise RuleViolationError("a tensor that reaches beyond its storage")


def verify_typed_tensor(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_rebuild_from_type_v2(function, type, arguments, attributes)`: jagged tensors, and tensors with attributes."""
    if len(args) != 4 or not isinstance(args[2], AbstractContainer) or args[2].kind != "tuple":
        raise RuleViolationError("a tensor type that torch does not write")
    if args[:2] == [GlobalReference(TENSOR), GlobalReference("torch.Tensor")]:
        result = verify_tensor(verifier, args[2].items)
        _check_attributes(args[3])
        return result
    if (
        args[:2] == [GlobalReference(f"{NESTED}._rebuild_njt"), GlobalReference(f"{NESTED}.NestedTensor")]
        and len(args[2].items) == 1
    ):
        return _verify_jagged(verifier, args[2].items[0], args[3])
    raise RuleViolationError("a tensor of an unexpected type")


def _check_attributes(state: AbstractValue) -> None:
    """Torch sets attributes by name, so only those of torch.compile are allowed, and only plain values."""
    names = state.fields() if isinstance(state, AbstractContainer) else {"": None}
    if not all(map(_COMPILE_ATTRIBUTES.fullmatch, names)) or get_safety_level(state) > HARMLESS:
        raise RuleViolationError("a tensor with unexpected attributes")


def _verify_jagged(verifier: Verifier, arguments: AbstractValue, state: AbstractValue) -> AbstractValue:
    """`state` repeats the arguments. Both must be the same objects, else two readers would see different tensors."""
    named_args = arguments.fields() if isinstance(arguments, AbstractContainer) else {}
    attributes = state.fields() if isinstance(state, AbstractContainer) else {}
    if set(named_args) != {"values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"}:
        raise RuleViolationError("a jagged tensor with unexpected arguments")
    values, offsets, lengths = named_args["values"], named_args["offsets"], named_args["lengths"]
    _check_parts(verifier, values, offsets, lengths)
    expected = {
        "_values": values,
        "_offsets": offsets,
        "_lengths": lengths,
        "_metadata_cache": named_args["_metadata_cache"],
    }
    if any(attributes.pop(name, value) is not value for name, value in expected.items()):
        raise RuleViolationError("a jagged tensor whose attributes differ from its arguments")
    if [named_args["_ragged_idx"], attributes.pop("_ragged_idx", 1)] != [1, 1] or type(
        named_args["requires_grad"]
    ) is not bool:
        raise RuleViolationError("a jagged tensor that is ragged along another dimension")
    _check_cache(named_args["_metadata_cache"])
    _check_attributes(AbstractContainer("dict", [part for pair in attributes.items() for part in pair]))
    return AbstractObject("jagged", HARMLESS)


def _check_parts(verifier: Verifier, values: AbstractValue, offsets: AbstractValue, lengths: AbstractValue) -> None:
    """Reads the offsets, because torch's kernels trust them: they start at 0, never decrease and stay in the values."""
    if not is_tensor(values) or not values.facts["shape"]:
        raise RuleViolationError("a jagged tensor without values")
    starts = _read_positions(verifier, offsets)
    row_lengths = (
        _read_positions(verifier, lengths) if lengths is not None else [end - begin for begin, end in pairwise(starts)]
    )
    if not starts or starts[0] or len(row_lengths) != len(starts) - 1 or min(row_lengths, default=0) < 0:
        raise RuleViolationError("a jagged tensor whose offsets decrease")
    ends = (begin + length for begin, length in zip(starts, row_lengths, strict=False))
    if max(starts) > values.facts["shape"][0] or max(ends, default=0) > values.facts["shape"][0] or min(starts) < 0:
        raise RuleViolationError("a jagged tensor whose offsets reach beyond its values")


def _read_positions(verifier: Verifier, value: AbstractValue) -> list[int]:
    """Returns the values of a contiguous tensor of positions."""
    if not is_tensor(value) or value.facts["dtype"] != "int64" or value.facts["stride"] != [1] or not verifier.archive:
        raise RuleViolationError("a jagged tensor without offsets")
    count, offset = value.facts["shape"][0], value.facts["offset"]
    if count > MAX_ROWS:
        raise RuleViolationError(f"a jagged tensor of more than {MAX_ROWS:,} rows")
    data = verifier.archive.member(f"data/{value.facts['key']}").read(8 * offset, 8 * count)
    return list(struct.unpack(f"<{count}q", data))


def _check_cache(cache: AbstractValue) -> None:
    entries = cache.fields() if isinstance(cache, AbstractContainer) else {"": None}
    if not set(entries) <= {"min_seqlen", "max_seqlen"} or not all(map(is_tensor, entries.values())):
        raise RuleViolationError("a jagged tensor with an unexpected cache")


def is_tensor(value: AbstractValue) -> bool:
    return isinstance(value, AbstractObject) and value.kind == "tensor"


def verify_size(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`torch.Size((2, 3))`."""
    if len(args) != 1:
        raise RuleViolationError("an invalid size")
    return AbstractObject("size", HARMLESS, facts={"shape": parse_sizes(args[0], ("tuple", "list"))})


def verify_from_bytes(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`torch.storage._load_from_bytes(bytes)` runs torch.load on the bytes, so they must be as safe as a file."""
    if len(args) != 1 or not isinstance(args[0], AbstractBytes):
        raise RuleViolationError("a value that is not bytes")
    try:
        root = verifier.verify_embedded(args[0])
    except SafePickleError as error:
        raise RuleViolationError(f"the bytes in it can't be loaded: {error}") from error
    if not isinstance(root, AbstractObject) or root.kind != "storage":
        raise RuleViolationError("embedded bytes that are not a storage")
    return root


def verify_dimension_range(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if args:
        raise RuleViolationError("a dimension's range created with arguments")
    return AbstractObject("range", has_state=False)


def verify_dimension_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """torch.compile's range of a dimension: [dimension, minimum or None, maximum or None]."""
    if target.has_state or not isinstance(state, AbstractContainer) or state.kind != "list" or len(state.items) != 3:
        raise RuleViolationError("an invalid dimension range")
    if not all(item is None or type(item) is int for item in state.items):
        raise RuleViolationError("an invalid dimension range")
    target.has_state = True
    target.level = HARMLESS


TENSOR_GLOBALS = {
    "torch.Tensor",
    f"{NESTED}.NestedTensor",
    f"{NESTED}._rebuild_njt",
    *(kind.name for kind in _DTYPES_BY_STORAGE),
}
TENSOR_CALL_RULES = {
    TENSOR: verify_tensor,
    "torch._tensor._rebuild_from_type_v2": verify_typed_tensor,
    "torch.Size": verify_size,
    "torch.storage._load_from_bytes": verify_from_bytes,
}
TENSOR_NEW_RULES = {"torch._dynamo.decorators._DimRange": verify_dimension_range}
TENSOR_STATE_RULES = {"range": verify_dimension_state}
