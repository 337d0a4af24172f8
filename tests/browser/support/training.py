"""Sends data while a test looks at a page: dumps over HTTP, or from a real training process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolloutdeck.lib.http import ServerClient
from tests.support.server import Product

PROJECT = "math"


def generations(step: int, count: int, version: int = 1) -> list[dict[str, Any]]:
    """Rows whose text does not depend on `version`, except the last one's."""
    created = [
        {
            "prompt": f"What is {n} + 1?",
            "response": f"Step {step} says {n + 1}.\n#### {n + 1}",
            "score": n / count,
            "group": str(n),
            "index": 0,
            "ground_truth": str(n + 1),
        }
        for n in range(count)
    ]
    created[-1]["response"] += f" (version {version})"
    return created


class Training:
    """A run that is written over the HTTP API, straight to the server; by default in the project `math`."""

    def __init__(self, product: Product, name: str, project: str = PROJECT) -> None:
        self.product, self.name, self.project = product, name, project
        self.server = ServerClient(product.url, product.token)
        message = self.server.send_json("POST", "runs/", {"project": project, "name": name, "attempt": "a"})
        assert message.is_success, message.error_message
        self.uid = str(message.json()["id"])

    def start_another(self, name: str) -> Training:
        """Starts another run in the same project. No run of another test has a name that begins with `name`."""
        return Training(self.product, f"{name}-{self.project}", self.project)

    def push(self, step: int, rows: list[dict[str, Any]], source: str = "") -> None:
        """Sends one dump. A later dump from the same `source` supersedes it."""
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        query = {"attempt": "a", "split": "train", "step": step, "source": source or f"{step}", "format": "native"}
        address = f"runs/{self.uid}/dumps/{hashlib.sha256(body).hexdigest()}/"
        message = self.server.request("PUT", address, query=query, body=body)
        assert message.is_success, message.error_message

    def push_and_wait(self, step: int, count: int, rows: list[dict[str, Any]] | None = None) -> None:
        """Sends one dump, and waits until its samples are visible."""
        self.push(step, rows or generations(step, count))
        deadline = time.monotonic() + 30
        while len(self.list_samples(step)) != count:
            assert time.monotonic() < deadline, f"step {step} was not indexed"
            time.sleep(0.05)

    def push_many(self, steps: range, count: int) -> None:
        """Sends a dump of `count` rows for each step, eight at a time."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda step: self.push(step, generations(step, count)), steps))

    def list_samples(self, step: int) -> list[dict[str, Any]]:
        return list(self.product.get(f"samples/?run={self.uid}&split=train&step={step}")["results"])


class Trainer:
    """The same run continued by a process of its own, which records through the public Python API."""

    def __init__(self, training: Training) -> None:
        command = [sys.executable, "-m", "tests.browser.support.trainer", training.project, training.name]
        self.process = subprocess.Popen(command, env=training.product.environ, stdin=subprocess.PIPE, text=True)

    def train(self, step: int, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step} {count}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
