"""Program for real verl: writes batches with all types of values that its trainers use, to the given folder."""

from __future__ import annotations

import collections
import os
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl import DataProto
from verl.utils import tensordict_utils

ROWS = 8
NUMPY = "VERL_DATAPROTO_SERIALIZATION_METHOD"
TENSORS = {
    "prompts": torch.arange(ROWS * 5).view(ROWS, 5),
    "mask": torch.ones(ROWS, 3, dtype=torch.bool),
    "brain": torch.ones(ROWS, 3, dtype=torch.bfloat16),
    "half": torch.ones(ROWS, 1, dtype=torch.float16),
    "position_ids": torch.arange(ROWS * 21).view(ROWS, 3, 7),
    "byte": torch.zeros(ROWS, 2, dtype=torch.uint8),
    "flat": torch.zeros(ROWS, dtype=torch.float64),
    "empty": torch.zeros(ROWS, 0),
}
PLAIN: dict[str, Any] = {
    "nested": [1, 2, (3, None)], "large": 2**70, "set": {1, 2}, "bytes": b"\x00\xff", "no bytes": b"",
    "nan": float("nan"), "float32": numpy.float32(1), "bool": numpy.bool_(True), "str": numpy.str_("ab"),
    "array": numpy.arange(3), "long": "x" * 5000, "text": "日本\u2028" * 100,
}  # fmt: skip
JAGGED = torch.nested.nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)


def object_array(values: list[Any]) -> Any:
    column = numpy.empty(len(values), dtype=object)
    column[:] = values
    return column


def build_batch(without: str = "") -> DataProto:
    columns = {
        "uid": object_array([str(number) for number in range(ROWS)]),
        "letters": numpy.array(["a", "bb"] * (ROWS // 2)),
        "wide": numpy.arange(ROWS * 2.0).reshape(ROWS, 2),
        "fortran": numpy.asfortranarray(numpy.arange(ROWS * 2.0).reshape(ROWS, 2)),
        "acc": numpy.array([True] * ROWS),
        "extra_info": object_array([PLAIN] * ROWS),
    }
    columns.pop(without, None)
    meta = {"timing": {"gen": numpy.float64(1.5)}, "keys": ["a"], "ordered": collections.OrderedDict(a=1)}
    return DataProto.from_dict(tensors=TENSORS, non_tensors=columns, meta_info=meta)


def write_protos(folder: Path) -> None:
    build_batch().save_to_disk(folder / "torch.dp")
    build_batch(without="fortran").save_to_disk(folder / "every_type.dp")
    DataProto.from_dict(tensors={"one": torch.ones(1, 1)}).save_to_disk(folder / "one.dp")
    DataProto(batch=TensorDict({}, batch_size=[4])).save_to_disk(folder / "no_fields.dp")
    with_note = TensorDict({"prompts": torch.ones(2, 3), "note": NonTensorData("kept", batch_size=[2])}, batch_size=[2])
    DataProto(batch=with_note).save_to_disk(folder / "noted.dp")
    DataProto(batch=None, non_tensor_batch={"a": numpy.arange(4)}).save_to_disk(folder / "no_batch.dp")
    os.environ[NUMPY] = "numpy"
    build_batch().save_to_disk(folder / "numpy.dp")
    DataProto(batch=TensorDict({"jagged": JAGGED}, batch_size=[2])).save_to_disk(folder / "numpy_nested.dp")
    numpy_batch = build_batch(without="fortran")
    numpy_batch.batch.pop("empty")  # verl itself can't load a tensor without values that it wrote in this way
    numpy_batch.save_to_disk(folder / "numpy_every_type.dp")


def write_queues(folder: Path) -> None:
    fields = {"prompts": JAGGED, "raw_prompt": ["a", "b"], "extra_info": [PLAIN, {}], "scores": torch.ones(2, 3)}
    rows = tensordict_utils.get_tensordict(tensor_dict=fields, non_tensor_dict={"meta": 1})
    images = NonTensorStack(NonTensorData({"pixel_values": torch.randn(4, 3)}), NonTensorData(None))
    for name, tensordict in {"queue": rows, "locked": TensorDict({"images": images}, batch_size=[2]).lock_()}.items():
        tags = [{"status": "success", "seq_len": 8}] * 2
        torch.save(
            {"tensordict": tensordict, "tags": tags, "keys": ["a_0_0", "a_1_0"], "global_steps": 1},
            folder / f"{name}.pt",
        )


if __name__ == "__main__":
    write_protos(Path(sys.argv[1]))
    write_queues(Path(sys.argv[1]))
