"""Run by the trainers' environment: real verl loads the dumps named in argv; prints what each holds, as JSON."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import torch


def hash_data(data):
    return hashlib.sha256(data).hexdigest()


def convert_value(value):
    if isinstance(value, np.ndarray | np.generic):
        return convert_value(value.tolist())
    if isinstance(value, dict):
        return {str(key): convert_value(part) for key, part in value.items()}
    return [convert_value(item) for item in value] if isinstance(value, list | tuple) else value


def hash_value(value):
    return hash_data(json.dumps(convert_value(value), ensure_ascii=True).encode())


def describe_tensor(value):
    rows = value.unbind() if value.is_nested else [value]
    data = b"".join(row.contiguous().numpy().tobytes() for row in rows)
    shape = [len(row) for row in rows] if value.is_nested else list(value.shape)
    return [str(value.dtype).removeprefix("torch."), shape, hash_data(data)]


def describe_proto(batch):
    fields = {} if batch.batch is None else {name: describe_tensor(batch.batch[name]) for name in batch.batch.keys()}  # noqa: SIM118
    columns = {name: hash_value(column) for name, column in batch.non_tensor_batch.items()}
    return {"rows": len(batch), "fields": fields, "columns": columns, "meta": hash_value(batch.meta_info)}


def describe_queue(saved):
    batch = saved["tensordict"]
    values = {name: batch.get(name) for name in batch.keys()}  # noqa: SIM118
    return {
        "rows": len(saved["keys"]),
        "fields": {name: describe_tensor(part) for name, part in values.items() if isinstance(part, torch.Tensor)},
        "columns": {
            name: hash_value(part.tolist()) for name, part in values.items() if not isinstance(part, torch.Tensor)
        },
        "meta": hash_value({"global_steps": saved["global_steps"]}),
        "keys": hash_value(saved["keys"]),
        "tags": hash_value(saved["tags"]),
    }


def load(path):
    if path.endswith(".pt"):
        return describe_queue(torch.load(path, weights_only=False))
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy" if "numpy_ser" in path else "torch"
    return describe_proto(pickle.loads(Path(path).read_bytes()))


json.dump({path: load(path) for path in sys.argv[1:]}, sys.stdout, indent=1, sort_keys=True)
