"""Rows that tests log to a run, and the samples that the server creates from them."""

from __future__ import annotations

import json
from typing import Any

import rolloutdeck
from rolloutdeck.client.status import RunStatus
from rollouts.indexing.indexer import index_dump
from rollouts.models import Dump, Sample
from rollouts.samples import export_jsonl

GOOD = {"prompt": "q", "completion": "2", "reward": 1.0}
NATIVE = {"prompt": "q", "response": "2", "score": 1.0}


def index_all() -> None:
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED).order_by("pk"):
        try:
            index_dump(dump.pk)
        except Exception:  # the row of the dump has the error
            assert Dump.objects.get(pk=dump.pk).state == Dump.State.FAILED


def load_steps(name: str) -> dict[int, list[dict[str, Any]]]:
    """Returns the samples of each step without the fields that differ between two runs."""
    run_fields = {"id", "run", "attempt", "dump", "source", "version", "url", "flags", "viewed", "created_at"}
    steps: dict[int, list[dict[str, Any]]] = {}
    rows = Sample.objects.filter(step__run__name=name).order_by("step__step", "ordinal")
    for sample in map(json.loads, b"".join(export_jsonl(rows)).splitlines()):
        steps.setdefault(sample["step"], []).append({key: sample[key] for key in sample if key not in run_fields})
    return steps


def end_run(run: rolloutdeck.Run) -> RunStatus:
    run._threads.writer.flush(30)
    run._threads.sender.wait_until_empty(30)
    index_all()
    return run.status()
