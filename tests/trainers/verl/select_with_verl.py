"""Run by the trainers' environment: compares a batch without some rows with the rows that verl itself selects.

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

from tests.trainers.equality import compare


def check_proto(whole: str, written: str, keep: list[int]) -> None:
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy" if "numpy" in whole else "torch"
    expected, result = DataProto.load_from_disk(whole)[np.array(keep)], DataProto.load_from_disk(written)
    assert result.batch.batch_size == expected.batch.batch_size == (len(keep),)
    compare(expected, result, "")
    result.union(DataProto.from_dict(tensors={"more": torch.zeros(len(keep), 1)})).chunk(1)  # it can be worked with


def check_queue(whole: str, written: str, keep: list[int]) -> None:
    expected, result = (torch.load(path, weights_only=False) for path in (whole, written))
    assert list(expected) == list(result)
    for name in ("keys", "tags"):
        compare([expected[name][row] for row in keep], result[name], name)
    compare(expected["global_steps"], result["global_steps"], "global_steps")
    left, right = index_select_tensor_dict(expected["tensordict"], keep), result["tensordict"]
    assert set(left.keys()) == set(right.keys()) and left.batch_size == right.batch_size == (len(keep),)
    for name in left.keys():  # noqa: SIM118 - of a TensorDict
        compare(*(list_values(item.get(name)) for item in (left, right)), name)
    index_select_tensor_dict(right, list(range(len(keep))))  # as verl loads it


def list_values(field: Any) -> Any:
    """A value per row, since jagged tensors have another layout in memory after a selection of rows."""
    if not isinstance(field, torch.Tensor):
        return field.tolist()
    return list(field.unbind()) if field.is_nested else field


for whole, written, keep in json.loads(sys.argv[1]):
    (check_queue if Path(whole).suffix == ".pt" else check_proto)(whole, written, keep)
    print("equal")
