"""torch storages, tensors, jagged tensors and sizes, as torch pickles them inside its ZIP."""

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
EXPANSION = 64  # times its storage that a tensor with strides of 0 may be
_TYPES = {GlobalReference(f"torch.{name}Storage"): dtype for name, dtype in STORAGE_DTYPES.items()}
_PLACE = re.compile(r"cpu|(cuda|npu):\d{1,4}")
_MARKS = re.compile(r"_dynamo_\w{1,40}|_specialize_on|_has_dynamo_dim_marking")  # torch.compile's notes on a tensor

TENSOR = "torch._utils._rebuild_tensor_v2"
NESTED = "torch.nested._internal.nested_tensor"


def verify_storage(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """A persistent id, ('storage', type, key, place, elements): the ZIP's member `data/{key}` and nothing else."""
    if judge.archive is None:
        raise RuleViolationError("a persistent id outside of a torch archive")
    if len(args) != 5 or args[0] != "storage" or args[1] not in _TYPES or type(args[2]) is not str:
        raise RuleViolationError("a persistent id that names no torch storage")
    if type(args[3]) is not str or not _PLACE.fullmatch(args[3]) or not is_count(args[4]):
        raise RuleViolationError("a storage on no known device")
    dtype, key, elements = _TYPES[args[1]], args[2], args[4]
    member = judge.archive.members.get(f"data/{key}")
    if member is None or member.length != elements * TENSOR_DTYPE_SIZES[dtype]:
        raise RuleViolationError("a storage whose length is not that of its member in the ZIP")
    if judge.storages.setdefault(key, (dtype, elements)) != (dtype, elements):
        raise RuleViolationError("one storage under two types")
    return AbstractObject("storage", facts={"dtype": dtype, "elements": elements, "key": key})


def tensor(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
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
    if (total and last >= elements) or total > EXPANSION * elements or offset > elements:
        raise RuleViolationError("a tensor that reaches beyond its storage")


def typed(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_rebuild_from_type_v2(function, type, its arguments, attributes)`: marked tensors and jagged ones."""
    if len(args) != 4 or not isinstance(args[2], AbstractContainer) or args[2].kind != "tuple":
        raise RuleViolationError("a tensor of a type as torch does not write one")
    if args[:2] == [GlobalReference(TENSOR), GlobalReference("torch.Tensor")]:
        result = tensor(judge, args[2].items)
        _check_marks(args[3])
        return result
    if (
        args[:2] == [GlobalReference(f"{NESTED}._rebuild_njt"), GlobalReference(f"{NESTED}.NestedTensor")]
        and len(args[2].items) == 1
    ):
        return _jagged(judge, args[2].items[0], args[3])
    raise RuleViolationError("a tensor of an unexpected type")


def _check_marks(state: AbstractValue) -> None:
    """Attributes are set by name: only those of torch.compile, and only plain values."""
    names = state.fields() if isinstance(state, AbstractContainer) else {"": None}
    if not all(map(_MARKS.fullmatch, names)) or get_safety_level(state) > HARMLESS:
        raise RuleViolationError("a tensor that is given attributes")


def _jagged(judge: Verifier, arguments: AbstractValue, state: AbstractValue) -> AbstractValue:
    """`state` repeats the arguments; both must be the same objects, else two readers would see two tensors."""
    told = arguments.fields() if isinstance(arguments, AbstractContainer) else {}
    kept = state.fields() if isinstance(state, AbstractContainer) else {}
    if set(told) != {"values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"}:
        raise RuleViolationError("a jagged tensor with other arguments than its own")
    values, offsets, lengths = told["values"], told["offsets"], told["lengths"]
    _check_parts(judge, values, offsets, lengths)
    same = {"_values": values, "_offsets": offsets, "_lengths": lengths, "_metadata_cache": told["_metadata_cache"]}
    if any(kept.pop(name, value) is not value for name, value in same.items()):
        raise RuleViolationError("a jagged tensor whose attributes are not its arguments")
    if [told["_ragged_idx"], kept.pop("_ragged_idx", 1)] != [1, 1] or type(told["requires_grad"]) is not bool:
        raise RuleViolationError("a jagged tensor that is ragged elsewhere")
    _check_cache(told["_metadata_cache"])
    _check_marks(AbstractContainer("dict", [part for pair in kept.items() for part in pair]))
    return AbstractObject("jagged", HARMLESS)


def _check_parts(judge: Verifier, values: AbstractValue, offsets: AbstractValue, lengths: AbstractValue) -> None:
    """torch's kernels trust the offsets, so they are read: from 0 on, never falling, within the values."""
    if not is_tensor(values) or not values.facts["shape"]:
        raise RuleViolationError("a jagged tensor without values")
    at = _numbers(judge, offsets)
    held = _numbers(judge, lengths) if lengths is not None else [end - begin for begin, end in pairwise(at)]
    if not at or at[0] or len(held) != len(at) - 1 or min(held, default=0) < 0:
        raise RuleViolationError("a jagged tensor whose offsets fall")
    ends = (begin + length for begin, length in zip(at, held, strict=False))
    if max(at) > values.facts["shape"][0] or max(ends, default=0) > values.facts["shape"][0] or min(at) < 0:
        raise RuleViolationError("a jagged tensor whose offsets reach beyond its values")


def _numbers(judge: Verifier, value: AbstractValue) -> list[int]:
    """A tensor of positions, one after the other in its storage."""
    if not is_tensor(value) or value.facts["dtype"] != "int64" or value.facts["stride"] != [1] or not judge.archive:
        raise RuleViolationError("a jagged tensor without offsets")
    count, offset = value.facts["shape"][0], value.facts["offset"]
    if count > MAX_ROWS:
        raise RuleViolationError(f"a jagged tensor of more than {MAX_ROWS:,} rows")
    data = judge.archive.member(f"data/{value.facts['key']}").read(8 * offset, 8 * count)
    return list(struct.unpack(f"<{count}q", data))


def _check_cache(cache: AbstractValue) -> None:
    known = cache.fields() if isinstance(cache, AbstractContainer) else {"": None}
    if not set(known) <= {"min_seqlen", "max_seqlen"} or not all(map(is_tensor, known.values())):
        raise RuleViolationError("a jagged tensor with an unexpected cache")


def is_tensor(value: AbstractValue) -> bool:
    return isinstance(value, AbstractObject) and value.kind == "tensor"


def size(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`torch.Size((2, 3))`."""
    if len(args) != 1:
        raise RuleViolationError("a size that is none")
    return AbstractObject("size", HARMLESS, facts={"shape": parse_sizes(args[0], ("tuple", "list"))})


def from_bytes(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`torch.storage._load_from_bytes(bytes)` runs torch.load on them, so they must pass as a file would."""
    if len(args) != 1 or not isinstance(args[0], AbstractBytes):
        raise RuleViolationError("bytes that are none")
    try:
        root = judge.embedded(args[0])
    except SafePickleError as refused:
        raise RuleViolationError(f"the bytes in it can't be loaded: {refused}") from refused
    if not isinstance(root, AbstractObject) or root.kind != "storage":
        raise RuleViolationError("bytes in it that hold no storage")
    return root


def dimension(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if args:
        raise RuleViolationError("a dimension's range made of something")
    return AbstractObject("range", built=False)


def dimension_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """torch.compile's range of a dimension: [dimension, smallest or None, largest or None]."""
    if thing.built or not isinstance(state, AbstractContainer) or state.kind != "list" or len(state.items) != 3:
        raise RuleViolationError("a dimension's range that is none")
    if not all(item is None or type(item) is int for item in state.items):
        raise RuleViolationError("a dimension's range that is none")
    thing.built = True
    thing.level = HARMLESS


TENSOR_GLOBALS = {
    "torch.Tensor",
    f"{NESTED}.NestedTensor",
    f"{NESTED}._rebuild_njt",
    *(kind.name for kind in _TYPES),
}
TENSOR_CALL_RULES = {
    TENSOR: tensor,
    "torch._tensor._rebuild_from_type_v2": typed,
    "torch.Size": size,
    "torch.storage._load_from_bytes": from_bytes,
}
TENSOR_NEW_RULES = {"torch._dynamo.decorators._DimRange": dimension}
TENSOR_STATE_RULES = {"range": dimension_state}
