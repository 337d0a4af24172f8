"""Brings a file of an artifact from the server onto this machine: streamed, resumed, and whole or not there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rolloutdeck.lib.http import ServerClient, ServerUnreachableError, StreamedResponse

CHUNK = 1 << 20
TRIES = 5
FIRST_RETRY_SECONDS = 0.5  # seconds before the second try; doubles with each further one
TIMEOUT = 60.0  # seconds for each wait on the network

DownloadProgress = Callable[[int], None]


class DownloadError(Exception):
    """The server does not hand the file over, with its own sentence; or what it sends is another file."""


def download_file(
    server: ServerClient, path: str, into: Path, sha256: str, size: int, progress: DownloadProgress = lambda more: None
) -> None:
    """The file at `path` (below `/api/v1/`) as `into`, which appears whole and verified or not at all.

    What came so far lies in `{into}.part` and is gone on from, by this call's own tries and by the next call.
    `progress` is told of bytes as they come. Raises DownloadError, ServerUnreachableError, OSError.
    """
    part = into.with_name(into.name + ".part")
    for turn in range(TRIES):
        try:
            found = _go_on(server, path, part, size, progress)
            break
        except ServerUnreachableError:
            if turn == TRIES - 1:
                raise
            time.sleep(FIRST_RETRY_SECONDS * 2**turn)
    if found != sha256:
        with suppress(OSError):
            part.unlink()
        raise DownloadError(f"what came has the sha256 {found[:12]}…, not {sha256[:12]}…; it was thrown away")
    part.replace(into)


def hash_file(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    return _hashed(path).hexdigest()


def _hashed(path: Path) -> hashlib._Hash:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            found.update(piece)
    return found


def _go_on(server: ServerClient, path: str, part: Path, size: int, progress: DownloadProgress) -> str:
    """From where the partial file ends to `size` bytes; the sha256 of it all. Raises ServerUnreachableError,
    DownloadError."""
    part.touch()
    there = part.stat().st_size
    if there > size:
        os.truncate(part, there := 0)
    known = _hashed(part)
    if there == size:
        return known.hexdigest()
    with server.stream(path, headers={"Range": f"bytes={there}-"} if there else {}, timeout=TIMEOUT) as answer:
        if answer.status not in (200, 206) or not answer.is_ours:
            raise DownloadError(answer.error)
        if answer.status == 200:
            there, known = 0, hashlib.sha256()
        _keep(answer, part, there, size, known, progress)
    return known.hexdigest()


def _keep(
    answer: StreamedResponse, part: Path, there: int, size: int, known: hashlib._Hash, progress: DownloadProgress
) -> None:
    with part.open("r+b") as file:
        file.truncate(there)
        file.seek(there)
        while piece := answer.read(CHUNK):
            there += len(piece)
            if there > size:
                raise DownloadError(f"the server sends more than the {size:,} bytes of this file")
            file.write(piece)
            known.update(piece)
            progress(len(piece))
        file.flush()
        os.fsync(file.fileno())
    if there < size:
        raise ServerUnreachableError(f"the answer ended after {there:,} of {size:,} bytes")
