"""PUT and HEAD of a run's dumps and of its artifacts' files, in front of Django.

Django spools a whole body to disk before any view runs; here everything that can be refused is refused before the first
byte of the body is read, and the bytes go straight to the data volume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import orjson
from django.db import close_old_connections
from rest_framework import exceptions

from dashboard import permissions
from dashboard.api import build_error_body, describe_exception
from dashboard.middleware import SERVER_HEADER_VALUE
from dashboard.uploads.body import (
    LockedPartialUpload,
    PartialUpload,
    UploadWriter,
    check_hash,
    compute_file_hash,
    create_file,
)
from dashboard.uploads.request import (
    UPLOAD_PATH_PATTERN,
    ClientDisconnectedError,
    Receive,
    RequestBody,
    parse_content_encoding,
    parse_content_length,
    parse_content_range,
    parse_query_string,
    parse_upload_path,
)
from dashboard.uploads.targets import DumpTarget, FileTarget, IngestTarget, UploadResponse
from rolloutdeck.protocol import MAX_ARTIFACT_FILE_BYTES, MAX_DUMP_BYTES, SERVER_HEADER
from rollouts.errors import InvalidInputError, StorageUnavailableError, TooLargeError
from rollouts.ingest import DumpHeader
from rollouts.storage import count_free_bytes, create_incoming_path

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Send = Callable[[Any], Awaitable[None]]

RESERVE = 256 << 20  # bytes of the data volume that uploads leave free
# Uploads do not wait for one another, and publishing to a dead broker does not hold up uploads.
POOL = ThreadPoolExecutor(8, "upload")
PUBLISH = ThreadPoolExecutor(1, "publish")


@dataclass(frozen=True, slots=True)
class Upload:
    """A request that may send its body. `part` is (start, end, total) in plain bytes; start is -1 for a question."""

    target: IngestTarget
    gzipped: bool
    part: tuple[int, int, int] | None


def is_upload_request(scope: Mapping[str, Any], path: str) -> bool:
    """Whether this app answers: `path` is the request's path below the prefix."""
    return scope["method"] in ("PUT", "HEAD") and UPLOAD_PATH_PATTERN.match(path) is not None


async def handle_upload(scope: Mapping[str, Any], receive: Receive, send: Send, path: str) -> None:
    """The ASGI application; `path` as in `concerns`."""
    body = RequestBody(scope, receive)
    try:
        answer = await receive_upload(scope, body, path)
    except ClientDisconnectedError:
        return
    except Exception as problem:
        described = describe_exception(problem)
        if described is None:
            log.exception("An upload to %s failed.", path)
            described = (
                500,
                build_error_body("error", "The server failed; its log says why. The bytes were not accepted."),
            )
        answer = UploadResponse(*described)
    await send_response(send, answer, scope["method"])
    with suppress(ClientDisconnectedError):
        await body.drain()
    await send({"type": "http.response.body", "body": b""})
    if answer.after and scope["method"] == "PUT":
        PUBLISH.submit(run_with_fresh_connection, answer.after)


async def receive_upload(scope: Mapping[str, Any], body: RequestBody, path: str) -> UploadResponse:
    upload, known = await run_in_thread(check_upload_request, scope, path)
    if known:
        return known
    if scope["method"] == "HEAD":
        return await run_in_thread(upload.target.unknown)
    if upload.part:
        return await receive_part(upload, body)
    return await receive_full_body(upload, body)


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(
        POOL, partial(run_with_fresh_connection, partial(work, *args, **kwargs))
    )


def run_with_fresh_connection(work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own, whose database connection is neither stale nor left open."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def check_upload_request(scope: Mapping[str, Any], path: str) -> tuple[Upload, UploadResponse | None]:
    """Everything that can be known before the body; an answer where that is enough. Raises what `describe` knows."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    uid, key, sha256 = parse_upload_path(path)
    if not headers.get("authorization"):
        raise exceptions.NotAuthenticated("Send `Authorization: Bearer <token>`.")
    token = permissions.authenticate_token(headers["authorization"])
    if not token.allows("ingest"):
        raise exceptions.PermissionDenied(f"This token has the scopes {token.scopes}, this needs ingest.")
    query, writing = parse_query_string(scope), scope["method"] == "PUT"
    header = None if key else DumpHeader.from_query(query)
    gzipped, length, part = parse_content_encoding(headers), parse_content_length(headers), parse_content_range(headers)
    check_sizes(gzipped, length, part, MAX_ARTIFACT_FILE_BYTES if key else MAX_DUMP_BYTES)
    run = permissions.find_or_open_run(token, uid, headers)
    target = DumpTarget.find(run, header, sha256, writing=writing) if header else FileTarget.find(run, key, sha256)
    sends = writing and not (part and part[0] < 0)
    known = None if sends and target.verifies else target.known()
    if sends and known is None:
        check_disk_space(target.room(part[2] if part else length or 0))
    return Upload(target, gzipped, part), known


def check_sizes(gzipped: bool, length: int | None, part: tuple[int, int, int] | None, most: int) -> None:
    if max(length or 0, part[2] if part else 0) > most:
        raise TooLargeError(f"A file may have {most} bytes here; split it.")
    if part and part[0] >= 0 and length is not None and not gzipped and length != part[1] - part[0] + 1:
        raise InvalidInputError("Content-Length and Content-Range speak of different sizes.")


def check_disk_space(size: int) -> None:
    free = count_free_bytes()
    if free < RESERVE + size:
        full = OSError(28, "No space left on device")
        raise StorageUnavailableError(f"The server's disk has {free >> 20} MiB left; it takes no more files.") from full


async def receive_full_body(upload: Upload, body: RequestBody) -> UploadResponse:
    path = create_incoming_path()
    with create_file(path) as out:
        arrival = UploadWriter(out, gzipped=upload.gzipped, most=upload.target.most)
        async for data in body.batches():
            await run_in_thread(arrival.write, data)
        check_hash(await run_in_thread(arrival.end), upload.target.sha256)
        return await run_in_thread(upload.target.accept, path, arrival.size)


async def receive_part(upload: Upload, body: RequestBody) -> UploadResponse:
    """A question, or a part that does not go on where the last one ended, is answered with how far it is."""
    assert upload.part
    first, last, total = upload.part
    parts = upload.target.parts(total)
    if parts.have() not in (first, total):
        return build_progress_response(parts)
    writing = await run_in_thread(LockedPartialUpload, parts)
    try:
        if writing.start == first < total:
            await append_part(writing, upload, body, last - first + 1)
        writing.keep()
        await run_in_thread(upload.target.moved, writing.start, parts.have(), total)
        return (
            await run_in_thread(complete_upload, upload.target, parts)
            if parts.have() == total
            else build_progress_response(parts)
        )
    finally:
        writing.close()


async def append_part(writing: LockedPartialUpload, upload: Upload, body: RequestBody, length: int) -> None:
    arrival = UploadWriter(writing.file, gzipped=upload.gzipped, most=length, hashed=False)
    async for data in body.batches():
        await run_in_thread(arrival.write, data)
    await run_in_thread(arrival.end)
    if arrival.size != length:
        raise InvalidInputError(f"The part has {arrival.size} bytes, Content-Range says {length}.")


def complete_upload(target: IngestTarget, parts: PartialUpload) -> UploadResponse:
    """All parts are there: the whole is what counts."""
    try:
        check_hash(compute_file_hash(parts.path), target.sha256)
        return target.accept(parts.path, parts.total)
    except InvalidInputError:
        parts.drop()
        raise


def build_progress_response(parts: PartialUpload) -> UploadResponse:
    have = parts.have()
    return UploadResponse(202, {"received": have}, offset=have)


async def send_response(send: Send, answer: UploadResponse, method: str) -> None:
    body = orjson.dumps(answer.body)
    headers = [
        (b"content-type", b"application/json"),
        (SERVER_HEADER.lower().encode(), SERVER_HEADER_VALUE.encode()),
    ]
    if answer.offset is not None:
        headers.append((b"upload-offset", str(answer.offset).encode()))
    if answer.status in (429, 503, 507):
        headers.append((b"retry-after", b"5"))
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body, "more_body": True})
