"""Requests to the API in this process, and runs with indexed samples."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import orjson
from django.contrib.auth.models import User
from django.test import Client

from rollouts.indexing import indexer
from rollouts.ingest import dumps
from rollouts.ingest.dumps import DumpHeader
from rollouts.models import Dump, Project, Run, Sample
from rollouts.storage import files
from tests.support import builders


def build_row(step: int, n: int, score: float, **more: Any) -> dict[str, Any]:
    return {
        "input": f"What is {n // 2}+1?",
        "output": f"It is {n} at step {step}.",
        "gts": str(n),
        "score": score,
        "step": step,
        **more,
    }


def push_rows(run: Run, step: int, rows: list[dict[str, Any]], *, attempt: str = "a", split: str = "train") -> Dump:
    """Accepts and indexes one file of a step."""
    body = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    header = DumpHeader(attempt, split, step, source=f"{split}/{step}.jsonl", format="verl-jsonl")
    dump, _ = dumps.accept_dump(run, header, hashlib.sha256(body).hexdigest(), plain, len(body))
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    return dump


def create_filled_run(project: Project, name: str = "grpo") -> Run:
    """Two steps of four samples."""
    run = builders.run(project, name, uid=f"uid-{name}")
    for step in (1, 2):
        push_rows(run, step, [build_row(step, n, n / 4) for n in range(4)])
    return run


def get_first_sample(run: Run) -> Sample:
    return Sample.objects.filter(step__run=run).order_by("step__step", "score").first()  # type: ignore[return-value]


@dataclass(frozen=True)
class ApiClient:
    """A caller of the API: with a token, with the session of a browser, or anonymous."""

    client: Client
    token: str = ""

    @classmethod
    def with_token(cls, user: User, *scopes: str, on: Project | None = None) -> ApiClient:
        return cls(Client(), builders.token(user, *scopes, on=on))

    @classmethod
    def signed_in(cls, user: User) -> ApiClient:
        client = Client()
        client.force_login(user)
        return cls(client)

    def __call__(self, method: str, path: str, data: Any = None, **extra: Any) -> Any:
        """`path` below /api/v1/ unless it begins with a slash; `data` is sent as JSON, bytes as they are."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        body = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
        address = path if path.startswith("/") else f"/api/v1/{path}"
        headers.update(extra.pop("headers", {}))
        kind = extra.pop("content_type", "application/json")
        return self.client.generic(method, address, body, content_type=kind, headers=headers, **extra)
