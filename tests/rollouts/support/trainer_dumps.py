"""Dumps of TRL, slime and ROLL: the folders of real ones, and functions that write small ones."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.formats import DumpContext, Format
from rollouts.samples.record import Record
from tests.rolloutdeck.safe_pickle import assembler as asm

DATA = Path(__file__).parents[2] / "data"
TRL, SLIME, ROLL = DATA / "trl", DATA / "slime", DATA / "roll"


def read_items(form: Format, body: bytes, **options: Any) -> list[Any]:
    return list(form.read(io.BytesIO(body), DumpContext(**{"step": 1, **options})))


def read_records(form: Format, body: bytes, **options: Any) -> list[Record]:
    result = read_items(form, body, **options)
    assert all(isinstance(item, Record) for item in result), result
    return result


def encode_parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def encode_torch_file(value: Any) -> bytes:
    """As `torch.save` writes plain values."""
    return asm.archive(asm.members(pickle.dumps(value, protocol=2)))


def sample(**keys: Any) -> dict[str, Any]:
    """A `Sample.to_dict()` of slime."""
    return {
        "group_index": 0, "index": 0, "rollout_id": 0, "prompt": "2+2?", "tokens": [5, 6, 7], "response": "4",
        "response_length": 1, "label": "4", "reward": 1.0, "loss_mask": None, "rollout_log_probs": [-0.5],
        "weight_versions": ["3"], "status": "completed", "remove_sample": False, "metadata": {}, **keys,
    }  # fmt: skip


def encode_rollout(*samples: Any, step: int = 1) -> bytes:
    return encode_torch_file({"rollout_id": step, "samples": list(samples)})


def encode_train_dump(*samples: dict[str, Any], **more: Any) -> bytes:
    values = {"tokens": [5, 6, 7], "response_lengths": 1, "rewards": 0.5, "truncated": 0}
    return encode_torch_file(
        {"format_version": 2, "rollout_id": 1, "rank": 0, "samples": [{**values, **item} for item in samples], **more}
    )


def encode_columns(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"
