"""Many reviewers answer one queue at once: nobody gets an error, and no item gets more answers than reviewers."""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.attack.load import PROJECT, Measurements, build_step, open_run, push_step
from tests.chaos.postgres import Postgres, find_programs
from tests.support.server import Product

STEP_ROWS = 1000
REVIEWERS_PER_ITEM = 2
MAX_ANSWER_SECONDS = 0.2  # the 95th percentile
QUESTIONS = [{"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True}]
CREATE_TOKENS = """
from django.contrib.auth.models import User; from rollouts.models import Membership, Project, Token
project = Project.objects.get(slug={project!r})
for number in range({count}):
    user = User.objects.create_user(f"reviewer-{{number}}")
    Membership.objects.create(project=project, user=user, role="annotator")
    print("TOKEN", Token.issue(user=user, name="attack", scopes=["read", "annotate"], project=project)[1])
"""
COUNT = """
from collections import Counter; from rollouts.models import Label, QueueSlot
slots = QueueSlot.objects.filter(queue={queue}).exclude(done_at=None).values_list("item", "user")
labels = Counter(Label.objects.active().filter(name="correct", source="human").values_list("sample", flat=True))
items = Counter(item for item, _user in slots)
print("COUNTED", len(slots), len(set(slots)), max(items.values()), sum(labels.values()), max(labels.values()))
"""


@dataclass(frozen=True)
class QueueOptions:
    seconds: float
    clients: int
    items: int
    every: float
    web: int = 1


class Reviewer:
    """A person with a connection that stays open, like a browser's."""

    def __init__(self, server: Product, queue: int, token: str, number: int, measured: Measurements) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.path, self.measured, self.chance = f"/api/v1/queues/{queue}/", measured, random.Random(number)
        self.answered = 0

    def send(self, kind: str, method: str, path: str, data: Any) -> Any:
        started = time.perf_counter()
        try:
            self.connection.request(method, self.path + path, json.dumps(data).encode(), self.headers)
            answer = self.connection.getresponse()
            content, problem = answer.read(), ""
            if answer.status >= 400:
                problem = f"{kind}: {answer.status} {content[:200]!r}"
        except (OSError, http.client.HTTPException) as error:
            content, problem = b"null", f"{kind}: {error or type(error).__name__}"
            self.connection.close()
        with self.measured.lock:
            self.measured.seconds[kind].append(time.perf_counter() - started)
            if problem:
                self.measured.errors.append(problem)
        return None if problem else json.loads(content)

    def work(self, end: float, every: float) -> None:
        """Answers an item each `every` seconds; now and then skips one."""
        time.sleep(self.chance.uniform(0, every))
        while (started := time.monotonic()) < end:
            reply = self.send("next", "POST", "next/", {})
            item = reply and reply["item"]
            if item and self.chance.random() < 0.05:
                self.send("skip", "POST", f"items/{item['id']}/skip/", {})
            elif item:
                answers = {"correct": {"value": self.chance.random() < 0.5}}
                if self.send("answers", "PUT", f"items/{item['id']}/answers/", {"answers": answers}):
                    self.answered += 1
            time.sleep(max(0.0, min(started + every, end) - time.monotonic()))


def run_shell(server: Product, code: str) -> list[list[str]]:
    """Runs code of the server's, returns the words of the lines that it prints in capitals."""
    root = Path(__file__).parents[2]
    environment = {**server.environ, "ROLLOUTDECK_DATA": str(server.data)}
    command = [sys.executable, str(root / "manage.py"), "shell", "-c", code]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(("TOKEN ", "COUNTED "))]
    if not rows:
        raise SystemExit(f"the shell said nothing: {done.stderr[-500:]}")
    return rows


def create_queue(server: Product, items: int) -> int:
    measured, chance = Measurements(), random.Random(1)
    uid, steps = open_run(server, "reviewed"), range(1, items // STEP_ROWS + 1)
    for step in steps:
        push_step(measured, server, uid, step, build_step(chance, step, STEP_ROWS, words=20), kind="seed")
    deadline = time.monotonic() + 600
    while server.get(f"runs/{uid}/")["dumps"].get("indexed", 0) < len(steps):
        if measured.errors or time.monotonic() > deadline:
            raise SystemExit(f"the samples were not indexed: {measured.errors[:3]}")
        time.sleep(0.5)
    server.post(f"projects/{PROJECT}/rubric/", {"questions": QUESTIONS, "base_version": 0}, "PUT")
    queue = {"project": PROJECT, "name": "all", "runs": [uid], "num_reviewers_per_item": REVIEWERS_PER_ITEM}
    return int(server.post("queues/", queue)["id"])


def run_queues(options: QueueOptions, *, use_postgres: bool) -> bool:
    """Prints latencies, errors and counts. Returns whether the budgets are met."""
    if not use_postgres:
        with Product(web=options.web) as server:
            return attack(server, options)
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is missing: apt-get install postgresql")
    postgres = Postgres(programs)
    try:
        os.environ["TEST_DATABASE_URL"] = postgres.url
        with Product(web=options.web) as server:
            return attack(server, options)
    finally:
        postgres.remove()


def attack(server: Product, options: QueueOptions) -> bool:
    queue = create_queue(server, options.items)
    tokens = run_shell(server, CREATE_TOKENS.format(project=PROJECT, count=options.clients))
    measured = Measurements()
    reviewers = [Reviewer(server, queue, token, number, measured) for number, (token,) in enumerate(tokens)]
    reviewers[0].send("first", "POST", "next/", {})  # reads what the process reads once
    used = server.count_cpu_seconds()
    end = time.monotonic() + options.seconds
    threads = [threading.Thread(target=reviewer.work, args=(end, options.every)) for reviewer in reviewers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = server.count_cpu_seconds() - used
    answered = sum(reviewer.answered for reviewer in reviewers)
    counted = [int(word) for word in run_shell(server, COUNT.format(queue=queue))[0]]
    return report(measured, options, answered, counted, used)


def report(measured: Measurements, options: QueueOptions, answered: int, counted: list[int], cpu: float) -> bool:
    requests = sum(map(len, measured.seconds.values()))
    print(
        f"{options.clients} reviewers, an item each {options.every:g} s, {options.items:,} items, "
        f"{options.seconds:g} s: {answered / options.seconds:.1f} answers/s, "
        f"{cpu / max(1, requests) * 1000:.0f} ms of CPU per request"
    )
    is_met = not measured.errors and answered > 0
    budget = MAX_ANSWER_SECONDS * 1000
    for kind in ("next", "answers"):
        p50, p95, p99 = (measured.compute_percentile([kind], share) * 1000 for share in (0.5, 0.95, 0.99))
        is_met &= p95 <= budget
        print(f"{kind:8} p50 {p50:.0f} ms   p95 {p95:.0f} ms (budget {budget:.0f} ms)   p99 {p99:.0f} ms")
    slots, pairs, most, labels, most_labels = counted
    is_met &= slots == pairs == labels == answered and max(most, most_labels) <= REVIEWERS_PER_ITEM
    print(
        f"answers {answered} acknowledged, {slots} stored, {labels} labels, at most {max(most, most_labels)} per item"
    )
    print(f"errors  {len(measured.errors)}", *measured.errors[:5], sep="\n  ")
    print("budgets met" if is_met else "BUDGET MISSED")
    return is_met
