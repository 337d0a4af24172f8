"""Run by the trainers' environment: real verl loads the dumps named in argv; prints what each holds, as JSON."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import torch


def digest(data):
    return hashlib.sha256(data).hexdigest()


def plain(value):
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def text(value):
    return digest(json.dumps(plain(value), ensure_ascii=True).encode())


def tensor(value):
    rows = value.unbind() if value.is_nested else [value]
    data = b"".join(row.contiguous().numpy().tobytes() for row in rows)
    shape = [len(row) for row in rows] if value.is_nested else list(value.shape)
    return [str(value.dtype).removeprefix("torch."), shape, digest(data)]


def of_proto(batch):
    fields = {} if batch.batch is None else {name: tensor(batch.batch[name]) for name in batch.batch.keys()}  # noqa: SIM118
    columns = {name: text(column) for name, column in batch.non_tensor_batch.items()}
    return {"rows": len(batch), "fields": fields, "columns": columns, "meta": text(batch.meta_info)}


def of_queue(saved):
    batch = saved["tensordict"]
    values = {name: batch.get(name) for name in batch.keys()}  # noqa: SIM118
    return {
        "rows": len(saved["keys"]),
        "fields": {name: tensor(part) for name, part in values.items() if isinstance(part, torch.Tensor)},
        "columns": {name: text(part.tolist()) for name, part in values.items() if not isinstance(part, torch.Tensor)},
        "meta": text({"global_steps": saved["global_steps"]}),
        "keys": text(saved["keys"]),
        "tags": text(saved["tags"]),
    }


def load(path):
    if path.endswith(".pt"):
        return of_queue(torch.load(path, weights_only=False))
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy" if "numpy_ser" in path else "torch"
    return of_proto(pickle.loads(Path(path).read_bytes()))


json.dump({path: load(path) for path in sys.argv[1:]}, sys.stdout, indent=1, sort_keys=True)
