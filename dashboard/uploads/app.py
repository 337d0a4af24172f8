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
from dashboard.api.exceptions import describe, error
from dashboard.middleware import OURS
from dashboard.uploads.body import Arrival, Parts, Writing, check_hash, fresh, hash_of
from dashboard.uploads.request import (
    ADDRESS,
    Body,
    Receive,
    Vanished,
    encoding_of,
    length_of,
    matched,
    query_of,
    range_of,
)
from dashboard.uploads.targets import Answer, DumpTarget, FileTarget, Target
from rolloutdeck.protocol import wire
from rollouts.errors import BadInput, StorageUnavailable, TooLarge
from rollouts.ingest.dumps import DumpHeader
from rollouts.storage import files

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

    target: Target
    gzipped: bool
    part: tuple[int, int, int] | None


def concerns(scope: Mapping[str, Any], path: str) -> bool:
    """Whether this app answers: `path` is the request's path below the prefix."""
    return scope["method"] in ("PUT", "HEAD") and ADDRESS.match(path) is not None


async def uploads(scope: Mapping[str, Any], receive: Receive, send: Send, path: str) -> None:
    """The ASGI application; `path` as in `concerns`."""
    body = Body(scope, receive)
    try:
        answer = await answered(scope, body, path)
    except Vanished:
        return
    except Exception as problem:
        described = describe(problem)
        if described is None:
            log.exception("An upload to %s failed.", path)
            described = 500, error("error", "The server failed; its log says why. The bytes were not accepted.")
        answer = Answer(*described)
    await respond(send, answer, scope["method"])
    with suppress(Vanished):
        await body.drain()
    await send({"type": "http.response.body", "body": b""})
    if answer.after and scope["method"] == "PUT":
        PUBLISH.submit(clean, answer.after)


async def answered(scope: Mapping[str, Any], body: Body, path: str) -> Answer:
    upload, known = await in_thread(admit, scope, path)
    if known:
        return known
    if scope["method"] == "HEAD":
        return await in_thread(upload.target.unknown)
    if upload.part:
        return await take_part(upload, body)
    return await take_whole(upload, body)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(POOL, partial(clean, partial(work, *args, **kwargs)))


def clean(work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own, whose database connection is neither stale nor left open."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def admit(scope: Mapping[str, Any], path: str) -> tuple[Upload, Answer | None]:
    """Everything that can be known before the body; an answer where that is enough. Raises what `describe` knows."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    uid, key, sha256 = matched(path)
    if not headers.get("authorization"):
        raise exceptions.NotAuthenticated("Send `Authorization: Bearer <token>`.")
    token = permissions.token_of(headers["authorization"])
    if not token.allows("ingest"):
        raise exceptions.PermissionDenied(f"This token has the scopes {token.scopes}, this needs ingest.")
    query, writing = query_of(scope), scope["method"] == "PUT"
    header = None if key else DumpHeader.read(query)
    gzipped, length, part = encoding_of(headers), length_of(headers), range_of(headers)
    check_sizes(gzipped, length, part, wire.MAX_FILE_BYTES if key else wire.MAX_DUMP_BYTES)
    run = permissions.arriving_run(token.user, token, uid, headers)
    target = DumpTarget.find(run, header, sha256, writing=writing) if header else FileTarget.find(run, key, sha256)
    sends = writing and not (part and part[0] < 0)
    known = None if sends and target.verifies else target.known()
    if sends and known is None:
        check_room(target.room(part[2] if part else length or 0))
    return Upload(target, gzipped, part), known


def check_sizes(gzipped: bool, length: int | None, part: tuple[int, int, int] | None, most: int) -> None:
    if max(length or 0, part[2] if part else 0) > most:
        raise TooLarge(f"A file may have {most} bytes here; split it.")
    if part and part[0] >= 0 and length is not None and not gzipped and length != part[1] - part[0] + 1:
        raise BadInput("Content-Length and Content-Range speak of different sizes.")


def check_room(size: int) -> None:
    free = files.free_bytes()
    if free < RESERVE + size:
        full = OSError(28, "No space left on device")
        raise StorageUnavailable(f"The server's disk has {free >> 20} MiB left; it takes no more files.") from full


async def take_whole(upload: Upload, body: Body) -> Answer:
    path = files.incoming()
    with fresh(path) as out:
        arrival = Arrival(out, gzipped=upload.gzipped, most=upload.target.most)
        async for data in body.batches():
            await in_thread(arrival.write, data)
        check_hash(await in_thread(arrival.end), upload.target.sha256)
        return await in_thread(upload.target.accept, path, arrival.size)


async def take_part(upload: Upload, body: Body) -> Answer:
    """A question, or a part that does not go on where the last one ended, is answered with how far it is."""
    assert upload.part
    first, last, total = upload.part
    parts = upload.target.parts(total)
    if parts.have() not in (first, total):
        return so_far(parts)
    writing = await in_thread(Writing, parts)
    try:
        if writing.start == first < total:
            await append(writing, upload, body, last - first + 1)
        writing.keep()
        await in_thread(upload.target.moved, writing.start, parts.have(), total)
        return await in_thread(complete, upload.target, parts) if parts.have() == total else so_far(parts)
    finally:
        writing.close()


async def append(writing: Writing, upload: Upload, body: Body, length: int) -> None:
    arrival = Arrival(writing.file, gzipped=upload.gzipped, most=length, hashed=False)
    async for data in body.batches():
        await in_thread(arrival.write, data)
    await in_thread(arrival.end)
    if arrival.size != length:
        raise BadInput(f"The part has {arrival.size} bytes, Content-Range says {length}.")


def complete(target: Target, parts: Parts) -> Answer:
    """All parts are there: the whole is what counts."""
    try:
        check_hash(hash_of(parts.path), target.sha256)
        return target.accept(parts.path, parts.total)
    except BadInput:
        parts.drop()
        raise


def so_far(parts: Parts) -> Answer:
    have = parts.have()
    return Answer(202, {"received": have}, offset=have)


async def respond(send: Send, answer: Answer, method: str) -> None:
    body = orjson.dumps(answer.body)
    headers = [(b"content-type", b"application/json"), (wire.SERVER_HEADER.lower().encode(), OURS.encode())]
    if answer.offset is not None:
        headers.append((b"upload-offset", str(answer.offset).encode()))
    if answer.status in (429, 503, 507):
        headers.append((b"retry-after", b"5"))
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body, "more_body": True})
