"""Responses that are written while they are sent."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async


async def iterate_in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Reads one chunk at a time. With a plain iterator, Django under ASGI reads the complete file first."""

    def read_next() -> bytes | None:
        return next(chunks, None)

    while (chunk := await sync_to_async(read_next)()) is not None:
        yield chunk
