"""Several web processes and workers share the work, and lose nothing when one of them is killed."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from scripts.attack.load import ROWS, build_step
from tests.chaos.postgres import Postgres, find_programs
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS, STEPS, KILLS = 6, 12, 4
SOCKETS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """On PostgreSQL, as on several machines."""
    programs = find_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    postgres = Postgres(programs)
    try:
        with Cluster(web=2, workers=2, database_url=postgres.url) as running:
            yield running
    finally:
        postgres.remove()


def send(cluster: Cluster, method: str, path: str, body: bytes) -> Any:
    """Sends a request as the client does: again until it is acknowledged."""
    deadline = time.monotonic() + 120
    while True:
        try:
            status, answer = cluster.request(method, path, body)
        except (OSError, http.client.HTTPException):
            status, answer = 503, None
        if status < 400:
            return answer
        assert status >= 500 and time.monotonic() < deadline, (status, answer)
        time.sleep(0.2)


def open_run(cluster: Cluster, name: str) -> str:
    run = {"project": "shared", "name": name, "uid": f"uid-{name}", "attempt": "first"}
    return str(send(cluster, "POST", "runs/", json.dumps(run).encode())["id"])


def push_steps(cluster: Cluster, number: int, uids: dict[int, str]) -> None:
    chance, uid = random.Random(number), uids[number]
    for step in range(1, STEPS + 1):
        body = build_step(chance, step)
        query = urllib.parse.urlencode({"attempt": "first", "split": "train", "step": step, "format": "native"})
        send(cluster, "PUT", f"runs/{uid}/dumps/{hashlib.sha256(body).hexdigest()}/?{query}", body)


def count_samples(cluster: Cluster, uid: str) -> dict[int, int]:
    """The samples of each step."""
    steps = send(cluster, "GET", f"runs/{uid}/steps/?split=train&page_size=100", b"")["results"]
    return {step["step"]: step["samples"] for step in steps}


def test_every_acknowledged_sample_exists_once_after_kills(cluster: Cluster) -> None:
    uids = {number: open_run(cluster, f"client-{number}") for number in range(CLIENTS)}
    clients = [threading.Thread(target=push_steps, args=(cluster, number, uids)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    chance = random.Random(7)
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.3, 1.5))
        cluster.kill(("web", "worker")[kill % 2], chance.randrange(2))
    for client in clients:
        client.join(200)
    cluster.wait_until_ready()
    expected = dict.fromkeys(range(1, STEPS + 1), ROWS)
    deadline = time.monotonic() + 150
    counts = {uid: count_samples(cluster, uid) for uid in uids.values()}
    while any(count != expected for count in counts.values()) and time.monotonic() < deadline:
        time.sleep(1)
        counts = {uid: count_samples(cluster, uid) for uid in uids.values()}
    assert counts == dict.fromkeys(uids.values(), expected)


def test_a_change_reaches_the_pages_of_all_web_processes(cluster: Cluster) -> None:
    uid = open_run(cluster, "watched")
    headers = {"Cookie": cluster.open_session().cookie_header(), "Origin": cluster.url}
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(connect(cluster.url.replace("http", "ws") + "/ws/", additional_headers=headers))
            for _number in range(SOCKETS)
        ]
        for socket in sockets:
            socket.send(json.dumps({"topics": [f"run:{uid}"]}))
            socket.recv(timeout=60)
        push_steps(cluster, 0, {0: uid})
        listeners = [wait_for_step(socket, STEPS)["listeners"] for socket in sockets]
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
