"""Pushes dumps the way the upload does and indexes them the way the worker does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

from rollouts.indexing import indexer
from rollouts.indexing.indexer import index_dump
from rollouts.ingest import dumps
from rollouts.models import Dump, Run, Sample
from rollouts.storage import files

DUMPS = Path(__file__).parents[2] / "data" / "verl_jsonl"


def push(run: Run, body: bytes, step: int | None = 1, **header: Any) -> Dump:
    """Stores a dump that waits to be indexed, and returns its row."""
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    result = dumps.DumpHeader(**{"attempt": "files", "split": "train", "source": f"{step}.jsonl", **header}, step=step)
    return dumps.accept_dump(run, result, hashlib.sha256(body).hexdigest(), plain, len(body))[0]


def index_file(run: Run, body: bytes, step: int | None = 1, **header: Any) -> Dump:
    dump = push(run, body, step, **header)
    index_dump(dump.pk)
    dump.refresh_from_db()
    return dump


def index_one_dump(dump: Dump) -> None:
    """Indexes a dump without the other waiting dumps of its step."""
    with mock.patch.object(indexer, "BATCH_DUMPS", 1):
        index_dump(dump.pk)


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(line(row) for row in rows)


def line(row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a half surrogate has no UTF-8
        return json.dumps(row).encode() + b"\n"


def generation(
    prompt: str = "2+2?", response: str = "4", score: float = 1.0, step: int = 1, **more: Any
) -> dict[str, Any]:
    """A row as verl's trainer writes it."""
    return {"input": prompt, "output": response, "gts": None, "score": score, "step": step, **more}


def list_samples(run: Run, **which: Any) -> list[Sample]:
    """The visible samples of the run's current steps, in the order of their dumps."""
    return list(Sample.objects.current_and_visible().filter(step__run=run, **which).order_by("dump", "ordinal"))
