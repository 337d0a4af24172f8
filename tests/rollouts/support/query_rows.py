"""Rows for tests of queries, and a function that indexes them."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from rollouts.indexing.indexer import index_dump
from rollouts.ingest import dumps
from rollouts.models import Dump, Run
from rollouts.storage import files

Row = dict[str, Any]


ROWS: list[Row] = [
    {"response": "The answer is 4. Quokka-paradox.", "score": 1.0, "group": "a", "index": 0, "acc": 1, "lang": "en"},
    {"response": "余数是 4，所以选 A", "score": 1.0, "group": "a", "index": 1, "acc": 1, "lang": "zh"},
    {"response": "heapq.merge(*runs)", "score": 0.1, "group": "b", "index": 0, "acc": 0, "truncated": True},
    {"response": "Let me think " * 5, "score": -0.5, "group": "b", "index": 1, "acc": 0, "truncated": False},
    {"response": "", "group": "c", "index": 0, "data_source": "openai/gsm8k", "advantages": [0.5, 1.5]},
]


def push(
    run: Run, rows: list[Row], *, step: int = 1, split: str = "train", attempt: str = "files", source: str = "file",
    kind: str = "native",
) -> Dump:  # fmt: skip
    values = [{"prompt": f"question {row.get('group', '')}", **row} for row in rows]
    body = "\n".join(json.dumps(row, ensure_ascii=False) for row in values).encode()
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    header = dumps.DumpHeader(attempt, split, step, source=f"{attempt}/{source}/{split}/{step}.jsonl", format=kind)
    dump, _ = dumps.accept_dump(run, header, sha256(body).hexdigest(), plain, len(body))
    index_dump(dump.pk)
    dump.refresh_from_db()
    return dump
