"""What a person waits for, measured in Chromium: key to paint, charts, opening long runs, and what a page sends."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from scripts.bench import load, seed
from scripts.bench.client import rows_of
from tests.support.server import Product

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
# The page notes by itself when it was painted: `load`; `sight`, when the largest thing in sight was (web.dev/lcp);
# `seen` once every chart in sight has its canvas, `all` once all have. A driver that asks meanwhile puts its own script
# into the page, which takes longer than many a chart.
NOTE_PAINTS = """
window.painted = {};
const note = (name) => requestAnimationFrame(() => setTimeout(() => (window.painted[name] = performance.now())));
addEventListener("load", () => note("load"));
const largest = new PerformanceObserver((found) => (window.painted.sight = found.getEntries().at(-1).startTime));
largest.observe({ type: "largest-contentful-paint", buffered: true });
const boxes = document.getElementsByClassName("chart"), canvases = document.getElementsByTagName("canvas");
const drawn = (charts) => charts.every((one) => one.querySelector("canvas"));
const steps = [["seen", () => drawn([...boxes].filter((one) => one.getBoundingClientRect().top < innerHeight))],
  ["all", () => drawn([...boxes])]];
let count = 0;
function look() {
  if (boxes.length && canvases.length !== count) {
    count = canvases.length;
    while (steps.length && steps[0][1]()) note(steps.shift()[0]);
  }
  if (steps.length) requestAnimationFrame(look);
}
addEventListener("DOMContentLoaded", () => document.querySelector("[data-charts]") && look());
"""
IDLE = 0.1  # of one core


@contextmanager
def chromium(server: Product) -> Iterator[Page]:
    """A page of a signed-in person."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        server.sign_in(page)
        page.goto(server.url)
        page.add_init_script(f"if (location.protocol !== 'about:') {{ {NOTE_PAINTS} }}")
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


def quiet(server: Product) -> None:
    """Returns once the server has nothing left to do: what it folds and indexes later would be timed with the page."""
    load.until(lambda: busy(server, 2.0) < IDLE, pause=0.1)


def busy(server: Product, seconds: float) -> float:
    """How much of a core the server's processes use."""
    before = spent(server)
    time.sleep(seconds)
    return (spent(server) - before) / seconds


def spent(server: Product) -> float:
    """CPU seconds of the server's processes so far."""
    ticks = 0
    for pid in server.pids():
        try:
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(told[11]) + int(told[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def key_to_paint(page: Page, server: Product, uid: str, pause: int, keys: int = 40, query: str = "") -> list[float]:
    """ms of each `j`, pressed `pause` ms after the one before is painted; somebody looked at the page before."""
    page.goto(f"{server.url}/runs/{uid}/steps/latest/{query}")
    page.locator("#sample article").wait_for()
    page.wait_for_load_state("networkidle")
    page.evaluate(WATCH_KEYS)
    for done in range(1, keys + 1):
        page.keyboard.press("j")
        page.wait_for_function("(done) => window.spans.length >= done", arg=done)
        page.wait_for_timeout(pause)
    return list(page.evaluate("window.spans"))


def p95(spans: list[float]) -> float:
    return statistics.quantiles(spans, n=20)[-1]


def opened(page: Page, addresses: list[str], times: int = 7) -> list[dict[str, float]]:
    """Median ms from the start of the navigation until what is in `sight` is painted, and to the first paint after
    `load`, of each address in turn."""
    spans: list[list[dict[str, float]]] = [[] for _ in addresses]
    for turn in range(times):
        for address, found in zip(addresses, spans, strict=True):
            found.append(painted(page, f"{address}?time={turn}", "load", 600))
    return [{what: statistics.median(one[what] for one in found) for what in ("sight", "load")} for found in spans]


def painted(page: Page, address: str, last: str, pause: int) -> dict[str, float]:
    """When the page was painted, ms from the start of the navigation. Nobody was at this address before, so that the
    server answers it. It is left alone for `pause` ms."""
    page.goto(address, wait_until="commit")
    page.wait_for_timeout(pause)
    page.wait_for_function("(last) => last in window.painted", arg=last)
    return dict(page.evaluate("window.painted"))


def charts(page: Page, server: Product, uids: list[str]) -> tuple[float, float]:
    """Median ms from opening the overview with all runs laid over each other until the charts in sight are painted, and
    until all are."""
    address = f"{server.url}/runs/{uids[0]}/?runs={','.join(uids[1:])}"
    painted(page, address, "all", 2000)
    found = [painted(page, f"{address}&time={turn}", "all", 2000) for turn in range(7)]
    return statistics.median(one["seen"] for one in found), statistics.median(one["all"] for one in found)


def sent(page: Page, server: Product, path: str, language: str) -> float:
    """KB of scripts and styles as they travel to somebody who was never here."""
    browser = page.context.browser
    assert browser is not None
    fresh = browser.new_context(storage_state=page.context.storage_state())
    fresh.add_cookies([{"name": "language", "value": language, "url": server.url}])
    visit = fresh.new_page()
    visit.goto(server.url + path)
    visit.wait_for_load_state("networkidle")
    found = float(visit.evaluate(SENT)) / 1000
    fresh.close()
    return found


def in_turn(rows: list[dict[str, Any]], steps: int = 10) -> dict[int, list[dict[str, Any]]]:
    """Steps of 8 samples, each of another prompt."""
    return {step: rows[8 * step - 8 : 8 * step] for step in range(1, steps + 1)}


def longest(row: dict[str, Any], size: int = 2_000_000) -> dict[str, Any]:
    """The sample with a response of `size` characters in lines that differ."""
    lines = (f"{at}. and so we go on with the number {at * 7919 % 1_000_003}\n" for at in range(size // 30))
    return {**row, "response": "".join(lines)[:size]}


def of_tokens(row: dict[str, Any], count: int = 100_000) -> dict[str, Any]:
    """The sample with a response of `count` tokens, their ids and log-probs."""
    words = (f"w{at * 7919 % 50_000}{' ' if at % 12 else chr(10)}" for at in range(count))
    ids, logprobs = [at * 7919 % 50_000 for at in range(count)], [-(at * 31 % 997) / 200 for at in range(count)]
    return {**row, "response": "".join(words), "response_ids": ids, "logprobs": logprobs}


def measured(server: Product, file: Path, steps: int) -> Iterator[tuple[str, str, str]]:
    """Rows of the report: what, measured, budget."""
    rows = rows_of(file)
    small = logged(server, "screen-56", {1: rows[:56]})
    large = logged(server, "screen-long", {1: long_rows(file, 1024)})
    few = logged(server, "screen-few", in_turn(rows))
    many = logged(server, "screen-many", in_turn(rows[80:]))
    seed.lengthen(server, many, steps)
    long = logged(server, "screen-2mb", {1: [longest(row) for row in rows[160:168]]})
    tokens = logged(server, "screen-tokens", {1: [of_tokens(row) for row in rows[168:176]]})
    drawn = [logged_metrics(server, number) for number in range(3)]
    quiet(server)
    with chromium(server) as page:
        for what, uid, budget in (("56", small, "<= 50 ms"), ("1,024 x 8,000 tokens", large, "<= 150 ms")):
            yield f"key to paint, p95, step of {what}", f"{p95(key_to_paint(page, server, uid, 150)):.0f} ms", budget
            yield "  the key held down", f"{p95(key_to_paint(page, server, uid, 0)):.0f} ms", budget
        for what, path in (("overview", ""), ("step", "steps/latest/")):
            found = opened(page, [f"{server.url}/runs/{uid}/{path}" for uid in (few, many)])
            short, most = (one["load"] for one in found)
            yield f"open {what} of {steps:,} steps", f"{most:.0f} ms, {most / short:.2f} x of 10 steps", "<= 1.3 x"
        spans = key_to_paint(page, server, long, 500, keys=7)
        yield "open a sample of 2 MB from the table", f"{statistics.median(spans):.0f} ms", "<= 200 ms"
        one = server.get(f"samples/?run={long}&split=train&step=1")["results"][0]["id"]
        found = opened(page, [f"{server.url}/{path}/" for path in (f"samples/{one}", f"runs/{long}/steps/1")])
        for span, what in zip(found, ("by its link", "with the table of its step"), strict=True):
            yield f"  {what}, in sight", f"{span['sight']:.0f} ms", "<= 250 ms" if what == "by its link" else ""
            yield "    all of it", f"{span['load']:.0f} ms", ""
        for what, query in (("100,000 tokens", ""), ("100,000 tokens, by token", "?view=tokens")):
            spans = key_to_paint(page, server, tokens, 500, keys=7, query=query)
            yield f"open a sample of {what}", f"{statistics.median(spans):.0f} ms", "<= 200 ms"
        seen, every = charts(page, server, drawn)
        yield "48 charts of 3 runs x 10,000 steps, in sight", f"{seen:.0f} ms", "<= 300 ms"
        yield "  all of them", f"{every:.0f} ms", ""
        for what, path in (("runs", "/"), ("overview", f"/runs/{few}/"), ("step", f"/runs/{few}/steps/latest/")):
            english, chinese = (sent(page, server, path, language) for language in ("en", "zh-hans"))
            yield f"scripts and styles of {what}", f"{english:.1f} KB, in Chinese {chinese:.1f}", "<= 60 KB"


def logged_metrics(server: Product, number: int, steps: int = 10_000) -> str:
    """The uid of a run with 48 metrics of `steps` points."""
    run = load.open_run(server, f"screen-charts-{number}")
    for step in range(1, steps + 1):
        run.log({f"group{k % 8}/metric{k}": (step * (k + 1) % 997) / 997 for k in range(48)}, step=step)
    run.finish(timeout=300)
    load.until(lambda: load.points(server, run.uid) >= steps)
    return str(run.uid)
