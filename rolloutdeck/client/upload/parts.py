"""Uploads of a file in parts: the server answers 202 with the bytes that it has, and a receipt for the last part."""

from __future__ import annotations

from typing import BinaryIO

from rolloutdeck.lib import FileSlice, ServerResponse
from rolloutdeck.protocol import MAX_PART_BYTES


def parse_received_bytes(response: ServerResponse, total: int) -> int:
    """Returns how many bytes the server has; 0 if the response does not say it, which restarts the upload."""
    data = response.json()
    received = data.get("received") if isinstance(data, dict) else None
    return received if isinstance(received, int) and 0 <= received < total else 0


def read_next_part(response: ServerResponse, file: BinaryIO, total: int, start: int = 0) -> tuple[FileSlice, str]:
    """Returns the part after the bytes that the server has, and its Content-Range. The content begins at `start`."""
    offset = parse_received_bytes(response, total)
    length = min(MAX_PART_BYTES, total - offset)
    return FileSlice(file, start + offset, length), f"bytes {offset}-{offset + length - 1}/{total}"


def build_part_headers(content_range: str) -> dict[str, str]:
    headers = {"Content-Type": "application/octet-stream"}
    return {**headers, "Content-Range": content_range} if content_range else headers


def is_receipt(response: ServerResponse, sha256: str, size: int) -> bool:
    """Whether the response confirms these bytes."""
    receipt = response.json()
    return isinstance(receipt, dict) and (receipt.get("sha256"), receipt.get("bytes")) == (sha256, size)
