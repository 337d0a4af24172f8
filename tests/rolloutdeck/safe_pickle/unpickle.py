"""The only code that really unpickles: a separate process that loads files as a trainer does and prints what ran.

    python unpickle.py FILE...      prints a JSON list of {"file", "loaded", "error", "ran"}

An audit hook records and forbids each event that starts a program, opens a connection, loads a library or changes a
file. If verl and tensordict are not installed, stand-ins load the bytes as they do.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo.decorators
import torch.nested._internal.nested_tensor

FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.remove", "os.rename", "os.rmdir",
    "os.mkdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "os.kill", "os.putenv", "subprocess.", "socket.",
    "shutil.", "pty.", "ctypes.", "webbrowser.", "urllib.", "builtins.breakpoint", "code.__new__",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

ran: list[str] = []
armed = False


def forbid_event(event: str, args: tuple[Any, ...]) -> None:
    if not armed:
        return
    writes = event == "open" and isinstance(args[2], int) and bool(args[2] & WRITING)
    if writes or event.startswith(FORBIDDEN):
        ran.append(event)
        raise PermissionError(f"{event} is forbidden here")


class DataProto:
    """As verl.protocol.DataProto, which hands the bytes of the batch to torch.load."""

    def __setstate__(self, state: Any) -> None:
        batch, self.non_tensor_batch, self.meta_info = state
        if isinstance(batch, tuple):
            _, _, fields = batch
            self.batch = {name: build_tensor(result) for name, result in fields.items()}
        elif batch is not None:
            self.batch = torch.load(io.BytesIO(initial_bytes=batch), weights_only=False, map_location="cpu")


class Rollout:
    """As roll.distributed.scheduler.protocol.DataProto, which hands its buffer to torch.load."""

    def __setstate__(self, state: Any) -> None:
        buffer, self.non_tensor_batch, self.remote_batch, self.meta_info = state
        buffer.seek(0)
        self.batch = torch.load(buffer, weights_only=False, map_location="cpu")


Rollout.__name__ = "DataProto"


def build_tensor(description: Any) -> Any:
    if len(description) == 2:
        return [build_tensor(item) for item in description[1]]
    dtype, shape, content = description
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)


class TensorDict:
    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)


class NonTensorStack(TensorDict):
    pass


class NonTensorData:
    def __setstate__(self, state: dict[str, Any]) -> None:
        self._tensordict, self._non_tensordict = state.get("tensordict"), state.get("non_tensordict")


def _make_td(cls: Any, state: Any) -> Any:
    created = cls.__new__(cls)
    created.__setstate__(state)
    return created


def _rebuild_tensordict_files_consolidated(metadata: Any, storage: Any) -> Any:
    fields = {}
    for key, (dtype, shape, start, stop, padding) in metadata["leaves"].items():
        field = storage[start:stop].view(getattr(torch, dtype.removeprefix("torch.")))
        fields[key] = (field[: torch.Size(shape).numel()] if padding else field).view(shape)
    return fields


STAND_INS = {
    "verl.protocol": [DataProto],
    "roll": [],
    "roll.distributed": [],
    "roll.distributed.scheduler": [],
    "roll.distributed.scheduler.protocol": [Rollout],
    "tensordict._td": [TensorDict],
    "tensordict.tensorclass": [NonTensorStack, NonTensorData],
    "tensordict._reductions": [_make_td, _rebuild_tensordict_files_consolidated],
}


def install_stand_ins() -> None:
    installed = {name for name in ("verl", "tensordict") if importlib.util.find_spec(name)}
    for dotted, classes in STAND_INS.items():
        parent = dotted.partition(".")[0]
        if parent in installed:
            importlib.import_module(dotted)
            continue
        sys.modules.setdefault(parent, types.ModuleType(parent))
        module = sys.modules.setdefault(dotted, types.ModuleType(dotted))
        for item in classes:
            setattr(module, item.__name__, item)


def load(path: Path) -> Any:
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            return torch.load(path, weights_only=False)
        file.seek(0)
        return pickle.load(file)


def load_with_pickle(path: Path) -> dict[str, Any]:
    global armed
    ran.clear()
    armed, error = True, ""
    try:
        load(path)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    finally:
        armed = False
    return {"file": str(path), "loaded": not error, "error": error[:300], "ran": list(ran)}


if __name__ == "__main__":
    install_stand_ins()
    numpy.array(["a"], dtype=object)
    sys.addaudithook(forbid_event)
    print(json.dumps([load_with_pickle(Path(line)) for line in sys.argv[1:]]))
