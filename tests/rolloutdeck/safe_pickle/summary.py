"""What a dump holds, in the words of `tests/trainers/verl/load_with_verl.py`, but read by us."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle.batches.batch import RolloutBatch, open_batch


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def text(value: Any) -> str:
    return digest(json.dumps(value, ensure_ascii=True).encode())


def tensor(batch: RolloutBatch, name: str) -> list[Any]:
    field = batch.fields[name]
    rows = [batch.tensor(name, row) for row in range(batch.rows)]
    shape = [len(row) for row in rows] if field.jagged else list(field.shape)
    return [field.dtype, shape, digest(b"".join(row.tobytes() for row in rows))]


def summarize_dump(path: Path) -> dict[str, Any]:
    with open_batch(path) as batch:
        result = {
            "rows": batch.rows,
            "fields": {name: tensor(batch, name) for name in batch.fields},
            "columns": {name: text(batch.column(name)) for name in batch.columns},
            "meta": text(batch.meta),
        }
        return result | ({"keys": text(batch.keys), "tags": text(batch.tags)} if batch.keys else {})
