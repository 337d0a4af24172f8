"""Storages, tensors and tensordicts that reach beyond their bytes or are given what they never are."""

from __future__ import annotations

import struct

from tests.rolloutdeck.safe_pickle.assembler import (
    BYTES,
    EMPTY_DICT,
    FIELDS,
    HOOKS,
    NONE,
    TRUE,
    archive,
    call,
    consolidated,
    data,
    jagged,
    leaf,
    listed,
    mapped,
    members,
    named,
    number,
    parts,
    proto,
    queue,
    row,
    saved,
    stack,
    storage,
    tensor,
    tensordict,
    text,
    value,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case


def tensor_file(held: bytes, *storages: bytes) -> bytes:
    return saved(mapped(x=held), *(storages or (BYTES,)))


def marked(state: bytes) -> bytes:
    """A tensor with attributes."""
    names = named("torch._utils._rebuild_tensor_v2"), named("torch.Tensor")
    held = row(*parts(storage(16), 16))
    return tensor_file(call("torch._tensor._rebuild_from_type_v2", *names, held, state))


def ragged(offsets: list[int], kept: bytes = b"") -> bytes:
    held = jagged(tensor(storage(8, "0", "Long"), 8), tensor(storage(len(offsets), "1", "Long"), len(offsets)), kept)
    return saved(held, bytes(64), struct.pack(f"<{len(offsets)}q", *offsets))


def fields(**leaves: bytes) -> bytes:
    return saved(consolidated(tensor(storage(16), 16), **leaves), BYTES)


def filled_hooks() -> bytes:
    return HOOKS + number(0) + text("hook") + b"s"


TENSORS = {
    "a storage that is not there": Case(
        lambda: tensor_file(tensor(storage(16, "7"), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage outside of the archive": Case(
        lambda: tensor_file(tensor(storage(16, "../0"), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage longer than its member": Case(
        lambda: tensor_file(tensor(storage(1 << 40), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage shorter than its member": Case(
        lambda: tensor_file(tensor(storage(8), 8)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "one storage under two types": Case(
        lambda: tensor_file(listed(tensor(storage(16), 16), tensor(storage(2, kind="Long"), 2))),
        "a persistent id: one storage with two types",
    ),
    "a storage on a device of its own": Case(
        lambda: tensor_file(tensor(storage(16, place="meta"), 16)), "a persistent id: a storage on an unknown device"
    ),
    "a persistent id that is a call": Case(
        lambda: tensor_file(row(text("module"), SYSTEM, text("x")) + b"Q"), "it names 'os.system'"
    ),
    "a persistent id that is a module": Case(
        lambda: tensor_file(row(text("module"), named("torch.Tensor"), text("x"), text("y"), number(0)) + b"Q"),
        "a persistent id: a persistent id that is not a torch storage",
    ),
    "a tensor beyond its storage": Case(
        lambda: tensor_file(tensor(storage(16), 17)), "_rebuild_tensor_v2: a tensor that reaches beyond its storage"
    ),
    "a tensor beyond it by its offset": Case(
        lambda: tensor_file(tensor(storage(16), 16, offset=1)),
        "_rebuild_tensor_v2: a tensor that reaches beyond its storage",
    ),
    "a tensor beyond it by its stride": Case(
        lambda: tensor_file(tensor(storage(16), 3, stride=8)),
        "_rebuild_tensor_v2: a tensor that reaches beyond its storage",
    ),
    "a tensor before its storage": Case(
        lambda: tensor_file(tensor(storage(16), 3, stride=-1)), "_rebuild_tensor_v2: an invalid shape"
    ),
    "a tensor of a petabyte by a stride of 0": Case(
        lambda: tensor_file(tensor(storage(16), 1 << 50, stride=0)),
        "_rebuild_tensor_v2: its tensors would take more than 17,179,869,184 bytes as copies",
    ),
    "a tensor with hooks": Case(
        lambda: tensor_file(tensor(storage(16), 16, hooks=filled_hooks())),
        "_rebuild_tensor_v2: a tensor with hooks or metadata",
    ),
    "a tensor with metadata": Case(
        lambda: tensor_file(call("torch._utils._rebuild_tensor_v2", *parts(storage(16), 16), mapped(a=NONE))),
        "_rebuild_tensor_v2: a tensor with hooks or metadata",
    ),
    "a tensor that is given a class": Case(
        lambda: marked(mapped(__class__=named("torch.Size"))),
        "_rebuild_from_type_v2: a tensor with unexpected attributes",
    ),
    "a tensor that is given data": Case(
        lambda: marked(mapped(data=NONE)), "_rebuild_from_type_v2: a tensor with unexpected attributes"
    ),
    "a mark that is a function": Case(
        lambda: marked(mapped(_specialize_on=named("torch.Size"))),
        "_rebuild_from_type_v2: a tensor with unexpected attributes",
    ),
    "a tensor of another function": Case(
        lambda: tensor_file(
            call("torch._tensor._rebuild_from_type_v2", named("os.system"), named("torch.Tensor"), row(NONE), NONE)
        ),
        "it names 'os.system'",
    ),
    "a tensor of another type": Case(
        lambda: tensor_file(
            call("torch._tensor._rebuild_from_type_v2", named("torch.Size"), named("torch.Tensor"), row(NONE), NONE)
        ),
        "_rebuild_from_type_v2: a tensor of an unexpected type",
    ),
    "offsets beyond the values": Case(
        lambda: ragged([0, 3, 1 << 40]), "_rebuild_from_type_v2: a jagged tensor whose offsets reach beyond its values"
    ),
    "offsets that fall": Case(
        lambda: ragged([0, 5, 3]), "_rebuild_from_type_v2: a jagged tensor whose offsets decrease"
    ),
    "offsets below 0": Case(
        lambda: ragged([-8, 3, 8]), "_rebuild_from_type_v2: a jagged tensor whose offsets decrease"
    ),
    "a jagged tensor with two kinds of values": Case(
        lambda: ragged([0, 3, 8], mapped(_values=tensor(storage(8, "0", "Long"), 8))),
        "_rebuild_from_type_v2: a jagged tensor whose attributes differ from its arguments",
    ),
    "a field beyond the bytes": Case(
        lambda: fields(a=leaf("torch.int64", 2, 8, 24)),
        "_rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
    "a field larger than its bytes": Case(
        lambda: fields(a=leaf("torch.int64", 1 << 40, 0, 16)),
        "_rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
    "a field of a type that is none": Case(
        lambda: fields(a=leaf("os.system", 2, 0, 16)),
        "_rebuild_tensordict_files_consolidated: the field 'a' is invalid",
    ),
    "a tensordict of another class": Case(
        lambda: saved(
            consolidated(tensor(storage(16), 16), named("tensordict.tensorclass.NonTensorData"), **FIELDS), BYTES
        ),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict that is given a method": Case(
        lambda: saved(
            call(
                "tensordict._reductions._make_td",
                named("tensordict._td.TensorDict"),
                mapped(lock_=NONE, _is_locked=TRUE),
            )
        ),
        "_make_td: an object that is given 'lock_'",
    ),
    "a column with a hook": Case(
        lambda: archive(members(queue(tensordict(a=stack(value(NONE), hook_in=named("torch.Size")))))),
        "stack: a column with hooks",
        True,
    ),
    "a column of what is no value": Case(
        lambda: archive(members(queue(tensordict(a=stack(EMPTY_DICT))))), "stack: a column with an invalid value", True
    ),
    "a value that runs something": Case(
        lambda: archive(members(queue(tensordict(a=stack(value(SYSTEM)))))), "it names 'os.system'", True
    ),
    "a value that is a class": Case(
        lambda: archive(members(queue(tensordict(a=stack(value(named("torch.Size"))))))),
        "value: a value that is not a plain value",
        True,
    ),
    "a batch whose fields lie outside": Case(
        lambda: proto(data(fields(a=leaf("torch.int64", 9, 0, 72)))),
        "inside it: _rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
}
