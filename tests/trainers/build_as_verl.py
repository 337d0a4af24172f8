"""Run by the trainers' environment: what the plug-in builds of the dumps in argv, beside what real verl unpickles.

Prints {path: "equal", or where the two differ, or why it was not built}, as JSON. While the plug-in builds, whatever
would unpickle raises.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any
from unittest import mock

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.protocol import DataProto

from rolloutdeck.safe.errors import Refused
from rolloutdeck.trainers.verl_plugin import loading

METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"
JAGGED = ("_values", "_offsets", "_lengths")
TENSOR = ("dtype", "shape", "layout", "device", "requires_grad")


def theirs(path: str) -> Any:
    if path.endswith(".pt"):
        return torch.load(path, weights_only=False)
    os.environ[METHOD] = "numpy" if "numpy" in path else "torch"
    return DataProto.load_from_disk(path)


def ours(path: str) -> Any:
    os.environ[METHOD] = "neither"
    with (
        mock.patch("pickle.load", side_effect=AssertionError("unpickled")),
        mock.patch("pickle.loads", side_effect=AssertionError("unpickled")),
        mock.patch("torch.load", side_effect=AssertionError("unpickled")),
    ):
        return loading.load(path)


def compare(one: Any, other: Any, where: str) -> None:
    """Raises AssertionError unless both are equal in every value and type, down to numpy's."""
    assert type(one) is type(other), f"{where}: {type(one)}, {type(other)}"
    parts = PARTS.get(type(one))
    if parts is not None:
        compare(parts(one), parts(other), where)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {one.keys() ^ other.keys()}"
        for name, value in one.items():
            compare(value, other[name], f"{where}.{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            compare(*pair, f"{where}[{place}]")
    elif isinstance(one, torch.Tensor):
        compare_tensors(one, other, where)
    else:
        same = one.tobytes() == other.tobytes() if isinstance(one, np.generic) else one == other
        assert same or (one != one and other != other), where


def compare_tensors(one: torch.Tensor, other: torch.Tensor, where: str) -> None:
    for name in TENSOR if not one.is_nested else ("dtype", "layout", "_min_seqlen", "_max_seqlen"):
        assert getattr(one, name) == getattr(other, name), f"{where}: {name}"
    if one.is_nested:
        return compare(*({name: getattr(each, name) for name in JAGGED} for each in (one, other)), where)
    same = torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))  # NaN equals itself
    assert same, where


def array(value: np.ndarray) -> tuple[Any, ...]:
    content = value.ravel().tolist() if value.dtype == object else value.tobytes()
    return value.dtype.str, value.shape, value.flags.writeable, content


PARTS: dict[type, Any] = {
    DataProto: lambda one: {"batch": one.batch, "columns": one.non_tensor_batch, "meta": one.meta_info},
    TensorDict: lambda one: {"of": (one.batch_size, one.device, one.names), "fields": dict(one._tensordict)},
    NonTensorStack: lambda one: {"of": (one.batch_size, one.stack_dim), "rows": one.tensordicts},
    NonTensorData: lambda one: {"of": (one.batch_size, one.device), "value": one.__dict__["_non_tensordict"]},
    np.ndarray: array,
}


def verdict(path: str) -> str:
    try:
        built = ours(path)
    except Refused as refused:
        return f"refused: {refused}"
    try:
        compare(theirs(path), built, "")
    except (AssertionError, pickle.UnpicklingError) as error:
        return str(error)
    return "equal"


json.dump({path: verdict(path) for path in sys.argv[1:]}, sys.stdout)
