"""Paths of real dumps of verl, and a fixture that writes dumps with verl's names and without its code."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "data"
SHAPE = "qwen2-tiny_grpo_rl-acceptance/GBS8_N4_in128_out256"
MAIN = DATA / f"verl_skip/main/{SHAPE}/1/gen_batch.dp"
NUMPY = DATA / f"verl_skip/numpy_ser/{SHAPE}/1/gen_batch.dp"
ASYNC = DATA / "verl_skip/async/qwen2-tiny_async_rl-acceptance/GBS1_N4_in128_out256/1/gen_batch.dp"
WITHOUT_SCORES = DATA / "verl_skip/colocate_rm/qwen2-tiny_grpo_rl-acceptance/GBS2_N2_in6_out8/3/gen_batch.dp"
HOSTILE = DATA / f"verl_skip/broken/{SHAPE}/5/gen_batch.dp"
QUEUE = DATA / "verl_tq/sync/qwen2-tiny_v1_rl-acceptance/GBS8_N4_in128_out256/1/0/tq_batch.pt"
V2 = DATA / f"verl_v2/main/{SHAPE}/genstep_000001/gen_batch.dp"
V2_NEW = DATA / f"verl_v2/main/{SHAPE}/genstep_000001/new_batch.dp"
ALL = [MAIN, NUMPY, ASYNC, WITHOUT_SCORES, QUEUE, V2, V2_NEW]


def get_name(path: Path) -> str:
    return path.relative_to(DATA).as_posix()


class DataProto:
    """Pickles as verl's does."""

    __module__ = "verl.protocol"

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state


class Size(tuple[int, ...]):
    """Pickles as torch's does."""

    __module__ = "torch"

    def __reduce__(self) -> Any:
        return Size, (tuple(self),)


@pytest.fixture
def write_data_proto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Writes a DataProto of (tensors, columns, meta) to a file."""

    def write(tensors: Any, columns: Any, meta: Any = None, protocol: int = 4) -> Path:
        with monkeypatch.context() as patch:
            for name in ("verl", "verl.protocol", "torch"):
                patch.setitem(sys.modules, name, ModuleType(name))
            patch.setattr(sys.modules["verl.protocol"], "DataProto", DataProto, raising=False)
            patch.setattr(sys.modules["torch"], "Size", Size, raising=False)
            data = pickle.dumps(DataProto(tensors, columns, meta or {}), protocol)
        path = tmp_path / "gen_batch.dp"
        path.write_bytes(data)
        return path

    return write
