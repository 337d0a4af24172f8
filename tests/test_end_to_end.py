"""End to end without mocks: a dump is imported, indexed, shown live and flagged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.server import Product

pytestmark = pytest.mark.slow
DUMPS = Path(__file__).parent / "data" / "verl_jsonl" / "v0"


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with Product() as product:
        yield product


def wait_for_notification(socket: ClientConnection, step: int) -> dict[str, Any]:
    while True:
        notification: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if notification.get("step") == step:
            return notification


def test_a_dump_is_imported_indexed_shown_live_and_flagged(product: Product) -> None:
    run = product.post("runs/", {"project": "path", "name": "walk", "attempt": "first"})
    headers = {"Cookie": product.open_session().cookie_header(), "Origin": product.url}
    with connect(product.url.replace("http", "ws") + "/ws/", additional_headers=headers) as socket:
        socket.send(json.dumps({"topics": [f"run:{run['id']}"]}))

        command = product.command("import", str(DUMPS / "rollout" / "3.jsonl"), "--project", "path", "--run", "walk")
        assert wait_for_notification(socket, step=3)["split"] == "train"  # seen live
        assert command.wait(60) == 0

    (step,) = product.get(f"runs/{run['id']}/steps/?split=train")["results"]  # indexed
    assert (step["step"], step["samples"], step["groups"]) == (3, 32, 8)
    worst = product.get(f"samples/?run={run['id']}&split=train&step=3&ordering=score")["results"][0]
    page = product.fetch(f"/api/v1/samples/{worst['id']}/")
    assert json.loads(page)["response"] in (
        row["output"] for row in map(json.loads, (DUMPS / "rollout" / "3.jsonl").open())
    )

    flag = product.post("flags/", {"sample": worst["id"], "label": "bad", "reason": "repetition", "text": "again"})
    (step,) = product.get(f"runs/{run['id']}/steps/?split=train")["results"]
    assert step["flags"] == 1  # flagged
    product.post(f"flags/{flag['id']}/", {"withdrawn": True}, method="PATCH")
    (step,) = product.get(f"runs/{run['id']}/steps/?split=train")["results"]
    assert step["flags"] == 0

    numbers = product.fetch("/metrics").decode()  # also those of the worker
    assert 'rolloutdeck_index_attempts_total{format="verl-jsonl",outcome="indexed"} 1.0' in numbers
    assert 'rolloutdeck_responses_total{kind="upload",status="201"} 1.0' in numbers and "waiting_tasks 0.0" in numbers
