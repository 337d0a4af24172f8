"""Many open pages of one live run: when a notification reaches them, and when those in the foreground show its content.

A page in the foreground does what `static/js/common/live_updates.js` does: it waits, requests all panels of the run's
page together and its charts, and pauses. The pages in the background only receive notifications.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import random
import re
import resource
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from scripts.attack.load import ROWS, TIMEOUT, Measurements, build_step, open_run, push_dump, push_metrics
from tests.support.server import Product, Session

SCRIPT = Path(__file__).parents[2] / "static" / "js" / "common" / "live_updates.js"
MAX_NOTIFICATION_SECONDS, MAX_CONTENT_SECONDS = 1.0, 1.0  # the 99th percentiles
SECONDS_BETWEEN_STEPS = 1.0
SECONDS_AFTER_LAST_STEP = 15.0  # for the last notifications and their content
CONNECTIONS_AT_ONCE = 50  # while the pages are opened
REQUESTS_AT_ONCE = 64
OTHER_FILES = 500  # that the script has open: connections of the foreground pages, log, event loop
PANEL = re.compile(r'<\w+[^>]*\bid="([\w-]+)"[^>]*\bdata-live\b')
CHARTS = re.compile(r'data-charts="([^"]+)"')


@dataclass(frozen=True)
class SocketOptions:
    sockets: int
    watchers: int
    seconds: float


def read_delays() -> dict[str, float]:
    """The constants of the pages' script by name, in seconds."""
    found = re.findall(r"\b([A-Z_]+) = (\d+)", SCRIPT.read_text())
    return {name: float(value) / 1000 for name, value in found} | {"PAUSE": float(dict(found)["PAUSE"])}


class Fetcher:
    """Requests of the pages in threads, each with a connection that stays open."""

    def __init__(self, port: int, cookie: str) -> None:
        self.port, self.cookie, self.local = port, cookie, threading.local()
        self.threads = ThreadPoolExecutor(REQUESTS_AT_ONCE)
        self.errors: list[str] = []

    async def fetch(self, path: str, headers: dict[str, str]) -> str:
        """Returns the ETag of the answer."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.request, path, headers)

    def request(self, path: str, headers: dict[str, str]) -> str:
        try:
            if not hasattr(self.local, "connection"):
                self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
            self.local.connection.request("GET", path, headers={"Cookie": self.cookie, **headers})
            answer = self.local.connection.getresponse()
            content = answer.read()
            if answer.status not in (200, 304):
                self.errors.append(f"{path}: {answer.status} {content[:100]!r}")
            return answer.headers["ETag"] or ""
        except (OSError, http.client.HTTPException) as error:
            self.local.__dict__.clear()
            self.errors.append(f"{path}: {error or type(error).__name__}")
            return ""


@dataclass
class Page:
    """An open page of the run."""

    fetcher: Fetcher
    panels: Sequence[tuple[str, str]]  # (URL, ids); the charts have no id
    delays: dict[str, float]
    is_watched: bool
    chance: random.Random
    arrivals: dict[int, float] = field(default_factory=dict)  # step -> time of its first notification
    content_seconds: list[float] = field(default_factory=list)
    fetches: int = 0
    waiting: list[float] = field(default_factory=list)  # times of notifications whose content is not there yet
    etags: dict[tuple[str, str], str] = field(default_factory=dict)
    handling: asyncio.Task[None] | None = None
    pause_until: float = 0.0
    listeners: int = 1

    async def listen(self, socket: ClientConnection) -> None:
        async for text in socket:
            now, message = time.perf_counter(), json.loads(text)
            if message.get("step") is not None:
                self.arrivals.setdefault(message["step"], now)
            self.listeners = message.get("listeners", self.listeners)
            if self.is_watched:
                self.waiting.append(now)
                if self.handling is None or self.handling.done():
                    self.handling = asyncio.create_task(self.fetch_until_current())
                    self.handling.add_done_callback(self.record_error)

    async def fetch_until_current(self) -> None:
        while self.waiting:
            most = self.delays["JITTER"] + self.delays["JITTER_PER_LISTENER"] * self.listeners
            delay = self.delays["DELAY"] + self.chance.random() * min(self.delays["MAX_JITTER"], most)
            await asyncio.sleep(max(delay, self.pause_until - time.perf_counter()))
            notified = len(self.waiting)  # more may come meanwhile
            started = time.perf_counter()
            await self.fetch()
            ended = time.perf_counter()
            self.content_seconds += [ended - at for at in self.waiting[:notified]]
            del self.waiting[:notified]
            self.pause_until = ended + min(self.delays["MAX_PAUSE"], self.delays["PAUSE"] * (ended - started))

    def record_error(self, handling: asyncio.Task[None]) -> None:
        if not handling.cancelled() and (error := handling.exception()):
            self.fetcher.errors.append(f"content: {error!r}")

    def give_up_waiting(self) -> None:
        """Content that is late and not there takes forever."""
        late = time.perf_counter() - MAX_CONTENT_SECONDS
        self.content_seconds += [math.inf for at in self.waiting if at < late]

    async def fetch(self) -> None:
        self.fetches += 1
        await asyncio.gather(*(self.fetch_panels(url, ids) for url, ids in self.panels))

    async def fetch_panels(self, url: str, ids: str) -> None:
        headers = {"HX-Request": "true", "HX-Target": ids.split()[0], "X-Panels": ids} if ids else {}
        if etag := self.etags.get((url, ids)):
            headers["If-None-Match"] = etag
        self.etags[url, ids] = await self.fetcher.fetch(url, headers)


def raise_file_limit(files: int) -> None:
    """Raises SystemExit if the system does not allow so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise SystemExit(f"This needs {files:,} open files, and the system allows {hard:,}: ulimit -Hn.")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))


def run_sockets(server: Product, options: SocketOptions) -> bool:
    """Prints latencies and errors. Returns whether everything arrived, within the budgets."""
    raise_file_limit(options.sockets + OTHER_FILES)
    uid, measured = open_run(server, "live"), Measurements()
    push_step_and_wait(server, measured, uid)
    return asyncio.run(watch_run(server, options, uid, measured))


def push_step_and_wait(server: Product, measured: Measurements, uid: str) -> None:
    push_dump(measured, server, uid, 0, build_step(random.Random(1), 0))
    push_metrics(measured, server, uid, 0)
    deadline = time.monotonic() + 120
    while not server.get(f"runs/{uid}/steps/?split=train")["results"]:
        if time.monotonic() > deadline:
            raise SystemExit("The first step was not indexed within two minutes.")
        time.sleep(0.5)


async def watch_run(server: Product, options: SocketOptions, uid: str, measured: Measurements) -> bool:
    session = server.open_session()
    fetcher = Fetcher(server.port, session.cookie_header())
    panels, delays = find_panels(session, uid), read_delays()
    pages = [
        Page(fetcher, panels, delays, number < options.watchers, random.Random(number))
        for number in range(options.sockets)
    ]
    before, started = server.anonymous_memory(), time.perf_counter()
    async with AsyncExitStack() as stack:
        sockets = await open_sockets(stack, server, uid, session, pages)
        opened = time.perf_counter() - started
        memory = (server.anonymous_memory() - before) * 1000 / len(pages)
        print(f"{len(pages):,} sockets open after {opened:.1f} s, {memory:.0f} kB of the server each", flush=True)
        cost = await measure_page_cost(server, pages[0])
        print(f"a page requests {len(panels)} URLs: {cost * 1000:.0f} ms of CPU of the server", flush=True)
        listening = [asyncio.create_task(page.listen(socket)) for page, socket in zip(pages, sockets, strict=True)]
        cpu, started = server.count_cpu_seconds(), time.perf_counter()
        answered = await push_steps(server, uid, measured, options.seconds)
        used = (server.count_cpu_seconds() - cpu) / (time.perf_counter() - started)
        await asyncio.sleep(SECONDS_AFTER_LAST_STEP)
        for page in pages:
            page.give_up_waiting()
        closed = sum(task.done() for task in listening)
        for task in [*listening, *(page.handling for page in pages if page.handling)]:
            task.cancel()
    return report(pages, answered, used, [*measured.errors, *fetcher.errors, *["a socket closed"] * closed])


def find_panels(session: Session, uid: str) -> list[tuple[str, str]]:
    path = f"/runs/{uid}/"
    page = session.get(path)
    return [(path, " ".join(PANEL.findall(page))), *((url, "") for url in CHARTS.findall(page))]


async def open_sockets(
    stack: AsyncExitStack, server: Product, uid: str, session: Session, pages: list[Page]
) -> list[ClientConnection]:
    url, gate = server.url.replace("http", "ws") + "/ws/", asyncio.Semaphore(CONNECTIONS_AT_ONCE)
    headers = {"Cookie": session.cookie_header(), "Origin": server.url}

    async def open_socket(page: Page) -> ClientConnection:
        async with gate:
            connection = connect(url, additional_headers=headers, open_timeout=TIMEOUT, ping_interval=None)
            socket = await stack.enter_async_context(connection)
            await socket.send(json.dumps({"topics": [f"run:{uid}"], "hidden": not page.is_watched}))
            await socket.recv()  # the first notification follows the topics
            return socket

    return list(await asyncio.gather(*(open_socket(page) for page in pages)))


async def measure_page_cost(server: Product, page: Page, repeats: int = 20) -> float:
    """CPU seconds that the server uses for the content of one page, from the second time on."""
    await page.fetch()
    page.etags.clear()
    before = server.count_cpu_seconds()
    for _repeat in range(repeats):
        await page.fetch()
        page.etags.clear()
    page.fetches = 0
    return (server.count_cpu_seconds() - before) / repeats


async def push_steps(server: Product, uid: str, measured: Measurements, seconds: float) -> dict[int, float]:
    """Pushes a step per second. Returns {step: time of the answer} of those that were acknowledged."""
    answered: dict[int, float] = {}
    chance, started = random.Random(2), time.perf_counter()
    for step in range(1, int(seconds / SECONDS_BETWEEN_STEPS) + 1):
        if await asyncio.to_thread(push_dump, measured, server, uid, step, build_step(chance, step)):
            answered[step] = time.perf_counter()
        await asyncio.to_thread(push_metrics, measured, server, uid, step)
        await asyncio.sleep(max(0.0, started + step * SECONDS_BETWEEN_STEPS - time.perf_counter()))
    return answered


def report(pages: list[Page], answered: dict[int, float], used: float, errors: list[str]) -> bool:
    arrived = [page.arrivals[step] - at for step, at in answered.items() for page in pages if step in page.arrivals]
    content = [seconds for page in pages for seconds in page.content_seconds]
    expected, watchers = len(answered) * len(pages), sum(page.is_watched for page in pages)
    print(f"{len(answered)} steps of {ROWS} samples, one per second; the server uses {used:.2f} cores")
    print(f"notifications {len(arrived):,} of {expected:,}")
    is_met = bool(expected) and len(arrived) == expected and not errors
    rows = [("notification", arrived, MAX_NOTIFICATION_SECONDS)]
    rows += [(f"content of {watchers} pages", content, MAX_CONTENT_SECONDS)] if watchers else []
    for what, seconds, budget in rows:
        p50, p99 = compute_percentile(seconds, 0.5), compute_percentile(seconds, 0.99)
        is_met &= p99 <= budget
        print(f"{what:20} p50 {p50:.2f} s   p99 {p99:.2f} s (budget {budget:g} s)")
    if watchers:
        print(f"each of them was fetched {sum(page.fetches for page in pages) / watchers:.0f} times")
    print(f"errors  {len(errors)}", *errors[:5], sep="\n  ")
    print("budgets met" if is_met else "BUDGET MISSED")
    return is_met


def compute_percentile(values: list[float], share: float) -> float:
    """The nearest rank; infinite without values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else math.inf
