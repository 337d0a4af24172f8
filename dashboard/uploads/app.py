"""PUT and HEAD of a run's dumps and of its artifacts' files, in front of Django.

Django writes a complete body to disk before a view runs. Here everything is checked before the first byte of the body
is read, and the bytes are written directly to the data volume.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import orjson
from django.db import close_old_connections
from rest_framework import exceptions

from dashboard import permissions
from dashboard.api import build_error_body, describe_exception
from dashboard.middleware import SERVER_HEADER_VALUE
from dashboard.sign_in import authenticate_token
from dashboard.uploads.receive import (
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
    ContentRange,
    Receive,
    RequestBody,
    parse_content_encoding,
    parse_content_length,
    parse_content_range,
    parse_query_string,
    parse_upload_path,
)
from dashboard.uploads.targets import DumpTarget, FileTarget, UploadResponse, UploadTarget
from rolloutdeck.protocol import MAX_ARTIFACT_FILE_BYTES, MAX_DUMP_BYTES, SERVER_HEADER
from rollouts.errors import InvalidInputError, StorageUnavailableError, TooLargeError
from rollouts.ingest import DumpHeader
from rollouts.retention import check_quota
from rollouts.storage import RESERVED_BYTES, count_free_bytes, create_incoming_path

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Send = Callable[[Any], Awaitable[None]]

# Uploads do not wait for one another, and publishing to a broker that does not answer does not block uploads.
UPLOAD_POOL = ThreadPoolExecutor(8, "upload")
PUBLISH_POOL = ThreadPoolExecutor(1, "publish")


@dataclass(frozen=True, slots=True)
class Upload:
    """A request that has passed all checks that do not need its body. `part` is None for a complete body. `warning` is
    for the receipt."""

    target: UploadTarget
    gzipped: bool
    part: ContentRange | None
    warning: str = ""


def is_upload_request(scope: Mapping[str, Any], path: str) -> bool:
    """`path` is the path of the request without the prefix of the server."""
    return scope["method"] in ("PUT", "HEAD") and UPLOAD_PATH_PATTERN.match(path) is not None


async def handle_upload(scope: Mapping[str, Any], receive: Receive, send: Send, path: str) -> None:
    """The ASGI application for requests with `is_upload_request`."""
    body = RequestBody(scope, receive)
    try:
        response = await receive_upload(scope, body, path)
    except ClientDisconnectedError:
        return
    except Exception as error:
        described = describe_exception(error)
        if described is None:
            log.exception("An upload to %s failed.", path)
            message = "The server failed, see its log. The bytes were not accepted."
            described = 500, build_error_body("error", message)
        response = UploadResponse(*described)
    await start_json_response(send, response.status, response.body, scope["method"], response.offset)
    with suppress(ClientDisconnectedError):
        await body.drain()
    await send({"type": "http.response.body", "body": b""})
    if response.after and scope["method"] == "PUT":
        PUBLISH_POOL.submit(run_with_checked_connection, response.after)


async def receive_upload(scope: Mapping[str, Any], body: RequestBody, path: str) -> UploadResponse:
    upload, known = await run_in_thread(check_upload_request, scope, path)
    if known:
        return known
    if scope["method"] == "HEAD":
        return UploadResponse(404, {}, await run_in_thread(upload.target.count_stored_bytes))
    response = await (receive_part(upload, upload.part, body) if upload.part else receive_full_body(upload, body))
    return replace(response, body={**response.body, "warning": upload.warning}) if upload.warning else response


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    call = partial(run_with_checked_connection, partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(UPLOAD_POOL, call)


def run_with_checked_connection(work: Callable[[], T]) -> T:
    """Runs `work` in this thread. A database connection that is broken or old is replaced first."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def check_upload_request(scope: Mapping[str, Any], path: str) -> tuple[Upload, UploadResponse | None]:
    """Checks everything that does not need the body. Returns a response if the body is not needed.

    Raises errors that `describe_exception` knows.
    """
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    uid, key, sha256 = parse_upload_path(path)
    if not headers.get("authorization"):
        raise exceptions.NotAuthenticated
    token = authenticate_token(headers["authorization"])
    if not token.allows("ingest"):
        raise exceptions.PermissionDenied(f"This token has the scopes {token.scopes}, this needs ingest.")
    query, is_put = parse_query_string(scope), scope["method"] == "PUT"
    header = None if key else DumpHeader.from_query(query)
    gzipped, length, part = parse_content_encoding(headers), parse_content_length(headers), parse_content_range(headers)
    check_sizes(gzipped, length, part, MAX_ARTIFACT_FILE_BYTES if key else MAX_DUMP_BYTES)
    run = permissions.find_or_open_run(token, uid, headers)
    target: UploadTarget
    target = DumpTarget.find(run, header, sha256, is_put) if header else FileTarget.find(run, key, sha256)
    has_body = is_put and not (part and part.is_question)
    warning = ""
    known = None if has_body and target.always_verifies else target.build_known_response()
    if has_body and known is None:
        size = part.total if part else length or 0
        # Parts that other machines have received need space here too.
        received = target.get_partial_upload(size).count_bytes() if part else 0
        check_disk_space(target.compute_required_space(size) - received)
        warning = check_quota(run.project, size)
    return Upload(target, gzipped, part, warning), known


def check_sizes(gzipped: bool, length: int | None, part: ContentRange | None, max_bytes: int) -> None:
    if max(length or 0, part.total if part else 0) > max_bytes:
        raise TooLargeError(f"A file can have {max_bytes} bytes here. Split it.")
    if part and not part.is_question and length not in (None, part.size) and not gzipped:
        raise InvalidInputError("Content-Length and Content-Range have different sizes.")


def check_disk_space(size: int) -> None:
    free = count_free_bytes()
    if free < RESERVED_BYTES + size:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        needed = (RESERVED_BYTES + size) >> 20
        message = (
            f"The server's disk has {free >> 20} MiB left, this upload needs {needed} MiB with its reserve. Free space "
            "on the server, then it accepts files again. The client keeps the file and sends it later."
        )
        raise StorageUnavailableError(message) from full


async def receive_full_body(upload: Upload, body: RequestBody) -> UploadResponse:
    path = create_incoming_path()
    with create_file(path) as file:
        writer = UploadWriter(file, gzipped=upload.gzipped, max_bytes=upload.target.max_bytes)
        await write_body(writer, body)
        check_hash(writer.hash.hexdigest(), upload.target.sha256)
        return await run_in_thread(upload.target.accept, path, writer.size)


async def write_body(writer: UploadWriter, body: RequestBody) -> None:
    async for data in body.batches():
        await run_in_thread(writer.write, data)
    await run_in_thread(writer.finish)


async def receive_part(upload: Upload, part: ContentRange, body: RequestBody) -> UploadResponse:
    """A question, or a part that does not start where the last one ended, only gets the number of stored bytes."""
    target = upload.target
    partial_upload = target.get_partial_upload(part.total)
    await run_in_thread(partial_upload.append_shared_parts)
    if partial_upload.count_bytes() in (part.first, part.total):
        locked = await run_in_thread(LockedPartialUpload, partial_upload)
        try:
            if locked.start == part.first < part.total:
                writer = UploadWriter(locked.file, gzipped=upload.gzipped, max_bytes=part.size, hashed=False)
                await write_body(writer, body)
                if writer.size != part.size:
                    message = f"The part has {writer.size} bytes, but {part.size} according to Content-Range."
                    raise InvalidInputError(message)
                await run_in_thread(locked.share)
            locked.saved = True
            count = partial_upload.count_bytes()
            await run_in_thread(target.report_progress, locked.start, count, part.total)
            if count == part.total:
                return await run_in_thread(complete_upload, target, partial_upload)
        finally:
            locked.close()
    count = partial_upload.count_bytes()
    return UploadResponse(202, {"received": count}, offset=count)


def complete_upload(target: UploadTarget, upload: PartialUpload) -> UploadResponse:
    """Checks and accepts the file after its last part."""
    try:
        check_hash(compute_file_hash(upload.path), target.sha256)
        response = target.accept(upload.path, upload.total)
    except InvalidInputError:
        upload.path.unlink(missing_ok=True)
        upload.forget_parts()
        raise
    upload.forget_parts()
    return response


async def start_json_response(
    send: Send, status: int, content: Mapping[str, Any], method: str, offset: int | None = None
) -> None:
    """Sends a response; the caller sends the final empty message."""
    body = orjson.dumps(content)
    headers = {"content-type": "application/json", SERVER_HEADER.lower(): SERVER_HEADER_VALUE}
    if offset is not None:
        headers["upload-offset"] = str(offset)
    if status in (429, 503, 507):
        headers["retry-after"] = "5"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    headers["content-length"] = str(len(body))
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body, "more_body": True})
