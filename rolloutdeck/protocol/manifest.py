"""The name of an artifact: the sha256 of its canonical manifest. Standard library only.

A manifest is {relative path: {"sha256": 64 lower-case hex digits, "bytes": size}}. Canonical is its JSON with sorted
keys, no white space, UTF-8, so that two nodes that hash the same files come to the same name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rolloutdeck.protocol import wire

MAX_MANIFEST_FILES = 10_000
MAX_PATH_LENGTH = 400  # characters
NO_PATH = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")

Files = Mapping[str, Mapping[str, Any]]


def serialize_manifest(files: Files) -> bytes:
    """The manifest's bytes. Raises ValueError with a sentence for a manifest that names no set of files in a folder."""
    check_manifest(files)
    plain = {path: {"bytes": file["bytes"], "sha256": file["sha256"]} for path, file in files.items()}
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def compute_artifact_key(files: Files) -> str:
    """The artifact's id: sha256 of `serialize_manifest`, 64 hex digits. Raises ValueError as it does."""
    return hashlib.sha256(serialize_manifest(files)).hexdigest()


def count_manifest_bytes(files: Files) -> int:
    """Bytes of all files together."""
    return sum(file["bytes"] for file in files.values())


def check_manifest(files: Any) -> None:
    """Raises ValueError with a sentence unless `files` is a manifest."""
    if not isinstance(files, Mapping) or not 1 <= len(files) <= MAX_MANIFEST_FILES:
        raise ValueError(f"A manifest names 1 to {MAX_MANIFEST_FILES:,} files: {{relative path: {{sha256, bytes}}}}.")
    for path, file in files.items():
        check_manifest_path(path)
        check_manifest_file(path, file)
    for folder, path in pairwise(sorted(f"{path}/" for path in files)):  # a folder's files sort right behind it
        if path.startswith(folder):
            raise ValueError(f"{path[:-1]!r} lies in a folder that the manifest names as a file.")
    sizes: dict[str, int] = {}
    if any(sizes.setdefault(file["sha256"], file["bytes"]) != file["bytes"] for file in files.values()):
        raise ValueError("The manifest gives one sha256 two sizes; the same bytes have one.")


def check_manifest_path(path: Any) -> None:
    """Raises ValueError unless `path` leads to one place below a folder, on every system."""
    if not isinstance(path, str) or not 1 <= len(path) <= MAX_PATH_LENGTH:
        raise ValueError(
            f"A path in a manifest is a string of 1 to {MAX_PATH_LENGTH} characters, not {str(path)[:60]!r}."
        )
    if NO_PATH.search(path):
        raise ValueError(f"The path {path!r} holds a NUL, another control character, a backslash or half a pair.")
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"The path {path!r} is not relative, or holds an empty part, `.` or `..`.")


def check_manifest_file(path: str, file: Any) -> None:
    """Raises ValueError unless `file` is exactly {sha256, bytes}."""
    if not isinstance(file, Mapping) or set(file) != {"sha256", "bytes"}:
        raise ValueError(f"{path!r} needs exactly `sha256` and `bytes`.")
    if not isinstance(file["sha256"], str) or not wire.SHA256_PATTERN.match(file["sha256"]):
        raise ValueError(f"The sha256 of {path!r} is not 64 lower-case hex digits.")
    size = file["bytes"]
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= wire.MAX_ARTIFACT_FILE_BYTES:
        raise ValueError(f"The size of {path!r} is no number of bytes from 0 to {wire.MAX_ARTIFACT_FILE_BYTES}.")
