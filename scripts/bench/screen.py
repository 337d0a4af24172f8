"""What a person waits for, measured in Chromium: key to paint, charts, opening long runs, and what a page sends."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from scripts.bench import load
from scripts.bench.client import rows_of
from tests.product import Product

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LONG_WORDS = "so the sum of these is larger than the one before it and we go on with the next of them " * 400

# From the key to the frame after the one in which the pane shows another sample.
WATCH_KEYS = """
window.spans = [];
let pressed = 0, shown = "";
const now = () => document.querySelector("#sample article")?.dataset.id ?? "";
addEventListener("keydown", (event) => { pressed = event.timeStamp; shown = now(); }, true);
new MutationObserver(() => {
  if (!pressed || now() === shown) return;
  const began = pressed;
  pressed = 0;
  requestAnimationFrame(() => setTimeout(() => window.spans.push(performance.now() - began)));
}).observe(document.getElementById("sample"), { subtree: true, childList: true, attributes: true });
"""
SENT = """performance.getEntriesByType("resource").filter((one) => /[.](js|css)([?]|$)/.test(one.name))
  .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
DRAWN = """(count) => [...document.querySelectorAll("canvas")].filter((one) => one.width > 0).length >= count"""


@contextmanager
def chromium(server: Product) -> Iterator[Page]:
    """A page of a signed-in person."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(server.sign_in_link())
        page.goto(server.url)
        yield page
        browser.close()


def long_rows(file: Path, count: int) -> list[dict[str, Any]]:
    """`count` samples of about 8,000 tokens."""
    rows = [dict(row) for row in rows_of(file)[:count]]
    for at, row in enumerate(rows):
        row["response"] = f"{at}. {LONG_WORDS[: 32_000 - at]}\n{row['response'][-200:]}"
    return rows


def logged(server: Product, name: str, steps: dict[int, list[dict[str, Any]]]) -> str:
    """The uid of a run with these samples, once all of them are indexed."""
    run = load.open_run(server, name)
    for step, rows in steps.items():
        run.log_samples(rows, step=step)
    load.until(lambda: load.indexed(server, run.uid) >= len(steps))
    return str(run.uid)


def key_to_paint(page: Page, server: Product, uid: str, keys: int = 40) -> float:
    """p95 in ms of `j`, one after the other."""
    page.goto(f"{server.url}/runs/{uid}/steps/latest/")
    page.locator("#sample article").wait_for()
    page.evaluate(WATCH_KEYS)
    for done in range(1, keys + 1):
        page.keyboard.press("j")
        page.wait_for_function("(done) => window.spans.length >= done", arg=done)
    return statistics.quantiles(page.evaluate("window.spans"), n=20)[-1]


def opened(page: Page, address: str, times: int = 7) -> float:
    """Median ms from the start of the navigation to its `load`."""
    spans = []
    for _ in range(times):
        page.goto(address, wait_until="load")
        spans.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    return statistics.median(spans)


def charts(page: Page, server: Product, uids: list[str], count: int = 48) -> float:
    """Median ms from opening the overview with all runs laid over each other until that many charts are drawn."""
    others = ",".join(uids[1:])
    spans = []
    for _ in range(5):
        page.goto(f"{server.url}/runs/{uids[0]}/?runs={others}", wait_until="commit")
        page.wait_for_function(DRAWN, arg=count)
        spans.append(page.evaluate("new Promise((done) => requestAnimationFrame(() => done(performance.now())))"))
    return statistics.median(spans)


def sent(page: Page, server: Product, path: str) -> float:
    """KB of scripts and styles as they travel."""
    page.goto(server.url + path)
    page.wait_for_load_state("networkidle")
    return float(page.evaluate(SENT)) / 1000


def measured(server: Product, file: Path, steps: int) -> Iterator[tuple[str, str, str]]:
    """Rows of the report: what, measured, budget."""
    rows = rows_of(file)
    small = logged(server, "screen-56", {1: rows[:56]})
    large = logged(server, "screen-long", {1: long_rows(file, 1024)})
    few = logged(server, "screen-few", dict.fromkeys(range(1, 11), rows[:8]))
    many = logged(server, "screen-many", dict.fromkeys(range(1, steps + 1), rows[:8]))
    drawn = [logged_metrics(server, number) for number in range(3)]
    with chromium(server) as page:
        yield "key to paint, p95, step of 56", f"{key_to_paint(page, server, small):.0f} ms", "<= 50 ms"
        yield "  step of 1,024 x 8,000 tokens", f"{key_to_paint(page, server, large):.0f} ms", "<= 150 ms"
        for what, path in (("overview", ""), ("step", "steps/latest/")):
            short, long = (opened(page, f"{server.url}/runs/{uid}/{path}") for uid in (few, many))
            yield f"open {what} of {steps:,} steps", f"{long:.0f} ms, {long / short:.2f} x of 10 steps", "<= 1.3 x"
        yield "48 charts of 3 runs x 10,000 steps", f"{charts(page, server, drawn):.0f} ms", "<= 300 ms"
        for what, path in (("runs", "/"), ("overview", f"/runs/{few}/"), ("step", f"/runs/{few}/steps/latest/")):
            yield f"scripts and styles of {what}", f"{sent(page, server, path):.1f} KB", "<= 60 KB"


def logged_metrics(server: Product, number: int, steps: int = 10_000) -> str:
    """The uid of a run with 48 metrics of `steps` points."""
    run = load.open_run(server, f"screen-charts-{number}")
    for step in range(1, steps + 1):
        run.log({f"group{k % 8}/metric{k}": (step * (k + 1) % 997) / 997 for k in range(48)}, step=step)
    run.finish(timeout=300)
    load.until(lambda: load.points(server, run.uid) >= steps)
    return str(run.uid)
