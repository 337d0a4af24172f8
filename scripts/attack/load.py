"""Clients push steps and readers open pages, all at once. Latencies include the whole answer. At the end every step
that the server has acknowledged must have its samples."""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import random
import threading
import time
import urllib.parse
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.support.server import Product

PROJECT = "attack"
ROWS = 16  # samples of a pushed step
WORDS = ["the", "value", "of", "x", "is", "so", "we", "have", "six", "axes", "and", "therefore"]
MAX_PAGE_SECONDS, MAX_PUSH_SECONDS = 1.0, 2.0  # the 95th percentiles
MAX_PAGE_SECONDS_ALONE = 0.3  # of pages while no client pushes
MAX_INDEXING_SECONDS = 300.0  # until all that was acknowledged is indexed
TIMEOUT = 60


Acknowledged = dict[str, set[int]]  # the uid of a run -> its steps that the server has acknowledged


@dataclass(frozen=True)
class LoadOptions:
    seconds: float
    clients: int
    readers: int
    every: float
    pause: float = 1.0  # seconds between two pages of a reader, on average


@dataclass
class Measurements:
    """Seconds of each kind of request, and what failed."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, kind: str, port: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Sends a request on a connection of its own, as the client does. Returns the body of the answer, nothing after
        an error."""
        started = time.perf_counter()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            problem = "" if answer.status < 400 else f"{kind}: {answer.status} {content[:100]!r}"
        except (OSError, http.client.HTTPException) as error:
            content, problem = b"", f"{kind}: {error or type(error).__name__}"
        with self.lock:
            self.seconds[kind].append(time.perf_counter() - started)
            if problem:
                self.errors.append(problem)
        return b"" if problem else content

    def compute_percentile(self, kinds: list[str], share: float) -> float:
        """The nearest rank; infinite without values."""
        values = sorted(value for kind in kinds for value in self.seconds[kind])
        return values[min(len(values) - 1, int(share * len(values)))] if values else math.inf


def build_step(chance: random.Random, step: int, rows: int = ROWS, words: int = 150) -> bytes:
    lines = [
        {
            "prompt": f"Question {step}.{number // 4}?",
            "group": str(number // 4),
            "score": float(chance.random() < 0.5),
            "response": " ".join(chance.choices(WORDS, k=words)),
        }
        for number in range(rows)
    ]  # fmt: skip
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def push_step(measured: Measurements, server: Product, uid: str, step: int, body: bytes, kind: str = "push") -> bool:
    """Sends samples and metrics. Returns whether the server has acknowledged the samples."""
    is_acknowledged = push_dump(measured, server, uid, step, body, kind)
    push_metrics(measured, server, uid, step)
    return is_acknowledged


def push_dump(measured: Measurements, server: Product, uid: str, step: int, body: bytes, kind: str = "push") -> bool:
    digest = hashlib.sha256(body).hexdigest()
    query = urllib.parse.urlencode({"attempt": "first", "split": "train", "step": step, "format": "native"})
    headers = {"Authorization": f"Bearer {server.token}"}
    path = f"/api/v1/runs/{uid}/dumps/{digest}/?{query}"
    return bool(measured.request(kind, server.port, "PUT", path, body, **headers))


def push_metrics(measured: Measurements, server: Product, uid: str, step: int) -> None:
    points = {"attempt": "first", "points": [{"step": step, "step_kind": "global_step", "values": {"score": step / 9}}]}
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    path = f"/api/v1/runs/{uid}/metrics/"
    measured.request("push of metrics", server.port, "POST", path, json.dumps(points).encode(), **headers)


def open_run(server: Product, name: str) -> str:
    return str(server.post("runs/", {"project": PROJECT, "name": name, "attempt": "first"})["id"])


def run_client(
    measured: Measurements, server: Product, number: int, options: LoadOptions, end: float, uid: str, steps: set[int]
) -> None:
    """Pushes steps, and adds those that the server has acknowledged to `steps`."""
    chance, step = random.Random(number), 0
    time.sleep(chance.uniform(0, options.every))
    while (started := time.monotonic()) < end:
        step += 1
        if push_step(measured, server, uid, step, build_step(chance, step)):
            steps.add(step)
        time.sleep(max(0.0, min(started + options.every, end) - time.monotonic()))


def count_lost_samples(server: Product, acknowledged: Acknowledged) -> int:
    """Waits until each acknowledged step has its samples, once. Returns how many are missing or too many."""
    deadline, lost = time.monotonic() + MAX_INDEXING_SECONDS, 0
    waiting = list(acknowledged)
    while waiting:
        differences = {uid: count_differences(server, uid, acknowledged[uid]) for uid in waiting}
        waiting = [uid for uid, count in differences.items() if count]
        lost = sum(differences.values())
        if time.monotonic() > deadline:
            break
        time.sleep(1 if waiting else 0)
    return lost


def count_differences(server: Product, uid: str, steps: set[int]) -> int:
    found, page = {}, 1
    while True:
        answer = server.get(f"runs/{uid}/steps/?split=train&page_size=500&page={page}")
        found |= {row["step"]: row["samples"] for row in answer["results"]}
        if not answer["next"]:
            return sum(abs(ROWS - found.get(step, 0)) for step in steps)
        page += 1


def run_reader(
    measured: Measurements, port: int, cookie: str, pages: list[str], number: int, pause: float, end: float
) -> None:
    chance = random.Random(1000 + number)
    time.sleep(chance.uniform(0, pause))
    while time.monotonic() < end:
        measured.request("page", port, "GET", chance.choice(pages), Cookie=cookie)
        time.sleep(chance.uniform(0.5, 1.5) * pause)


def run_load(server: Product, options: LoadOptions) -> bool:
    """Prints latencies and errors. Returns whether the budgets are met."""
    measured = Measurements()
    uid, chance = open_run(server, "read"), random.Random(1)
    for step in range(1, 21):
        push_step(measured, server, uid, step, build_step(chance, step, rows=64), kind="seed")
    samples: list[Any] = []
    deadline = time.monotonic() + 120
    while len(samples) < 10 and time.monotonic() < deadline:
        samples = server.get(f"samples/?run={uid}&split=train&step=20")["results"]
        time.sleep(0.5)
    session = server.open_session()
    pages = [
        "/", f"/runs/{uid}/", f"/runs/{uid}/charts.json", f"/runs/{uid}/steps/20/", f"/runs/{uid}/steps/3/?sort=-score",
        f"/runs/{uid}/steps/all/?q=%22axes%22", "/pins/", *(f"/samples/{row['id']}/" for row in samples[:3]),
    ]  # fmt: skip
    for page in pages:
        session.get(page)  # an error of the attack itself ends here
    acknowledged: Acknowledged = {open_run(server, f"client-{number}"): set() for number in range(options.clients)}
    end = time.monotonic() + options.seconds
    threads = [
        threading.Thread(target=run_client, args=(measured, server, number, options, end, uid, steps))
        for number, (uid, steps) in enumerate(acknowledged.items())
    ]
    cookie = session.cookie_header()
    threads += [
        threading.Thread(target=run_reader, args=(measured, server.port, cookie, pages, number, options.pause, end))
        for number in range(options.readers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report(measured, options, acknowledged, count_lost_samples(server, acknowledged))


def report(measured: Measurements, options: LoadOptions, acknowledged: Acknowledged, lost: int) -> bool:
    pushes, pages = ["push", "push of metrics"], ["page"]
    count = len(measured.seconds["push"])
    print(
        f"{options.clients} clients, a step of {ROWS} samples each {options.every:g} s, {options.readers} readers, "
        f"{options.pause:g} s between two pages, "
        f"{options.seconds:g} s: {count / options.seconds:.1f} steps/s, {len(measured.seconds['page'])} pages"
    )
    is_met = not measured.errors and not lost
    max_page_seconds = MAX_PAGE_SECONDS if options.clients else MAX_PAGE_SECONDS_ALONE
    rows = [("pages", pages, max_page_seconds)] if options.readers else []
    rows += [("pushes", pushes, MAX_PUSH_SECONDS)] if options.clients else []
    for what, kinds, budget in rows:
        p50, p95, p99 = (measured.compute_percentile(kinds, share) for share in (0.5, 0.95, 0.99))
        is_met &= p95 <= budget
        print(f"{what:7} p50 {p50:.2f} s   p95 {p95:.2f} s (budget {budget:g} s)   p99 {p99:.2f} s")
    print(f"errors  {len(measured.errors)}", *measured.errors[:5], sep="\n  ")
    stored = ROWS * sum(len(steps) for steps in acknowledged.values())
    print(f"samples {stored:,} acknowledged, {lost:,} of them missing or not there once")
    print("budgets met" if is_met else "BUDGET MISSED")
    return is_met
