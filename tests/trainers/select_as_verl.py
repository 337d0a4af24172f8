"""Run by the trainers' environment: is a batch of which rows were left out what verl itself selects of the whole one?

argv: JSON, [[whole, written, rows that stay], ...]. Both files are loaded as verl loads them. Prints `equal` a line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.utils.tensordict_utils import index_select_tensor_dict


def same(one: Any, other: Any, where: str) -> None:
    """In value and type, numpy's included; NaN equals itself."""
    assert type(one) is type(other), (where, type(one), type(other))
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.is_nested) == (other.dtype, other.is_nested), where
        if one.is_nested:
            same(list(one.unbind()), list(other.unbind()), where)
            return
        assert one.shape == other.shape, where
        assert torch.equal(*(each.contiguous().view(torch.uint8) for each in (one, other))), where
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        if one.dtype != object:
            assert one.tobytes() == other.tobytes(), where
        same(one.tolist(), other.tolist(), where)
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for name in one:
            same(one[name], other[name], f"{where}, {name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for row, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where} [{row}]")
    elif one != other:
        assert repr(one) == repr(other), where


def of_proto(whole: str, written: str, keep: list[int]) -> None:
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy" if "numpy" in whole else "torch"
    expected, found = DataProto.load_from_disk(whole)[np.array(keep)], DataProto.load_from_disk(written)
    assert found.batch.batch_size == expected.batch.batch_size == (len(keep),)
    for name in expected.batch.keys() | found.batch.keys():
        same(expected.batch[name], found.batch[name], name)
    same(expected.non_tensor_batch, found.non_tensor_batch, "columns")
    same(expected.meta_info, found.meta_info, "meta")
    found.union(DataProto.from_dict(tensors={"more": torch.zeros(len(keep), 1)})).chunk(1)  # it can be worked with


def of_queue(whole: str, written: str, keep: list[int]) -> None:
    expected, found = (torch.load(path, weights_only=False) for path in (whole, written))
    assert list(expected) == list(found)
    for name in ("keys", "tags"):
        same([expected[name][row] for row in keep], found[name], name)
    same(expected["global_steps"], found["global_steps"], "global_steps")
    one, other = index_select_tensor_dict(expected["tensordict"], keep), found["tensordict"]
    assert set(one.keys()) == set(other.keys()) and one.batch_size == other.batch_size == (len(keep),)
    for name in one.keys():  # noqa: SIM118 - of a TensorDict
        is_tensor = isinstance(one[name], torch.Tensor)
        same(*(each.get(name) if is_tensor else each.get(name).tolist() for each in (one, other)), name)
    index_select_tensor_dict(other, list(range(len(keep))))  # as verl loads it


for whole, written, keep in json.loads(sys.argv[1]):
    (of_queue if Path(whole).suffix == ".pt" else of_proto)(whole, written, keep)
    print("equal")
