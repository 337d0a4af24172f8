"""The manifest of an artifact and its key, the sha256 of the canonical manifest. Standard library only.

A manifest is {relative path: {"sha256": 64 lower-case hex digits, "bytes": size}}. The canonical form is JSON in UTF-8
with sorted keys and without white space, so two nodes that hash the same files get the same key.
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
FORBIDDEN_IN_PATH = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")

Files = Mapping[str, Mapping[str, Any]]


def serialize_manifest(files: Files) -> bytes:
    """Returns the canonical bytes of the manifest. Raises ValueError if the manifest is invalid."""
    check_manifest(files)
    plain = {path: {"bytes": file["bytes"], "sha256": file["sha256"]} for path, file in files.items()}
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def compute_artifact_key(files: Files) -> str:
    """Returns the artifact's id, the sha256 of `serialize_manifest` as 64 hex digits. Raises ValueError if invalid."""
    return hashlib.sha256(serialize_manifest(files)).hexdigest()


def count_manifest_bytes(files: Files) -> int:
    return sum(file["bytes"] for file in files.values())


def check_manifest(files: Any) -> None:
    """Raises ValueError unless `files` is a valid manifest."""
    if not isinstance(files, Mapping) or not 1 <= len(files) <= MAX_MANIFEST_FILES:
        raise ValueError(f"A manifest names 1 to {MAX_MANIFEST_FILES:,} files: {{relative path: {{sha256, bytes}}}}.")
    for path, file in files.items():
        check_manifest_path(path)
        check_manifest_file(path, file)
    # Sorted with a final slash, the files of a folder follow directly after it.
    for folder, path in pairwise(sorted(f"{path}/" for path in files)):
        if path.startswith(folder):
            raise ValueError(f"{path[:-1]!r} is below {folder[:-1]!r}, which the manifest lists as a file.")
    sizes: dict[str, int] = {}
    if any(sizes.setdefault(file["sha256"], file["bytes"]) != file["bytes"] for file in files.values()):
        raise ValueError("The manifest has two sizes for the same sha256.")


def check_manifest_path(path: Any) -> None:
    """Raises ValueError unless `path` is a relative path below a folder on every operating system."""
    if not isinstance(path, str) or not 1 <= len(path) <= MAX_PATH_LENGTH:
        text = str(path)[:60]
        raise ValueError(f"A path in a manifest is a string of 1 to {MAX_PATH_LENGTH} characters, not {text!r}.")
    if FORBIDDEN_IN_PATH.search(path):
        raise ValueError(f"The path {path!r} contains a control character, a backslash or a lone surrogate.")
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"The path {path!r} is not relative, or contains an empty part, `.` or `..`.")


def check_manifest_file(path: str, file: Any) -> None:
    """Raises ValueError unless `file` is exactly {sha256, bytes}."""
    if not isinstance(file, Mapping) or set(file) != {"sha256", "bytes"}:
        raise ValueError(f"{path!r} needs exactly `sha256` and `bytes`.")
    if not isinstance(file["sha256"], str) or not wire.SHA256_PATTERN.match(file["sha256"]):
        raise ValueError(f"The sha256 of {path!r} is not 64 lower-case hex digits.")
    size = file["bytes"]
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= wire.MAX_ARTIFACT_FILE_BYTES:
        raise ValueError(f"The size of {path!r} is not a number of bytes from 0 to {wire.MAX_ARTIFACT_FILE_BYTES}.")
