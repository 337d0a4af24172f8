"""Reads values of a pickle or a torch file by interpreting its opcodes. Nothing in it is imported or called.

Tensors and arrays become numpy arrays, objects of unknown classes `Instance`.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MARK = object()
STORAGES = {
    "FloatStorage": "<f4", "HalfStorage": "<f2", "DoubleStorage": "<f8", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "BoolStorage": "?", "ByteStorage": "u1", "CharStorage": "i1",
}  # fmt: skip


@dataclass
class Instance:
    name: str
    args: tuple[Any, ...] = ()
    state: Any = None


@dataclass(frozen=True)
class Global:
    name: str


def read_pickle(body: bytes, load_storage: Callable[[Any], Any] | None = None) -> Any:
    """Returns the value. `load_storage` returns a storage by its persistent id in the pickle."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_mark() -> list[Any]:
        start = max(index for index, item in enumerate(stack) if item is MARK)
        items = stack[start + 1 :]
        del stack[start:]
        return items

    for opcode, arg, _ in pickletools.genops(body):
        name = opcode.name
        if name in ("PROTO", "FRAME", "STOP"):
            continue
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            memo[len(memo) if name == "MEMOIZE" else int(arg)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(arg)])
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name.startswith("EMPTY_"):
            stack.append({"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif name == "TUPLE":
            stack.append(tuple(pop_mark()))
        elif name == "LIST":
            stack.append(pop_mark())
        elif name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "APPENDS":
            values = pop_mark()
            stack[-1].extend(values)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            set_items(stack[-1], [(key, value)])
        elif name == "SETITEMS":
            flat = pop_mark()
            set_items(stack[-1], list(zip(flat[::2], flat[1::2], strict=True)))
        elif name == "ADDITEMS":
            values = pop_mark()
            stack[-1].update(values)
        elif name == "GLOBAL":
            stack.append(Global(arg.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(Global(f"{module}.{attribute}"))
        elif name in ("REDUCE", "NEWOBJ"):
            args, function = stack.pop(), stack.pop()
            stack.append(build_object(function, args))
        elif name == "BUILD":
            state, empty = stack.pop(), stack[-1]
            stack[-1] = set_state(empty, state)
            for key in [key for key, value in memo.items() if value is empty]:
                memo[key] = stack[-1]
        elif name == "BINPERSID":
            assert load_storage
            stack.append(load_storage(stack.pop()))
        else:
            assert opcode.arg is not None, f"{name} is not expected in a dump"
            stack.append(arg)
    (value,) = stack
    return value


def set_items(target: Any, items: list[tuple[Any, Any]]) -> None:
    if isinstance(target, dict):
        target.update(items)


def build_object(function: Any, args: tuple[Any, ...]) -> Any:
    assert isinstance(function, Global), function
    name = function.name
    if name == "collections.OrderedDict":
        return dict(*args)
    if name in ("__builtin__.set", "builtins.set"):
        return list(*args)
    if name == "_codecs.encode":
        return args[0].encode(args[1])
    if name == "torch.Size":
        return tuple(args[0])
    if name == "torch._utils._rebuild_tensor_v2":
        storage, offset, size, stride = args[:4]
        if isinstance(storage, Instance):  # an older torch stream inside of a pickle: images, or a second copy
            return storage
        strides = [step * storage.itemsize for step in stride]
        return np.lib.stride_tricks.as_strided(storage[offset:], size, strides).copy()
    if name == "torch._tensor._rebuild_from_type_v2":
        return build_object(args[0], args[2])
    if name.endswith("multiarray.scalar"):
        return np.frombuffer(args[1], args[0]).item() if isinstance(args[1], bytes) else args[1]
    if name == "numpy.dtype":
        return np.dtype(args[0])
    if name == "tensordict._reductions._rebuild_tensordict_files_consolidated":
        metadata, storage = args
        leaves = metadata["leaves"].items()
        return {key: unpack_array(storage[start:stop], kind, shape) for key, (kind, shape, start, stop, _) in leaves}
    return Instance(name, args)


def unpack_array(raw: Any, kind: str, shape: Any) -> Any:
    kinds = {"torch.int64": "<i8", "torch.float32": "<f4", "torch.int32": "<i4", "torch.bool": "?"}
    return np.frombuffer(raw.tobytes(), kinds[kind]).reshape(shape)


def set_state(value: Any, state: Any) -> Any:
    if isinstance(value, np.dtype):
        return value
    assert isinstance(value, Instance), value
    value.state = state
    if value.name.endswith("multiarray._reconstruct"):
        _, shape, kind, fortran, data = state
        order: Any = "F" if fortran else "C"
        if isinstance(data, list):
            array = np.empty(len(data), object)
            array[:] = data
            return array.reshape(shape, order=order)
        return np.frombuffer(data, kind).reshape(shape, order=order)
    return value


def read_torch(source: Path | bytes) -> Any:
    """Returns the value of a file of `torch.save`."""
    with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
        (main,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        root = main.removesuffix("data.pkl")

        def load_storage(key: Any) -> Any:
            body, kind = archive.read(f"{root}data/{key[2]}"), key[1].name.removeprefix("torch.")
            if kind == "BFloat16Storage":  # the upper half of a float
                return (np.frombuffer(body, "<u2").astype("<u4") << 16).view("<f4")
            return np.frombuffer(body, STORAGES[kind])

        return read_pickle(archive.read(main), load_storage)
