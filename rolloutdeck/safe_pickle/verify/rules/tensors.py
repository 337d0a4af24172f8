"""Rules for torch storages, tensors, jagged tensors and sizes, as torch pickles them inside its ZIP."""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from math import prod

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import DTYPE_SIZES, STORAGE_DTYPES
from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    Verifier,
    add_tensor_copy,
    get_fields,
    get_safety_level,
    is_complete,
    is_container,
    is_count,
    parse_sizes,
)
from rolloutdeck.safe_pickle.verify.rules.stdlib import build_new_rule

MAX_ROWS = 1_000_000  # of a jagged tensor
ROWS_PER_VALUE = 4  # rows of a jagged tensor that take as much work as one value; fields may share their offsets
_DTYPES_BY_STORAGE = {GlobalReference(f"torch.{name}"): dtype for name, dtype in STORAGE_DTYPES.items()}
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
    if member is None or member.length != elements * DTYPE_SIZES[dtype]:
        raise RuleViolationError("a storage whose length differs from its member in the ZIP")
    if verifier.storages.setdefault(key, (dtype, elements)) != (dtype, elements):
        raise RuleViolationError("one storage with two types")
    return AbstractObject("storage", facts={"dtype": dtype, "elements": elements, "key": key})


def verify_tensor(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """(storage, offset, size, stride, requires grad, no hooks[, no metadata])."""
    if len(args) not in (6, 7) or not is_complete(args[0], "storage") or not is_count(args[1]):
        raise RuleViolationError("a tensor without a storage")
    if type(args[4]) is not bool or not is_container(args[5], "dict", 0) or any(arg is not None for arg in args[6:]):
        raise RuleViolationError("a tensor with hooks or metadata")
    size, stride = parse_sizes(args[2]), parse_sizes(args[3])
    _check_bounds(args[1], size, stride, args[0].facts["elements"])
    length = prod(size) * DTYPE_SIZES[args[0].facts["dtype"]]
    verifier.budget.add_tensor(length)
    facts = {**args[0].facts, "shape": size, "stride": stride, "offset": args[1], "bytes": length}
    return AbstractObject("tensor", HARMLESS, facts=facts)


def _check_bounds(offset: int, size: list[int], stride: list[int], elements: int) -> None:
    if len(size) != len(stride):
        raise RuleViolationError("a tensor with fewer strides than dimensions")
    total = prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if (total and last >= elements) or offset > elements:
        raise RuleViolationError("a tensor that reaches beyond its storage")


def verify_typed_tensor(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_rebuild_from_type_v2(function, type, arguments, attributes)`: jagged tensors, and tensors with attributes."""
    if len(args) != 4 or not is_container(args[2], "tuple"):
        raise RuleViolationError("a tensor type that torch does not write")
    if args[:2] == [GlobalReference(TENSOR), GlobalReference("torch.Tensor")]:
        result = verify_tensor(verifier, args[2].items)
        _check_attributes(verifier, args[3])
        return result
    nested = [GlobalReference(f"{NESTED}._rebuild_njt"), GlobalReference(f"{NESTED}.NestedTensor")]
    if args[:2] == nested and len(args[2].items) == 1:
        return _verify_jagged(verifier, args[2].items[0], args[3])
    raise RuleViolationError("a tensor of an unexpected type")


def _check_attributes(verifier: Verifier, state: AbstractValue) -> None:
    """Torch sets attributes by name, so only those of torch.compile are allowed, and only plain values."""
    message = "a tensor with unexpected attributes"
    names = get_fields(verifier, state, message)
    if not all(map(_COMPILE_ATTRIBUTES.fullmatch, names)) or get_safety_level(state) > HARMLESS:
        raise RuleViolationError(message)


def _verify_jagged(verifier: Verifier, arguments: AbstractValue, state: AbstractValue) -> AbstractValue:
    """`state` repeats the arguments. Both must be the same objects, else two readers would see different tensors."""
    message = "a jagged tensor with unexpected arguments"
    named_args = get_fields(verifier, arguments, message)
    attributes = get_fields(verifier, state, message) if isinstance(state, AbstractContainer) else {}
    if set(named_args) != {"values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"}:
        raise RuleViolationError(message)
    values, offsets, lengths, cache = (named_args[name] for name in ("values", "offsets", "lengths", "_metadata_cache"))
    row_lengths = _check_parts(verifier, values, offsets, lengths)
    expected = {"_values": values, "_offsets": offsets, "_lengths": lengths, "_metadata_cache": cache}
    if any(attributes.pop(name, value) is not value for name, value in expected.items()):
        raise RuleViolationError("a jagged tensor whose attributes differ from its arguments")
    ragged_dimensions = [named_args["_ragged_idx"], attributes.pop("_ragged_idx", 1)]
    if ragged_dimensions != [1, 1] or type(named_args["requires_grad"]) is not bool:
        raise RuleViolationError("a jagged tensor that is ragged along another dimension")
    _check_cache(verifier, cache, row_lengths)
    _check_attributes(verifier, AbstractContainer("dict", [part for pair in attributes.items() for part in pair]))
    add_tensor_copy(verifier, values)
    return AbstractObject("jagged", HARMLESS, facts={"bytes": values.facts["bytes"]})


def _check_parts(
    verifier: Verifier, values: AbstractValue, offsets: AbstractValue, lengths: AbstractValue
) -> list[int]:
    """Reads the offsets, because torch's kernels trust them: they start at 0, never decrease and stay in the values.
    Returns the lengths of the rows."""
    if not is_complete(values, "tensor") or not values.facts["shape"]:
        raise RuleViolationError("a jagged tensor without values")
    starts = _read_positions(verifier, offsets)
    row_lengths = [end - begin for begin, end in pairwise(starts)]
    if lengths is not None:
        row_lengths = _read_positions(verifier, lengths)
    if not starts or starts[0] or len(row_lengths) != len(starts) - 1 or min(row_lengths, default=0) < 0:
        raise RuleViolationError("a jagged tensor whose offsets decrease")
    ends = (begin + length for begin, length in zip(starts, row_lengths, strict=False))
    if max(starts) > values.facts["shape"][0] or max(ends, default=0) > values.facts["shape"][0] or min(starts) < 0:
        raise RuleViolationError("a jagged tensor whose offsets reach beyond its values")
    return row_lengths


def _read_positions(verifier: Verifier, value: AbstractValue) -> list[int]:
    """Returns the values of a contiguous tensor of positions."""
    facts = value.facts if is_complete(value, "tensor") else {}
    if facts.get("dtype") != "int64" or facts["stride"] != [1] or not verifier.archive:
        raise RuleViolationError("a jagged tensor without offsets")
    if facts.get("is_embedded"):  # its key names a member of the embedded archive, not of this one
        raise RuleViolationError("a jagged tensor whose offsets are in embedded bytes")
    count, offset = facts["shape"][0], facts["offset"]
    if count > MAX_ROWS:
        raise RuleViolationError(f"a jagged tensor of more than {MAX_ROWS:,} rows")
    verifier.budget.spend(count // ROWS_PER_VALUE)
    data = verifier.archive.member(f"data/{facts['key']}").read(8 * offset, 8 * count)
    return list(struct.unpack(f"<{count}q", data))


def _check_cache(verifier: Verifier, cache: AbstractValue, row_lengths: list[int]) -> None:
    """The shortest and the longest row, which torch takes from the shape of an empty tensor (`_store_val_in_tensor` in
    `torch/nested/_internal/nested_tensor.py`)."""
    message = "a jagged tensor with an unexpected cache"
    entries = get_fields(verifier, cache, message)
    tensors = all(is_complete(value, "tensor") for value in entries.values())
    bounds = {"min_seqlen": min(row_lengths, default=0), "max_seqlen": max(row_lengths, default=0)}
    if not tensors or not set(entries) <= set(bounds):
        raise RuleViolationError(message)
    if any(value.facts["shape"] != [bounds[name], 0] for name, value in entries.items()):
        raise RuleViolationError("a jagged tensor whose cached lengths are not those of its rows")


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
    if not is_complete(root, "storage"):
        raise RuleViolationError("embedded bytes that are not a storage")
    return AbstractObject("storage", facts={**root.facts, "is_embedded": True})


def verify_dimension_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """torch.compile's range of a dimension: [dimension, minimum or None, maximum or None]."""
    is_list = is_container(state, "list", 3)
    if target.has_state or not is_list or not all(item is None or type(item) is int for item in state.items):
        raise RuleViolationError("an invalid dimension range")
    target.has_state = True
    target.level = HARMLESS


GLOBALS = {
    "torch.Tensor",
    f"{NESTED}.NestedTensor",
    f"{NESTED}._rebuild_njt",
    *(storage.name for storage in _DTYPES_BY_STORAGE),
}
CALL_RULES = {
    TENSOR: verify_tensor,
    "torch._tensor._rebuild_from_type_v2": verify_typed_tensor,
    "torch.Size": verify_size,
    "torch.storage._load_from_bytes": verify_from_bytes,
}
NEW_RULES = {"torch._dynamo.decorators._DimRange": build_new_rule("range")}
STATE_RULES = {"range": verify_dimension_state}
