"""Exports as a user downloads them."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pyarrow.parquet as pq
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User

from tests.dashboard.support.api_client import ApiClient

QUESTIONS = [
    {"key": "correct", "title": "Right?", "kind": "yes-no"},
    {"key": "wrong", "title": "What is wrong?", "kind": "choices",
     "options": [{"key": "hack", "title": "hack"}, {"key": "step", "title": "step"}]},
]  # fmt: skip


def export(user: User, query: str, **options: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows and the text of the dataset card."""
    archive = zipfile.ZipFile(io.BytesIO(download(user, query, **options)))
    data, card = archive.namelist()
    assert card == "README.md" and f"path: {data}" in archive.read(card).decode()
    content = archive.read(data)
    rows = pq.read_table(io.BytesIO(content)).to_pylist() if data.endswith(".parquet") else None
    return rows or [json.loads(line) for line in content.splitlines()], archive.read(card).decode()


def download(user: User, query: str, **options: str) -> bytes:
    parameters = "&".join(f"{name}={value}" for name, value in options.items())
    response = ApiClient.with_token(user, "read")("GET", f"exports/datasets/?{query}&{parameters}")
    assert response.status_code == 200, response.content

    async def read() -> bytes:
        return b"".join([chunk async for chunk in response.streaming_content])

    return async_to_sync(read)()
