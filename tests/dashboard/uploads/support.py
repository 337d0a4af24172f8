"""Helpers for the tests of uploads: a body, the request, and the files that wait."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.dashboard.support.asgi_server import Answer, Site

BODY = b'{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n'


def compute_sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def put_dump(
    site: Site, authorization: str, body: Any, *, of: bytes = b"", query: str = "?attempt=a&step=1", **headers: str
) -> Answer:
    """PUT of `body` to run u1 under the sha256 of `of`, by default of the body itself."""
    address = f"/api/v1/runs/u1/dumps/{compute_sha256(of or body)}/{query}"
    return site.send("PUT", address, body, Authorization=authorization, **headers)


def list_incoming_files(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "incoming").rglob("*") if path.is_file()]
