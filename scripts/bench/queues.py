"""Review queues: over a million samples, and the time between two items for someone who answers by keyboard."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page

from scripts.bench import load, screen, seed
from scripts.bench.client import rows_of
from tests.support.server import Product

SAMPLES = 1_000_000
ITEMS = 20_000  # the largest queue
KEYED_ITEMS = 30
READ_MS = 400  # between two items
QUESTIONS = [{"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True}]

# From the press of Enter to the frame after the page shows another item.
WATCH_ITEMS = """
window.spans = [];
let pressed = 0, left = "";
const open = () => document.querySelector("#item article")?.dataset.item ?? "";
const press = ({ key, timeStamp }) => key === "Enter" && ([pressed, left] = [timeStamp, open()]);
addEventListener("keydown", press, true);
new MutationObserver(() => {
  if (!pressed || open() === left) return;
  const began = pressed;
  pressed = 0;
  requestAnimationFrame(() => setTimeout(() => window.spans.push(performance.now() - began)));
}).observe(document.getElementById("item"), { childList: true });
"""


def measure_queues(page: Page, server: Product, file: Path) -> Iterator[tuple[str, str, str]]:
    """Rows of the report: (what, measured, budget)."""
    rows = rows_of(file)
    uid = screen.log_run(server, "screen-million", {1: rows})
    seed.lengthen(server, uid, SAMPLES // len(rows) + 1)
    load.wait_until_idle(server)
    server.post("projects/bench/rubric/", {"questions": QUESTIONS, "base_version": 0}, "PUT")
    settings = {"project": "bench", "name": "many", "runs": [uid], "num_reviewers_per_item": 2}
    started = time.perf_counter()
    queue = server.post("queues/", {**settings, "selection": "random", "count": ITEMS}, seconds=1200)
    yield f"draw a queue of {ITEMS:,} from {SAMPLES:,} samples", f"{time.perf_counter() - started:.1f} s", ""
    url = f"{server.url}/queues/{queue['id']}/"
    for what, path in (("review page", "review/"), ("progress of its people", "")):
        times = [measure_request(page, url + path) for _ in range(8)]
        yield f"open its {what}", f"{statistics.median(times[1:]):.0f} ms, first {times[0]:.0f}", "<= 300 ms"
    yield "  the next item in the API", f"{measure_next(server, queue['id']):.1f} ms", "<= 50 ms"
    spans = measure_items(page, f"{url}review/")
    times_of_items = f"{screen.p95(spans):.0f} ms, median {statistics.median(spans):.0f}"
    yield "  Enter to the next item painted, p95", times_of_items, "<= 100 ms"


def measure_request(page: Page, url: str) -> float:
    started = time.perf_counter()
    response = page.request.get(url)
    assert response.ok, f"{response.status} {url}"
    return (time.perf_counter() - started) * 1000


def measure_next(server: Product, queue: int) -> float:
    """Median ms of the request for the next item, after the answer to the one before."""
    times = []
    for _ in range(15):
        started = time.perf_counter()
        item = server.post(f"queues/{queue}/next/", {})["item"]
        times.append((time.perf_counter() - started) * 1000)
        answers = {"correct": {"value": True}}
        server.post(f"queues/{queue}/items/{item['id']}/answers/", {"answers": answers}, "PUT")
    return statistics.median(times)


def measure_items(page: Page, url: str) -> list[float]:
    """ms of each item that is answered by keyboard."""
    page.goto(url)
    page.locator("#item article").wait_for()
    page.wait_for_load_state("networkidle")
    page.evaluate(WATCH_ITEMS)
    for done in range(1, KEYED_ITEMS + 1):
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        load.wait_until(lambda: page.evaluate("window.spans.length") >= done, pause=0.02)  # noqa: B023
        page.wait_for_timeout(READ_MS)
    return list(page.evaluate("window.spans"))
