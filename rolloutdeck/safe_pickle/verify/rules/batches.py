"""verl's DataProto and the tensordicts in it: `gen_batch.dp` (both serialisations), `new_batch.dp`, `tq_batch.pt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    SPECIAL,
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
from rolloutdeck.safe_pickle.verify.rules.tensors import TENSOR_DTYPE_SIZES

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Verifier

STACK = "tensordict.tensorclass.NonTensorStack"
VALUE = "tensordict.tensorclass.NonTensorData"
_DEVICES = (None, "cpu")
_CONTENT = {"tensor", "jagged", "stack", "value", "tensordict", "unknown"}


def build_new_rule(kind: str) -> Callable[[Verifier, list[AbstractValue]], AbstractValue]:
    def make(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
        if args:
            raise RuleViolationError("an object made of something")
        return AbstractObject(kind, built=False)

    return make


def _once(thing: AbstractObject, state: AbstractValue, names: set[str]) -> dict[str, AbstractValue]:
    """The attributes, of which none may be unexpected. Raises RuleViolationError."""
    if thing.built or not isinstance(state, AbstractContainer):
        raise RuleViolationError("an object that is filled twice, or with something else than its attributes")
    fields = state.fields()
    if set(fields) - names:
        raise RuleViolationError(f"an object that is given {sorted(set(fields) - names)[0]!r}")
    thing.built = True
    state.spend()
    return fields


def _is(value: AbstractValue, *kinds: str) -> bool:
    return isinstance(value, AbstractObject) and value.kind in kinds and value.built


# tensordict


def consolidated(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_rebuild_tensordict_files_consolidated(metadata, storage)`: one byte tensor and where each field lies in it."""
    if len(args) != 2 or not isinstance(args[0], AbstractContainer) or not _is(args[1], "tensor"):
        raise RuleViolationError("a tensordict that is none")
    told = args[0].fields()
    if set(told) - {"size"} != {"cls", "non_tensors", "leaves", "cls_metadata"} or told["cls"] != "TensorDict":
        raise RuleViolationError("a tensordict of another make")
    if not is_count(told.get("size", 0)) or args[1].facts["dtype"] != "uint8" or len(args[1].facts["shape"]) != 1:
        raise RuleViolationError("a tensordict of another make")
    leaves = _dict(told["leaves"])
    for name, leaf in leaves.items():
        _check_leaf(name, leaf, args[1].facts["shape"][0])
    _check_non_tensors(told["non_tensors"])
    _check_class(told["cls_metadata"])
    return AbstractObject("tensordict")


def _dict(value: AbstractValue) -> dict[str, AbstractValue]:
    if not isinstance(value, AbstractContainer):
        raise RuleViolationError("a tensordict of another make")
    return value.fields()


def _check_leaf(name: str, leaf: AbstractValue, length: int) -> None:
    """(dtype, shape, first byte, byte behind the last, padding)."""
    if (
        not isinstance(leaf, AbstractContainer)
        or leaf.kind != "tuple"
        or len(leaf.items) != 5
        or name.startswith("<NJT")
    ):
        raise RuleViolationError(f"the field {name!r} is none")
    dtype, shape, start, stop, padding = leaf.items
    width = (
        TENSOR_DTYPE_SIZES.get(dtype.removeprefix("torch."))
        if type(dtype) is str and dtype.startswith("torch.")
        else None
    )
    if width is None or not is_count(start) or not is_count(stop) or not is_count(padding):
        raise RuleViolationError(f"the field {name!r} is none")
    rest = stop - start - multiply_sizes(parse_sizes(shape, ("list", "tuple"))) * width
    if not start <= stop <= length or rest < 0 or (rest and not padding):
        raise RuleViolationError(f"the field {name!r} reaches beyond the bytes that it has")


def _check_non_tensors(value: AbstractValue) -> None:
    """name -> (value, batch size, device)."""
    for told in _dict(value).values():
        if (
            not isinstance(told, AbstractContainer)
            or told.kind != "tuple"
            or len(told.items) != 3
            or get_safety_level(told) == SPECIAL
        ):
            raise RuleViolationError("a value in a tensordict that is none")
        if told.items[2] not in _DEVICES or not _is_shape(told.items[1]):
            raise RuleViolationError("a value in a tensordict that is none")


def _is_shape(value: AbstractValue) -> bool:
    if _is(value, "size"):
        return True
    return isinstance(value, AbstractContainer) and value.kind in ("list", "tuple") and all(map(is_count, value.items))


def _check_class(value: AbstractValue) -> None:
    told = _dict(value)
    if set(told) - {"device", "names", "batch_size", "is_locked"} or told.get("device") not in _DEVICES:
        raise RuleViolationError("a tensordict on an unexpected device, or with unexpected settings")
    if not _is_shape(told.get("batch_size")) or type(told.get("is_locked", False)) is not bool:
        raise RuleViolationError("a tensordict without a batch size")
    _check_names(told.get("names"))


def _check_names(value: AbstractValue) -> None:
    if value is not None and (
        not isinstance(value, AbstractContainer) or value.kind != "list" or get_safety_level(value) > HARMLESS
    ):
        raise RuleViolationError("a tensordict with unexpected names of dimensions")


def make_tensordict(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_make_td(TensorDict, attributes)`."""
    if len(args) != 2 or args[0] != GlobalReference("tensordict._td.TensorDict"):
        raise RuleViolationError("a tensordict of another class")
    result = AbstractObject("tensordict", built=False)
    known = {"_tensordict", "_device", "_batch_size", "_td_dim_names", "_is_locked"}
    fields = _once(result, args[1], known)
    content = _dict(fields.get("_tensordict"))
    if not all(_is(value, *_CONTENT) for value in content.values()):
        raise RuleViolationError("a tensordict with a field that is none")
    _check_attributes(fields)
    _check_names(fields.get("_td_dim_names"))
    return result


def _check_attributes(fields: dict[str, AbstractValue]) -> None:
    if fields.get("_device") not in _DEVICES or not _is_shape(fields.get("_batch_size")):
        raise RuleViolationError("a tensordict without a batch size, or on an unexpected device")
    if fields.get("_is_locked") not in (None, False, True):
        raise RuleViolationError("a tensordict that is neither locked nor not")


def stack_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """A column of values, one tensordict a row; its hooks are functions, so there may be none."""
    known = {"_is_locked", "stack_dim", "_batch_size", "tensordicts", "hook_out", "hook_in", "_device", "_td_dim_name"}
    fields = _once(thing, state, known)
    rows = fields.get("tensordicts")
    if (
        not isinstance(rows, AbstractContainer)
        or rows.kind != "list"
        or not all(_is(row, "value", "stack") for row in rows.items)
    ):
        raise RuleViolationError("a column of what is no value")
    if any(fields.get(name) is not None for name in ("hook_out", "hook_in", "_td_dim_name")):
        raise RuleViolationError("a column with hooks")
    if not is_count(fields.get("stack_dim")):
        raise RuleViolationError("a column without a dimension")
    _check_attributes(fields)


def value_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """One value: an empty tensordict and {data, _metadata, _is_non_tensor}."""
    fields = _once(thing, state, {"tensordict", "non_tensordict"})
    told = _dict(fields.get("non_tensordict"))
    if not _is(fields.get("tensordict"), "tensordict") or "data" not in told:
        raise RuleViolationError("a value that is none")
    if set(told) - {"data", "_metadata", "_is_non_tensor"} or told.get("_is_non_tensor", True) is not True:
        raise RuleViolationError("a value with something beside it")
    if told.get("_metadata") is not None or get_safety_level(told["data"]) == SPECIAL:
        raise RuleViolationError("a value that is no plain value")


# DataProto


def proto_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """(batch, columns, meta info); the batch is what torch.save wrote, or verl's own tuple of raw arrays.

    The bytes of the batch go to torch.load, which believes any bytes: they must be a canonical archive.
    """
    filled, thing.built, thing.facts = thing.built, True, {}
    if filled or not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 3:
        raise RuleViolationError("a batch that is none, or that is filled twice")
    fill_data_proto(judge, thing, *state.items)


def fill_data_proto(
    judge: Verifier, thing: AbstractObject, batch: AbstractValue, columns: AbstractValue, meta: AbstractValue
) -> None:
    """Raises RuleViolationError unless these are the parts of a DataProto."""
    found = _batch(judge, batch)
    if not _is(found, "unknown"):
        thing.facts = {"batch": found}
    for name, column in _dict(columns).items():
        if not (_is(column, "array", "unknown")):
            raise RuleViolationError(f"the column {name[:80]!r} is no array")
    if not isinstance(meta, AbstractContainer) or meta.kind != "dict" or get_safety_level(meta) == SPECIAL:
        raise RuleViolationError("meta info that is no dict of plain values")


def _batch(judge: Verifier, batch: AbstractValue) -> AbstractValue:
    if isinstance(batch, AbstractBytes):
        root = judge.embedded(batch)
        if root is not None and not _is(root, "tensordict", "unknown"):
            raise RuleViolationError("a batch that holds no tensordict")
        return root
    if batch is None:
        return None
    _check_raw(batch)
    return batch


def _check_raw(batch: AbstractValue) -> None:
    """VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: (batch size, device, {name: (dtype, size, bytes as u1)})."""
    if not isinstance(batch, AbstractContainer) or batch.kind != "tuple" or len(batch.items) != 3:
        raise RuleViolationError("a batch that is none")
    sizes, device, fields = batch.items
    if not _is_shape(sizes) or device not in _DEVICES:
        raise RuleViolationError("a batch on an unexpected device")
    for name, told in _dict(fields).items():
        for part in _parts(told):
            _check_part(name, part)


def _parts(told: AbstractValue) -> list[AbstractValue]:
    """One tensor, or the rows of a nested one: (layout, [tensors])."""
    if isinstance(told, AbstractContainer) and told.kind == "tuple" and len(told.items) == 2:
        rows = told.items[1]
        if told.items[0] not in ("jagged", "strided") or not isinstance(rows, AbstractContainer) or rows.kind != "list":
            raise RuleViolationError("a nested field that is none")
        return rows.items
    return [told]


def _check_part(name: str, part: AbstractValue) -> None:
    if not isinstance(part, AbstractContainer) or part.kind != "tuple" or len(part.items) != 3:
        raise RuleViolationError(f"the field {name!r} is none")
    dtype, shape, content = part.items
    if dtype not in TENSOR_DTYPE_SIZES or not _is(shape, "size") or not _is(content, "array"):
        raise RuleViolationError(f"the field {name!r} is none")
    kind = content.facts["dtype"].facts
    count = kind["size"] * multiply_sizes(content.facts["shape"])
    if kind["object"] or count != multiply_sizes(shape.facts["shape"]) * TENSOR_DTYPE_SIZES[dtype]:
        raise RuleViolationError(f"the field {name!r} has other bytes than its shape")


BATCH_GLOBALS = {"tensordict._td.TensorDict"}
BATCH_CALL_RULES = {
    "tensordict._reductions._rebuild_tensordict_files_consolidated": consolidated,
    "tensordict._reductions._make_td": make_tensordict,
}
BATCH_NEW_RULES = {
    "verl.protocol.DataProto": build_new_rule("batch"),
    STACK: build_new_rule("stack"),
    VALUE: build_new_rule("value"),
}
BATCH_STATE_RULES = {"batch": proto_state, "stack": stack_state, "value": value_state}
