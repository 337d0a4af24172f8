"""Summarizes a dump in the format of `tests/trainers/verl/load_with_verl.py`, but read by Rolloutdeck."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle.batches.batch import RolloutBatch, open_batch


def hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hash_value(value: Any) -> str:
    return hash_bytes(json.dumps(value, ensure_ascii=True).encode())


def summarize_tensor(batch: RolloutBatch, name: str) -> list[Any]:
    field = batch.fields[name]
    rows = [batch.tensor(name, row) for row in range(batch.rows)]
    shape = [len(row) for row in rows] if field.jagged else list(field.shape)
    return [field.dtype, shape, hash_bytes(b"".join(row.tobytes() for row in rows))]


def summarize_dump(path: Path) -> dict[str, Any]:
    with open_batch(path) as batch:
        result = {
            "rows": batch.rows,
            "fields": {name: summarize_tensor(batch, name) for name in batch.fields},
            "columns": {name: hash_value(batch.column(name)) for name in batch.columns},
            "meta": hash_value(batch.meta),
        }
        return result | ({"keys": hash_value(batch.keys), "tags": hash_value(batch.tags)} if batch.keys else {})
