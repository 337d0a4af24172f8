"""Dumps of TRL, slime and ROLL as tests need them: the real ones' folders, and the writers of small ones."""

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


def read(form: Format, body: bytes, **options: Any) -> list[Any]:
    return list(form.read(io.BytesIO(body), DumpContext(**{"step": 1, **options})))


def read_records(form: Format, body: bytes, **options: Any) -> list[Record]:
    result = read(form, body, **options)
    assert all(isinstance(item, Record) for item in result), result
    return result


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def torch_file(value: Any) -> bytes:
    """As `torch.save` writes plain values."""
    return asm.archive(asm.members(pickle.dumps(value, protocol=2)))


def sample(**keys: Any) -> dict[str, Any]:
    """A `Sample.to_dict()` of slime."""
    return {
        "group_index": 0, "index": 0, "rollout_id": 0, "prompt": "2+2?", "tokens": [5, 6, 7], "response": "4",
        "response_length": 1, "label": "4", "reward": 1.0, "loss_mask": None, "rollout_log_probs": [-0.5],
        "weight_versions": ["3"], "status": "completed", "remove_sample": False, "metadata": {}, **keys,
    }  # fmt: skip


def rollout(*samples: Any, step: int = 1) -> bytes:
    return torch_file({"rollout_id": step, "samples": list(samples)})


def trained(*samples: dict[str, Any], **more: Any) -> bytes:
    values = {"tokens": [5, 6, 7], "response_lengths": 1, "rewards": 0.5, "truncated": 0}
    return torch_file(
        {"format_version": 2, "rollout_id": 1, "rank": 0, "samples": [{**values, **item} for item in samples], **more}
    )


def columns(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"
