"""DataProto and the tensordicts in it: `gen_batch.dp` (both serialisations), `new_batch.dp`, `tq_batch.pt` of verl, and
the batches that ROLL's `rollout_mock` pickles."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from rolloutdeck.safe_pickle.stream import DTYPE_SIZES
from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    SPECIAL,
    AbstractBytes,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    Verifier,
    add_tensor_copy,
    get_fields,
    get_items,
    get_safety_level,
    is_complete,
    is_container,
    is_count,
    is_shape,
    parse_sizes,
    walk_items,
)
from rolloutdeck.safe_pickle.verify.rules.stdlib import build_new_rule

INVALID_BATCH = "an invalid batch, or one that is filled twice"
_DEVICES = (None, "cpu")
_CONTENT = {"tensor", "jagged", "stack", "value", "tensordict", "unknown"}


def _take_attributes(
    verifier: Verifier, target: AbstractObject, state: AbstractValue, names: set[str]
) -> dict[str, AbstractValue]:
    """Marks the object as filled and returns its attributes. Raises RuleViolationError if one is unexpected."""
    message = "an object that is filled twice, or with something else than its attributes"
    if target.has_state:
        raise RuleViolationError(message)
    fields = get_fields(verifier, state, message)
    if set(fields) - names:
        raise RuleViolationError(f"an object that is given {sorted(set(fields) - names)[0]!r}")
    target.has_state = True
    state.release_items()
    return fields


def _take_items(target: AbstractObject, state: AbstractValue, length: int, message: str) -> list[AbstractValue]:
    """Marks the object as filled and returns the items of its state, a tuple. Raises RuleViolationError."""
    had_state, target.has_state = target.has_state, True
    if had_state or not is_container(state, "tuple", length):
        raise RuleViolationError(message)
    items: list[AbstractValue] = state.items
    return items


# TensorDict


def verify_consolidated(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_rebuild_tensordict_files_consolidated(metadata, storage)`: one byte tensor and each field's position."""
    if len(args) != 2 or not is_complete(args[1], "tensor"):
        raise RuleViolationError("an invalid tensordict")
    metadata = get_fields(verifier, args[0], "an invalid tensordict")
    if set(metadata) - {"size"} != {"cls", "non_tensors", "leaves", "cls_metadata"} or metadata["cls"] != "TensorDict":
        raise RuleViolationError("a tensordict with an unexpected layout")
    if not is_count(metadata.get("size", 0)) or args[1].facts["dtype"] != "uint8" or len(args[1].facts["shape"]) != 1:
        raise RuleViolationError("a tensordict with an unexpected layout")
    leaves = _get_fields(verifier, metadata["leaves"])
    for name, leaf in leaves.items():
        verifier.budget.add_tensor(_check_leaf(name, leaf, args[1].facts["shape"][0]))
    _check_non_tensors(verifier, metadata["non_tensors"])
    _check_class(verifier, metadata["cls_metadata"])
    return AbstractObject("tensordict")


def _get_fields(verifier: Verifier, value: AbstractValue) -> dict[str, AbstractValue]:
    return get_fields(verifier, value, "a tensordict with an unexpected layout")


def _check_leaf(name: str, leaf: AbstractValue, length: int) -> int:
    """(dtype, shape, first byte, byte after the last, padding). Returns its length in bytes, with its padding."""
    dtype, shape, start, stop, padding = get_items(leaf, 5)
    is_torch = type(dtype) is str and dtype.startswith("torch.") and not name.startswith("<NJT")
    width = DTYPE_SIZES.get(dtype.removeprefix("torch.")) if is_torch else None
    if width is None or not is_count(start) or not is_count(stop) or not is_count(padding):
        raise RuleViolationError(f"the field {name!r} is invalid")
    padding_bytes = stop - start - prod(parse_sizes(shape, ("list", "tuple"))) * width
    if not start <= stop <= length or padding_bytes < 0 or (padding_bytes and not padding):
        raise RuleViolationError(f"the field {name!r} reaches beyond the bytes that it has")
    return int(stop - start)


def _check_non_tensors(verifier: Verifier, value: AbstractValue) -> None:
    """name -> (value, batch size, device)."""
    for metadata in _get_fields(verifier, value).values():
        is_plain = is_container(metadata, "tuple", 3) and get_safety_level(metadata) != SPECIAL
        if not is_plain or metadata.items[2] not in _DEVICES or not _is_shape(metadata.items[1]):
            raise RuleViolationError("an invalid value in a tensordict")


def _is_shape(value: AbstractValue) -> bool:
    return is_complete(value, "size") or is_shape(value, ("list", "tuple"))


def _check_class(verifier: Verifier, value: AbstractValue) -> None:
    metadata = _get_fields(verifier, value)
    if set(metadata) - {"device", "names", "batch_size", "is_locked"} or metadata.get("device") not in _DEVICES:
        raise RuleViolationError("a tensordict on an unexpected device, or with unexpected settings")
    if not _is_shape(metadata.get("batch_size")) or type(metadata.get("is_locked", False)) is not bool:
        raise RuleViolationError("a tensordict without a batch size")
    _check_names(metadata.get("names"))


def _check_names(value: AbstractValue) -> None:
    if value is not None and (not is_container(value, "list") or get_safety_level(value) > HARMLESS):
        raise RuleViolationError("a tensordict with unexpected names of dimensions")


def verify_tensordict(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_make_td(TensorDict, attributes)`."""
    if len(args) != 2 or args[0] != GlobalReference("tensordict._td.TensorDict"):
        raise RuleViolationError("a tensordict of another class")
    result = AbstractObject("tensordict", has_state=False)
    known = {"_tensordict", "_device", "_batch_size", "_td_dim_names", "_is_locked"}
    fields = _take_attributes(verifier, result, args[1], known)
    content = _get_fields(verifier, fields.get("_tensordict"))
    if not all(is_complete(value, *_CONTENT) for value in content.values()):
        raise RuleViolationError("a tensordict with an invalid field")
    for value in content.values():
        if is_complete(value, "tensor", "jagged"):
            add_tensor_copy(verifier, value)
    _check_attributes(fields)
    _check_names(fields.get("_td_dim_names"))
    _count_values(verifier, result, content.values())
    return result


def _count_values(verifier: Verifier, target: AbstractObject, values: Iterable[AbstractValue]) -> None:
    """Counts what a copy of the tensordict has: a few levels that name each other twice are any number of values."""
    counts = (value.facts.get("values", 1) for value in values if isinstance(value, AbstractObject))
    target.facts = {**target.facts, "values": 1 + sum(counts)}
    verifier.budget.spend(target.facts["values"])


def _check_attributes(fields: dict[str, AbstractValue]) -> None:
    if fields.get("_device") not in _DEVICES or not _is_shape(fields.get("_batch_size")):
        raise RuleViolationError("a tensordict without a batch size, or on an unexpected device")
    if fields.get("_is_locked") not in (None, False, True):
        raise RuleViolationError("a tensordict whose lock flag is not a boolean")


def verify_stack_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """A column of values, one tensordict per row. Hooks are functions, so none is allowed."""
    known = {"_is_locked", "stack_dim", "_batch_size", "tensordicts", "hook_out", "hook_in", "_device", "_td_dim_name"}
    fields = _take_attributes(verifier, target, state, known)
    rows: AbstractValue = fields.get("tensordicts")
    if not is_container(rows, "list"):
        raise RuleViolationError("a column with an invalid value")
    if not all(is_complete(row, "value", "stack") for row in walk_items(verifier, rows)):
        raise RuleViolationError("a column with an invalid value")
    if any(fields.get(name) is not None for name in ("hook_out", "hook_in", "_td_dim_name")):
        raise RuleViolationError("a column with hooks")
    if not is_count(fields.get("stack_dim")):
        raise RuleViolationError("a column without a dimension")
    _check_attributes(fields)
    _count_values(verifier, target, rows.items)


def verify_value_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """One value: an empty tensordict and {data, _metadata, _is_non_tensor}."""
    fields = _take_attributes(verifier, target, state, {"tensordict", "non_tensordict"})
    metadata = _get_fields(verifier, fields.get("non_tensordict"))
    if not is_complete(fields.get("tensordict"), "tensordict") or "data" not in metadata:
        raise RuleViolationError("an invalid value")
    if set(metadata) - {"data", "_metadata", "_is_non_tensor"} or metadata.get("_is_non_tensor", True) is not True:
        raise RuleViolationError("a value with unexpected attributes")
    if metadata.get("_metadata") is not None or get_safety_level(metadata["data"]) == SPECIAL:
        raise RuleViolationError("a value that is not a plain value")


# DataProto


def verify_proto_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """(batch, columns, meta info); the batch is what torch.save wrote, or verl's tuple of raw arrays.

    The trainer passes the bytes of the batch to torch.load, which trusts any bytes. They must be a canonical archive.
    """
    target.facts = {}
    _fill_data_proto(verifier, target, *_take_items(target, state, 3, INVALID_BATCH))


def verify_rollout_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """ROLL's (buffer, columns, no external batch, meta info); torch.load reads the buffer (protocol.py:321-340)."""
    target.facts = {}
    buffer, columns, external_batch, meta = _take_items(target, state, 4, INVALID_BATCH)
    if not is_complete(buffer, "buffer") or "data" not in buffer.facts or external_batch is not None:
        raise RuleViolationError("a batch that is not in the file")
    _fill_data_proto(verifier, target, buffer.facts["data"], columns, meta)


def verify_buffer_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """(bytes, position, no attributes)."""
    data, position, attributes = _take_items(target, state, 3, "an invalid buffer, or one that is filled twice")
    is_valid = isinstance(data, AbstractBytes) and is_count(position) and position <= data.length
    if not is_valid or attributes is not None:
        raise RuleViolationError("an invalid buffer, or one with attributes")
    target.facts = {"data": data}


def _fill_data_proto(
    verifier: Verifier, target: AbstractObject, batch: AbstractValue, columns: AbstractValue, meta: AbstractValue
) -> None:
    """Verifies the parts of a DataProto and records its tensors. Raises RuleViolationError."""
    tensors = _verify_tensors(verifier, batch)
    if not is_complete(tensors, "unknown"):
        target.facts = {"batch": tensors}
    for name, column in _get_fields(verifier, columns).items():
        if not is_complete(column, "array", "unknown"):
            raise RuleViolationError(f"the column {name[:80]!r} is not an array")
    if not is_container(meta, "dict") or get_safety_level(meta) == SPECIAL:
        raise RuleViolationError("meta info that is not a dict of plain values")


def _verify_tensors(verifier: Verifier, batch: AbstractValue) -> AbstractValue:
    if isinstance(batch, AbstractBytes):
        root = verifier.verify_embedded(batch)
        if root is not None and not is_complete(root, "tensordict", "unknown"):
            raise RuleViolationError("a batch without a tensordict")
        return root
    if batch is not None:
        _check_numpy_parts(verifier, batch)
    return batch


def _check_numpy_parts(verifier: Verifier, batch: AbstractValue) -> None:
    """VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: (batch size, device, {name: (dtype, size, bytes as u1)})."""
    if not is_container(batch, "tuple", 3):
        raise RuleViolationError("an invalid batch")
    sizes, device, fields = batch.items
    if not _is_shape(sizes) or device not in _DEVICES:
        raise RuleViolationError("a batch on an unexpected device")
    for name, metadata in _get_fields(verifier, fields).items():
        for tensor in _list_tensors(verifier, metadata):
            verifier.budget.add_tensor(_check_tensor(name, tensor))


def _list_tensors(verifier: Verifier, metadata: AbstractValue) -> list[AbstractValue]:
    """Returns one tensor, or the rows of a nested one: (layout, [tensors])."""
    if not is_container(metadata, "tuple", 2):
        return [metadata]
    layout, rows = metadata.items
    if layout not in ("jagged", "strided") or not is_container(rows, "list"):
        raise RuleViolationError("an invalid nested field")
    return walk_items(verifier, rows)


def _check_tensor(name: str, tensor: AbstractValue) -> int:
    """Returns its length in bytes."""
    dtype, shape, content = get_items(tensor, 3)
    if dtype not in DTYPE_SIZES or not is_complete(shape, "size") or not is_complete(content, "array"):
        raise RuleViolationError(f"the field {name!r} is invalid")
    kind = content.facts["dtype"].facts
    count = kind["size"] * prod(content.facts["shape"])
    if kind["object"] or count != prod(shape.facts["shape"]) * DTYPE_SIZES[dtype]:
        raise RuleViolationError(f"the field {name!r} does not have as many bytes as its shape")
    return int(count)


GLOBALS = {"tensordict._td.TensorDict"}
CALL_RULES = {
    "tensordict._reductions._rebuild_tensordict_files_consolidated": verify_consolidated,
    "tensordict._reductions._make_td": verify_tensordict,
}
NEW_RULES = {
    "verl.protocol.DataProto": build_new_rule("batch"),
    "roll.distributed.scheduler.protocol.DataProto": build_new_rule("rollout"),
    "_io.BytesIO": build_new_rule("buffer"),
    "tensordict.tensorclass.NonTensorStack": build_new_rule("stack"),
    "tensordict.tensorclass.NonTensorData": build_new_rule("value"),
}
STATE_RULES = {
    "batch": verify_proto_state,
    "rollout": verify_rollout_state,
    "buffer": verify_buffer_state,
    "stack": verify_stack_state,
    "value": verify_value_state,
}
