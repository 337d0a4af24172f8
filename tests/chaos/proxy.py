"""A network that fails: a TCP proxy that cuts connections, refuses them, and sends requests a second time."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress

BLOCK_BYTES = 4096
MAX_REPEATED_BYTES = 4 << 20


class Proxy:
    """Forwards `port` to the server's port. Its faults are set from other threads.

    `cut_chance` is the probability, for each 4 KB that a client sends, that its connection ends in the middle of them.
    `is_down` refuses every connection. `repeat_requests` sends once more what the open connections have sent.
    """

    def __init__(self, target: int, rng: random.Random) -> None:
        self.target, self.rng = target, rng
        self.cut_chance, self.is_down = 0.0, False
        self.cuts = self.repeats = self.port = 0
        self.sent: dict[asyncio.StreamWriter, bytearray] = {}
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def repeat_requests(self) -> None:
        for data in list(self.sent.values()):
            if 0 < len(data) <= MAX_REPEATED_BYTES:
                asyncio.run_coroutine_threadsafe(self._repeat(bytes(data)), self.loop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            writer.close()
            return
        self.sent[writer] = bytearray()
        with suppress(OSError):
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
            copies = {
                asyncio.create_task(self._copy_requests(reader, to_server, self.sent[writer])),
                asyncio.create_task(self._copy(from_server, writer)),
            }
            _, pending = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in pending:
                copy.cancel()
            to_server.close()
        writer.close()
        del self.sent[writer]

    async def _copy_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytearray) -> None:
        with suppress(OSError):
            while block := await reader.read(BLOCK_BYTES):
                is_cut = self.rng.random() < self.cut_chance
                writer.write(block[: len(block) // 2] if is_cut else block)
                await writer.drain()
                if is_cut:
                    self.cuts += 1
                    return
                sent += block

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while block := await reader.read(BLOCK_BYTES):
                writer.write(block)
                await writer.drain()

    async def _repeat(self, data: bytes) -> None:
        """Sends the data on a new connection and ignores the answers."""
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
            writer.write(data)
            await asyncio.wait_for(writer.drain(), 10)
            self.repeats += 1
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
