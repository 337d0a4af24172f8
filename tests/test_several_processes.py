"""Several web processes and workers behind nginx share the work, with their files in a bucket, and lose nothing when
processes of each kind are killed.

`make scale-out` lets these tests run for ten minutes.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from websockets.sync.client import ClientConnection, connect

from scripts.attack.load import ROWS, build_step
from tests.chaos.postgres import Postgres, find_programs
from tests.support.bucket_server import create_place
from tests.support.chromium import find_launch_options
from tests.support.cluster import Cluster

SECONDS = float(os.environ.get("SCALE_OUT_SECONDS", "0"))
MAX_PAUSE_MS = 10_000 if SECONDS else 1_500  # between two kills
TRAINERS = 20
MIN_STEPS, SECONDS_PER_STEP = 3, 2  # of each trainer
SOCKETS = 12
PLAN = "scale-out"
KINDS = ("web", "worker", "redis", "postgres", "nginx")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 3 * SECONDS)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    programs = find_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    result = Postgres(programs)
    yield result
    result.remove()


@pytest.fixture(scope="module")
def cluster(postgres: Postgres) -> Iterator[Cluster]:
    """Two web processes and two workers, as on several machines."""
    with Cluster(web=2, workers=2, database_url=postgres.url, storage=create_place()) as running:
        yield running


def send(
    cluster: Cluster, method: str, path: str, body: bytes = b"", *, read: Callable[[bytes], Any] = json.loads
) -> Any:
    """Sends a request as the client does: again until it is acknowledged. 404 is a step that is not indexed yet, 409 a
    file that is not checked yet. Returns what `read` makes of the answer."""
    deadline = time.monotonic() + 300
    while True:
        try:
            status, answer = cluster.request(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            status, answer = 503, str(error).encode()
        if status < 400:
            return read(answer)
        assert (status in (404, 409) or status >= 500) and time.monotonic() < deadline, (method, path, status, answer)
        time.sleep(0.2)


def open_run(cluster: Cluster, name: str) -> str:
    run = {"project": "shared", "name": name, "uid": f"uid-{name}", "attempt": "first"}
    return str(send(cluster, "POST", "runs/", json.dumps(run).encode())["id"])


def push_step(cluster: Cluster, uid: str, step: int, body: bytes) -> None:
    query = urllib.parse.urlencode({"attempt": "first", "split": "train", "step": step, "format": "native"})
    send(cluster, "PUT", f"runs/{uid}/dumps/{hashlib.sha256(body).hexdigest()}/?{query}", body)


class Trainer:
    """Pushes steps with files until `is_over`, and pins each of them. All of it is acknowledged by the server."""

    def __init__(self, cluster: Cluster, number: int, is_over: threading.Event) -> None:
        self.cluster, self.is_over, self.chance = cluster, is_over, random.Random(number)
        self.name = f"trainer-{number}"
        self.uid = open_run(cluster, self.name)
        self.samples: Counter[tuple[int, str]] = Counter()  # (step, response)
        self.pins: dict[int, int] = {}  # the pin of a step
        self.files: dict[str, bytes] = {}  # the pinned ones, by their path in the API

    def train(self) -> None:
        step = 0
        while step < MIN_STEPS or not self.is_over.is_set():
            step += 1
            body = build_step(self.chance, step)
            push_step(self.cluster, self.uid, step, body)
            self.samples.update((step, json.loads(line)["response"]) for line in body.splitlines())
            self.push_file(step, json.dumps(read_lines(body)).encode())
            pin = {"run": self.uid, "step": step, "target_step": step, "plan": f"{PLAN}-{self.name}"}
            self.pins[step] = send(self.cluster, "POST", "pins/", json.dumps(pin).encode())["id"]
            self.is_over.wait(self.chance.uniform(0, 2 * SECONDS_PER_STEP))

    def push_file(self, step: int, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        files = {"batch.json": {"sha256": digest, "bytes": len(body)}}
        artifact = {"attempt": "first", "step": step, "role": "rollout", "files": files, "send_now": True}
        artifacts = f"runs/{self.uid}/artifacts/"
        path = f"{artifacts}{send(self.cluster, 'PUT', artifacts, json.dumps(artifact).encode())['id']}/files/{digest}/"
        send(self.cluster, "PUT", path, body)
        self.files[path] = body

    def read_samples(self) -> Counter[tuple[int, str]]:
        query = urllib.parse.urlencode({"run": self.uid, "format": "jsonl"})
        rows = send(self.cluster, "GET", f"exports/samples/?{query}", read=read_lines)
        return Counter((row["step"], row["response"]) for row in rows)

    def read_planned_pins(self) -> Counter[tuple[int, int]]:
        plan = send(self.cluster, "GET", f"projects/shared/replay-plan/?plan={PLAN}-{self.name}")
        return Counter((entry["target_step"], entry["pin"]) for entry in plan["entries"])


def read_lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def wait_until_equal(read: Callable[[], Any], expected: Any, seconds: float = 300) -> None:
    """Asserts that what `read` returns becomes `expected`."""
    deadline = time.monotonic() + seconds
    while (found := read()) != expected and time.monotonic() < deadline:
        time.sleep(1)
    assert found == expected


def kill(cluster: Cluster, postgres: Postgres, kind: str, number: int) -> None:
    """Kills a process with SIGKILL. It is started again."""
    if kind == "postgres":
        postgres.kill(postgres.pids()[0])
        postgres.start()
    else:
        cluster.kill(kind, number % cluster.counts[kind])


def kill_at_random(cluster: Cluster, postgres: Postgres, page: Page) -> Counter[str]:
    """Kills one process of each kind, in random order, until `SECONDS` are over. Returns how many of which."""
    chance, killed = random.Random(), Counter[str]()
    deadline = time.monotonic() + SECONDS
    while not killed or time.monotonic() < deadline:
        for kind in chance.sample(KINDS, len(KINDS)):
            page.wait_for_timeout(chance.uniform(300, MAX_PAUSE_MS))
            cluster.restart_ended()
            kill(cluster, postgres, kind, chance.randrange(2))
            killed[kind] += 1
    return killed


def test_everything_acknowledged_exists_once_after_kills(cluster: Cluster, postgres: Postgres) -> None:
    is_over = threading.Event()
    trainers = [Trainer(cluster, number, is_over) for number in range(TRAINERS)]
    with ExitStack() as stack:
        chromium = stack.enter_context(sync_playwright()).chromium
        context = stack.enter_context(chromium.launch(**find_launch_options())).new_context()
        context.add_cookies(cluster.session.list_cookies())
        page = context.new_page()
        page.goto(f"{cluster.url}/runs/{trainers[0].uid}/")
        page.evaluate("window.isFirstPage = true")
        threads = stack.enter_context(ThreadPoolExecutor(TRAINERS))
        stack.callback(is_over.set)
        trainings = [threads.submit(trainer.train) for trainer in trainers]
        while not all(trainer.samples for trainer in trainers) and not any(each.done() for each in trainings):
            page.wait_for_timeout(100)
        killed = kill_at_random(cluster, postgres, page)
        is_over.set()
        for training in trainings:
            training.result(600)
        cluster.wait_until_ready()
        print(f"killed: {dict(killed)}, steps: {sum(len(trainer.pins) for trainer in trainers)}")
        for trainer in trainers:
            wait_until_equal(trainer.read_samples, Counter(dict.fromkeys(trainer.samples, 1)))
            assert trainer.read_planned_pins() == Counter(dict.fromkeys(trainer.pins.items(), 1))
            stored = {path: send(cluster, "GET", path, read=bytes) for path in trainer.files}
            assert stored == trainer.files
        check_pages(page, cluster, trainers[0])


def check_pages(page: Page, cluster: Cluster, trainer: Trainer) -> None:
    """The page that was open all the time shows all steps, and a step's page a text that comes from the bucket."""
    steps = len(trainer.pins)
    expect(page.locator("#strip .strip-name")).to_contain_text(f"{steps} step", timeout=60_000)
    assert page.evaluate("window.isFirstPage") is True, "it was never loaded again"
    page.goto(f"{cluster.url}/runs/{trainer.uid}/steps/{steps}/")
    expect(page.locator("#result")).to_contain_text(f"of {ROWS} recorded samples")
    sample = send(cluster, "GET", f"samples/?run={trainer.uid}&split=train&step={steps}")["results"][0]["id"]
    response = send(cluster, "GET", f"samples/{sample}/")["response"]
    assert (steps, response) in trainer.samples
    page.goto(f"{cluster.url}/samples/{sample}/")
    expect(page.locator("main")).to_contain_text(response)


def test_nginx_passes_requests_to_the_other_web_process_if_one_is_killed(cluster: Cluster) -> None:
    cluster.wait_until_ready()
    cluster.stop("web")
    try:
        statuses = Counter(cluster.request("GET", "runs/")[0] for _request in range(20))
    finally:
        cluster.start("web")
    assert statuses == {200: 20}
    cluster.wait_until_ready()


def test_a_change_reaches_the_pages_of_all_web_processes(cluster: Cluster) -> None:
    uid = open_run(cluster, "watched")
    headers = {"Cookie": cluster.session.cookie_header(), "Origin": cluster.url}
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(connect(cluster.url.replace("http", "ws") + "/ws/", additional_headers=headers))
            for _number in range(SOCKETS)
        ]
        for socket in sockets:
            socket.send(json.dumps({"topics": [f"run:{uid}"]}))
            socket.recv(timeout=60)
        push_step(cluster, uid, 1, build_step(random.Random(1), 1))
        listeners = [wait_for_step(socket, 1)["listeners"] for socket in sockets]
    assert max(listeners) < SOCKETS, "each process has some of the pages"


def wait_for_step(socket: ClientConnection, step: int) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if message.get("step") == step:
            return message


def test_sign_in_attempts_of_all_processes_count_together(cluster: Cluster) -> None:
    statuses = Counter(try_sign_in(cluster) for _attempt in range(14))
    assert statuses == {200: 10, 429: 4}


def try_sign_in(cluster: Cluster) -> int:
    """Tries a wrong password on a new connection. Returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
    token = "t" * 32
    body = urllib.parse.urlencode({"username": "admin", "password": "wrong", "csrfmiddlewaretoken": token})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"rolloutdeck_csrf={token}"}
    try:
        connection.request("POST", "/sign-in/", body, {**headers, "Origin": cluster.url})
        return connection.getresponse().status
    finally:
        connection.close()
