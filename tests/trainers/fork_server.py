"""Run by the trainers' environment: forks a process per script, so that none has to import torch and Ray again.

Importing them takes ten seconds of processor time. No trainer is imported before the fork: each process finds its
plug-ins by itself. argv: the number of a socket, on which `interpreter.py` sends JSON objects, each with the pipes for
standard output and error. Each has two answers: the process id, and the exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = (
    "accelerate", "codetiming", "datasets", "fastapi", "hydra", "omegaconf", "peft", "pyarrow.parquet", "ray",
    "tensordict", "torch.distributed.fsdp", "torchdata.stateful_dataloader", "transformers.generation",
    "transformers.trainer",
)  # fmt: skip


def serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns a request and its output in the process that serves it; None in the server when there are no more."""
    while True:
        message, outputs, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            return json.loads(message), outputs
        for handle in outputs:
            os.close(handle)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def set_up_process(request: dict[str, Any], outputs: list[int]) -> None:
    """Gives the process the state that it would have if a shell started it."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, handle in enumerate(outputs, start=1):
        os.dup2(handle, number)
        os.close(handle)
    sys.argv = request["argv"]
    added = [folder for folder in request["env"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:1] = [str(Path(request["argv"][0]).parent), *added]
    importlib.invalidate_caches()


def run_as_main(path: str) -> None:
    """Runs the script as the main module."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)


for name in PRELOADED:
    with suppress(ImportError):
        importlib.import_module(name)
gc.freeze()
with socket.socket(fileno=int(sys.argv[1])) as connection:
    served = serve(connection)
if served is not None:
    set_up_process(*served)
    run_as_main(served[0]["argv"][0])
