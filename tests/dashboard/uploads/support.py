"""What the tests of uploads send and look at."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.dashboard.support.asgi_server import Answer, Site

BODY = b'{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n'


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def put(
    site: Site, key: str, body: Any, *, of: bytes = b"", query: str = "?attempt=a&step=1", **headers: str
) -> Answer:
    """PUT of `body` to run u1 under the sha256 of `of` (the body itself unless told)."""
    address = f"/api/v1/runs/u1/dumps/{sha(of or body)}/{query}"
    return site.send("PUT", address, body, Authorization=key, **headers)


def left(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "incoming").rglob("*") if path.is_file()]
