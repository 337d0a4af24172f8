"""Downloads of artifact files from the server: streamed, resumed and verified by their sha256."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rolloutdeck.lib.http import ServerClient, ServerUnreachableError

CHUNK_BYTES = 1 << 20
MAX_TRIES = 5
FIRST_RETRY_SECONDS = 0.5  # pause before the second try; it doubles with each further try
TIMEOUT_SECONDS = 60.0  # for each wait on the network

DownloadProgress = Callable[[int], None]


class DownloadError(Exception):
    """The server refuses the download (the message is the server's), or it sent different bytes."""


def download_file(
    server: ServerClient, path: str, into: Path, sha256: str, size: int, progress: DownloadProgress = lambda count: None
) -> None:
    """Downloads `path` (below `/api/v1/`) to `into`. The file appears only when it is complete and verified.

    A partial download is stored in `{into}.part`; retries and later calls resume from it. `progress` is called with
    the number of bytes of each chunk. Raises DownloadError, ServerUnreachableError or OSError.
    """
    part = into.with_name(into.name + ".part")
    for attempt in range(MAX_TRIES):
        try:
            digest = _resume_download(server, path, part, size, progress)
            break
        except ServerUnreachableError:
            if attempt == MAX_TRIES - 1:
                raise
            time.sleep(FIRST_RETRY_SECONDS * 2**attempt)
    if digest != sha256:
        with suppress(OSError):
            part.unlink()
        raise DownloadError(f"the downloaded file has the sha256 {digest[:12]}…, not {sha256[:12]}…; it was deleted")
    part.replace(into)


def hash_file(path: Path) -> str:
    return _compute_file_digest(path).hexdigest()


def _compute_file_digest(path: Path) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest


def _resume_download(server: ServerClient, path: str, part: Path, size: int, progress: DownloadProgress) -> str:
    """Downloads the bytes that the partial file lacks. Returns the sha256 of the complete file."""
    part.touch()
    offset = part.stat().st_size
    if offset > size:
        os.truncate(part, offset := 0)
    digest = _compute_file_digest(part)
    if offset == size:
        return digest.hexdigest()
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with server.stream(path, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        if response.status not in (200, 206) or not response.is_from_server:
            raise DownloadError(response.error_message)
        if response.status == 200:
            offset, digest = 0, hashlib.sha256()
        with part.open("r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            while chunk := response.read(CHUNK_BYTES):
                offset += len(chunk)
                if offset > size:
                    raise DownloadError(f"the server sends more than the {size:,} bytes of this file")
                file.write(chunk)
                digest.update(chunk)
                progress(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if offset < size:
        raise ServerUnreachableError(f"the response ended after {offset:,} of {size:,} bytes")
    return digest.hexdigest()
