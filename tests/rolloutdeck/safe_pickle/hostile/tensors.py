"""Storages, tensors and tensordicts that reach beyond their bytes or have invalid parts."""

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
    bytes_,
    call,
    consolidated_tensordict,
    dict_,
    global_name,
    jagged_tensor,
    leaf,
    list_,
    members,
    non_tensor_data,
    non_tensor_stack,
    number,
    proto,
    queue_pickle,
    storage,
    tensor,
    tensor_arguments,
    tensordict,
    text,
    torch_file,
    tuple_,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case


def build_tensor_file(content: bytes, *storages: bytes) -> bytes:
    return torch_file(dict_(x=content), *(storages or (BYTES,)))


def build_tensor_with_attributes(state: bytes) -> bytes:
    """A tensor with attributes."""
    names = global_name("torch._utils._rebuild_tensor_v2"), global_name("torch.Tensor")
    arguments = tuple_(*tensor_arguments(storage(16), 16))
    return build_tensor_file(call("torch._tensor._rebuild_from_type_v2", *names, arguments, state))


def build_jagged_file(offsets: list[int], attributes: bytes = b"") -> bytes:
    jagged = jagged_tensor(
        tensor(storage(8, "0", "Long"), 8), tensor(storage(len(offsets), "1", "Long"), len(offsets)), attributes
    )
    return torch_file(jagged, bytes(64), struct.pack(f"<{len(offsets)}q", *offsets))


def build_tensordict_file(**leaves: bytes) -> bytes:
    return torch_file(consolidated_tensordict(tensor(storage(16), 16), **leaves), BYTES)


def build_hooks() -> bytes:
    return HOOKS + number(0) + text("hook") + b"s"


TENSORS = {
    "a storage that is not there": Case(
        lambda: build_tensor_file(tensor(storage(16, "7"), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage outside of the archive": Case(
        lambda: build_tensor_file(tensor(storage(16, "../0"), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage longer than its member": Case(
        lambda: build_tensor_file(tensor(storage(1 << 40), 16)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "a storage shorter than its member": Case(
        lambda: build_tensor_file(tensor(storage(8), 8)),
        "a persistent id: a storage whose length differs from its member in the ZIP",
    ),
    "one storage under two types": Case(
        lambda: build_tensor_file(list_(tensor(storage(16), 16), tensor(storage(2, kind="Long"), 2))),
        "a persistent id: one storage with two types",
    ),
    "a storage on a device of its own": Case(
        lambda: build_tensor_file(tensor(storage(16, place="meta"), 16)),
        "a persistent id: a storage on an unknown device",
    ),
    "a persistent id that is a call": Case(
        lambda: build_tensor_file(tuple_(text("module"), SYSTEM, text("x")) + b"Q"), "it names 'os.system'"
    ),
    "a persistent id that is a module": Case(
        lambda: build_tensor_file(
            tuple_(text("module"), global_name("torch.Tensor"), text("x"), text("y"), number(0)) + b"Q"
        ),
        "a persistent id: a persistent id that is not a torch storage",
    ),
    "a tensor beyond its storage": Case(
        lambda: build_tensor_file(tensor(storage(16), 17)),
        "_rebuild_tensor_v2: a tensor that reaches beyond its storage",
    ),
    "a tensor beyond it by its offset": Case(
        lambda: build_tensor_file(tensor(storage(16), 16, offset=1)),
        "_rebuild_tensor_v2: a tensor that reaches beyond its storage",
    ),
    "a tensor beyond it by its stride": Case(
        lambda: build_tensor_file(tensor(storage(16), 3, stride=8)),
        "_rebuild_tensor_v2: a tensor that reaches beyond its storage",
    ),
    "a tensor before its storage": Case(
        lambda: build_tensor_file(tensor(storage(16), 3, stride=-1)), "_rebuild_tensor_v2: an invalid shape"
    ),
    "a tensor of a petabyte by a stride of 0": Case(
        lambda: build_tensor_file(tensor(storage(16), 1 << 50, stride=0)),
        "_rebuild_tensor_v2: its tensors would take more than 17,179,869,184 bytes as copies",
    ),
    "a tensor with hooks": Case(
        lambda: build_tensor_file(tensor(storage(16), 16, hooks=build_hooks())),
        "_rebuild_tensor_v2: a tensor with hooks or metadata",
    ),
    "a tensor with metadata": Case(
        lambda: build_tensor_file(
            call("torch._utils._rebuild_tensor_v2", *tensor_arguments(storage(16), 16), dict_(a=NONE))
        ),
        "_rebuild_tensor_v2: a tensor with hooks or metadata",
    ),
    "a tensor that is given a class": Case(
        lambda: build_tensor_with_attributes(dict_(__class__=global_name("torch.Size"))),
        "_rebuild_from_type_v2: a tensor with unexpected attributes",
    ),
    "a tensor that is given data": Case(
        lambda: build_tensor_with_attributes(dict_(data=NONE)),
        "_rebuild_from_type_v2: a tensor with unexpected attributes",
    ),
    "a mark that is a function": Case(
        lambda: build_tensor_with_attributes(dict_(_specialize_on=global_name("torch.Size"))),
        "_rebuild_from_type_v2: a tensor with unexpected attributes",
    ),
    "a tensor of another function": Case(
        lambda: build_tensor_file(
            call(
                "torch._tensor._rebuild_from_type_v2",
                global_name("os.system"),
                global_name("torch.Tensor"),
                tuple_(NONE),
                NONE,
            )
        ),
        "it names 'os.system'",
    ),
    "a tensor of another type": Case(
        lambda: build_tensor_file(
            call(
                "torch._tensor._rebuild_from_type_v2",
                global_name("torch.Size"),
                global_name("torch.Tensor"),
                tuple_(NONE),
                NONE,
            )
        ),
        "_rebuild_from_type_v2: a tensor of an unexpected type",
    ),
    "offsets beyond the values": Case(
        lambda: build_jagged_file([0, 3, 1 << 40]),
        "_rebuild_from_type_v2: a jagged tensor whose offsets reach beyond its values",
    ),
    "offsets that fall": Case(
        lambda: build_jagged_file([0, 5, 3]), "_rebuild_from_type_v2: a jagged tensor whose offsets decrease"
    ),
    "offsets below 0": Case(
        lambda: build_jagged_file([-8, 3, 8]), "_rebuild_from_type_v2: a jagged tensor whose offsets decrease"
    ),
    "a jagged tensor with two kinds of values": Case(
        lambda: build_jagged_file([0, 3, 8], dict_(_values=tensor(storage(8, "0", "Long"), 8))),
        "_rebuild_from_type_v2: a jagged tensor whose attributes differ from its arguments",
    ),
    "a field beyond the bytes": Case(
        lambda: build_tensordict_file(a=leaf("torch.int64", 2, 8, 24)),
        "_rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
    "a field larger than its bytes": Case(
        lambda: build_tensordict_file(a=leaf("torch.int64", 1 << 40, 0, 16)),
        "_rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
    "a field of a type that is none": Case(
        lambda: build_tensordict_file(a=leaf("os.system", 2, 0, 16)),
        "_rebuild_tensordict_files_consolidated: the field 'a' is invalid",
    ),
    "a tensordict of another class": Case(
        lambda: torch_file(
            consolidated_tensordict(
                tensor(storage(16), 16), global_name("tensordict.tensorclass.NonTensorData"), **FIELDS
            ),
            BYTES,
        ),
        "_rebuild_tensordict_files_consolidated: a tensordict with an unexpected layout",
    ),
    "a tensordict that is given a method": Case(
        lambda: torch_file(
            call(
                "tensordict._reductions._make_td",
                global_name("tensordict._td.TensorDict"),
                dict_(lock_=NONE, _is_locked=TRUE),
            )
        ),
        "_make_td: an object that is given 'lock_'",
    ),
    "a column with a hook": Case(
        lambda: archive(
            members(
                queue_pickle(tensordict(a=non_tensor_stack(non_tensor_data(NONE), hook_in=global_name("torch.Size"))))
            )
        ),
        "stack: a column with hooks",
        True,
    ),
    "a column of what is no value": Case(
        lambda: archive(members(queue_pickle(tensordict(a=non_tensor_stack(EMPTY_DICT))))),
        "stack: a column with an invalid value",
        True,
    ),
    "a value that runs something": Case(
        lambda: archive(members(queue_pickle(tensordict(a=non_tensor_stack(non_tensor_data(SYSTEM)))))),
        "it names 'os.system'",
        True,
    ),
    "a value that is a class": Case(
        lambda: archive(
            members(queue_pickle(tensordict(a=non_tensor_stack(non_tensor_data(global_name("torch.Size"))))))
        ),
        "value: a value that is not a plain value",
        True,
    ),
    "a batch whose fields lie outside": Case(
        lambda: proto(bytes_(build_tensordict_file(a=leaf("torch.int64", 9, 0, 72)))),
        "inside it: _rebuild_tensordict_files_consolidated: the field 'a' reaches beyond the bytes that it has",
    ),
}
