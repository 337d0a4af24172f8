"""Waiting times of users, measured in Chromium: key to paint, charts, opening long runs, and the size of pages."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from scripts.bench import load, seed
from scripts.bench.client import rows_of
from tests.support.chromium import BROWSERS, SHELL, find_launch_options
from tests.support.server import Product

LONG_WORDS = "so the sum of these is larger than the one before it and we go on with the next of them " * 400

# From the key press to the frame after the pane shows another sample.
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
TRANSFERRED_BYTES = """performance.getEntriesByType("resource").filter((file) => /[.](js|css)([?]|$)/.test(file.name))
  .reduce((sum, file) => sum + file.encodedBodySize, 0)"""
# The page records when it was painted: `load`; `sight`, the largest visible element (web.dev/lcp); `seen`, when every
# visible chart has its canvas; `all`, when all have. Polling from Playwright would run a script in the page, which
# takes longer than a chart.
RECORD_PAINTS = """
window.painted = {};
const record = (name) => requestAnimationFrame(() => setTimeout(() => (window.painted[name] = performance.now())));
addEventListener("load", () => record("load"));
const largest = new PerformanceObserver((list) => (window.painted.sight = list.getEntries().at(-1).startTime));
largest.observe({ type: "largest-contentful-paint", buffered: true });
let boxes, canvases; // of the charts of the page, without the large view
const drawn = (charts) => charts.every((chart) => chart.querySelector("canvas"));
const steps = [["seen", () => drawn([...boxes].filter((chart) => chart.getBoundingClientRect().top < innerHeight))],
  ["all", () => drawn([...boxes])]];
let count = 0;
function check() {
  if (boxes.length && canvases.length !== count) {
    count = canvases.length;
    while (steps.length && steps[0][1]()) record(steps.shift()[0]);
  }
  if (steps.length) requestAnimationFrame(check);
}
addEventListener("DOMContentLoaded", () => {
  const charts = document.getElementById("charts");
  boxes = charts?.getElementsByClassName("chart");
  canvases = charts?.getElementsByTagName("canvas");
  if (charts) check();
});
"""


@contextmanager
def open_chromium(server: Product) -> Iterator[Page]:
    """A page with a signed-in user."""
    with sync_playwright() as playwright:
        # People have a whole browser. The shell of the tests paints sooner.
        browser = playwright.chromium.launch(**find_launch_options((*BROWSERS, SHELL)))
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        server.sign_in(page)
        page.goto(server.url)
        record_paints(page)
        yield page
        browser.close()


def record_paints(page: Page) -> None:
    """All pages that it opens from now on record when they are painted."""
    page.add_init_script(f"if (location.protocol !== 'about:') {{ {RECORD_PAINTS} }}")


@contextmanager
def open_empty_browser(page: Page) -> Iterator[Page]:
    """A page of the same person in a browser whose cache is empty."""
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context(storage_state=page.context.storage_state(), viewport=page.viewport_size)
    yield context.new_page()
    context.close()


def make_long_rows(file: Path, count: int) -> list[dict[str, Any]]:
    """`count` samples of about 8,000 tokens."""
    rows = [dict(row) for row in rows_of(file)[:count]]
    for index, row in enumerate(rows):
        row["response"] = f"{index}. {LONG_WORDS[: 32_000 - index]}\n{row['response'][-200:]}"
    return rows


def log_run(server: Product, name: str, steps: dict[int, list[dict[str, Any]]]) -> str:
    """The uid of a run with these samples. Returns when all of them are indexed."""
    run = load.open_run(server, name)
    for step, rows in steps.items():
        run.log_samples(rows, step=step)
    load.wait_until(lambda: load.count_indexed_dumps(server, run.uid) >= len(steps))
    run.finish()
    return str(run.uid)


def measure_keys(page: Page, server: Product, uid: str, pause: int, keys: int = 40, query: str = "") -> list[float]:
    """ms of each key `j`, pressed `pause` ms after the last paint, on a page that was opened before."""
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


def measure_opening(page: Page, urls: list[str], times: int = 7) -> list[dict[str, float]]:
    """Median ms from the start of the navigation until the visible part (`sight`) is painted, and until the first paint
    after `load`, for each URL; and that paint at the `first` opening."""
    spans: list[list[dict[str, float]]] = [[] for _ in urls]
    for turn in range(times):
        for url, times_of_url in zip(urls, spans, strict=True):
            times_of_url.append(measure_paints(page, f"{url}?time={turn}", "load", 600))
    return [
        {what: statistics.median(span[what] for span in row) for what in ("sight", "load")} | {"first": row[0]["load"]}
        for row in spans
    ]


def measure_paints(page: Page, url: str, last: str, pause: int) -> dict[str, float]:
    """ms from the start of the navigation to each paint. The URL must be new, so that it is not in the browser's cache.
    Nothing is done with the page for `pause` ms."""
    page.goto(url, wait_until="commit")
    page.wait_for_timeout(pause)
    page.wait_for_function("(last) => last in window.painted", arg=last)
    return dict(page.evaluate("window.painted"))


def measure_charts(page: Page, server: Product, uids: list[str], other: str) -> list[dict[str, float]]:
    """ms from opening the overview with all runs in the same charts until the visible charts are painted (`seen`), and
    until `all` are, for each of some openings. The browser has the scripts, from the page of the `other` run, but
    none of these charts; the server has computed them from the second opening on."""
    url, paints = f"{server.url}/runs/{uids[0]}/?runs={','.join(uids[1:])}", []
    for _ in range(8):
        with open_empty_browser(page) as visit:
            visit.goto(f"{server.url}/runs/{other}/")
            visit.wait_for_load_state("networkidle")
            record_paints(visit)
            paints.append(measure_paints(visit, url, "all", 2000))
    return paints


def measure_size(page: Page, server: Product, path: str, language: str) -> float:
    """KB of compressed scripts and styles for a browser with an empty cache."""
    with open_empty_browser(page) as visit:
        visit.context.add_cookies([{"name": "language", "value": language, "url": server.url}])
        visit.goto(server.url + path)
        visit.wait_for_load_state("networkidle")
        return float(visit.evaluate(TRANSFERRED_BYTES)) / 1000


def split_into_steps(rows: list[dict[str, Any]], steps: int = 10) -> dict[int, list[dict[str, Any]]]:
    """Steps of 8 samples, each of another prompt."""
    return {step: rows[8 * step - 8 : 8 * step] for step in range(1, steps + 1)}


def make_longest(row: dict[str, Any], size: int = 2_000_000) -> dict[str, Any]:
    """The sample with a response of `size` characters in lines that differ."""
    lines = (f"{index}. and so we go on with the number {index * 7919 % 1_000_003}\n" for index in range(size // 30))
    return {**row, "response": "".join(lines)[:size]}


def make_looped(row: dict[str, Any], size: int = 2_000_000) -> dict[str, Any]:
    """The sample with a response of `size` characters that repeats lines in several scripts and directions."""
    lines = "所以答案是 42。so the answer is 42\nпоэтому ответ 42 🙂 إذن الجواب ٤٢\nなので答えは 42 तो उत्तर ४२ है\n"
    return {**row, "response": (lines * (size // len(lines) + 1))[:size]}


def add_tokens(row: dict[str, Any], count: int = 100_000) -> dict[str, Any]:
    """The sample with a response of `count` tokens, their ids and log-probs."""
    words = (f"w{index * 7919 % 50_000}{' ' if index % 12 else chr(10)}" for index in range(count))
    ids = [index * 7919 % 50_000 for index in range(count)]
    logprobs = [-(index * 31 % 997) / 200 for index in range(count)]
    return {**row, "response": "".join(words), "response_ids": ids, "logprobs": logprobs}


def measure_pages(page: Page, server: Product, file: Path, steps: int) -> Iterator[tuple[str, str, str]]:
    """Rows of the report: (what, measured, budget)."""
    rows = rows_of(file)
    small = log_run(server, "screen-56", {1: rows[:56]})
    large = log_run(server, "screen-long", {1: make_long_rows(file, 1024)})
    few = log_run(server, "screen-few", split_into_steps(rows))
    many = log_run(server, "screen-many", split_into_steps(rows[80:]))
    seed.lengthen(server, many, steps)
    long = log_run(server, "screen-2mb", {1: [make_longest(row) for row in rows[160:168]]})
    looped = log_run(server, "screen-looped", {1: [make_looped(row) for row in rows[160:168]]})
    tokens = log_run(server, "screen-tokens", {1: [add_tokens(row) for row in rows[168:176]]})
    charts = [log_metrics(server, number) for number in range(3)]
    load.wait_until_idle(server)
    for what, uid, budget in (("56", small, "<= 40 ms"), ("1,024 x 8,000 tokens", large, "<= 150 ms")):
        yield f"key to paint, p95, step of {what}", f"{p95(measure_keys(page, server, uid, 150)):.0f} ms", budget
        yield "  pressed again after each paint", f"{p95(measure_keys(page, server, uid, 0)):.0f} ms", budget
    for what, path in (("overview", ""), ("step", "steps/latest/")):
        openings = measure_opening(page, [f"{server.url}/runs/{uid}/{path}" for uid in (few, many)])
        few_ms, load_ms = (opening["load"] for opening in openings)
        ratio = f"{load_ms / few_ms:.2f} x of 10 steps"
        yield (
            f"open {what} of {steps:,} steps",
            f"{load_ms:.0f} ms, {ratio}, first {openings[1]['first']:.0f}",
            "<= 1.2 x",
        )
    spans = measure_keys(page, server, long, 500, keys=7)
    yield "open a sample of 2 MB from the table", f"{statistics.median(spans):.0f} ms", "<= 160 ms"
    sample = server.get(f"samples/?run={long}&split=train&step=1")["results"][0]["id"]
    openings = measure_opening(
        page, [f"{server.url}/{path}/" for path in (f"samples/{sample}", f"runs/{long}/steps/1")]
    )
    for span, what in zip(openings, ("by its link", "with the table of its step"), strict=True):
        yield f"  {what}, visible part", f"{span['sight']:.0f} ms", "<= 250 ms" if what == "by its link" else ""
        yield "    all", f"{span['load']:.0f} ms, first {span['first']:.0f}", ""
    sample = server.get(f"samples/?run={looped}&split=train&step=1")["results"][0]["id"]
    (span,) = measure_opening(page, [f"{server.url}/samples/{sample}/"])
    ratio = f"{span['load'] / openings[0]['load']:.2f} x of one without a loop"
    looped_ms = f"{span['load']:.0f} ms, {ratio}, first {span['first']:.0f}"
    yield "open a looped sample of 2 MB, mixed scripts", looped_ms, "<= 500 ms"
    for what, query in (("100,000 tokens", ""), ("100,000 tokens, by token", "?view=tokens")):
        spans = measure_keys(page, server, tokens, 500, keys=7, query=query)
        yield f"open a sample of {what}", f"{statistics.median(spans):.0f} ms", "<= 200 ms"
    paints = measure_charts(page, server, charts, few)
    for what, paint, budget in (
        ("48 charts of 3 runs x 10,000 steps, visible", "seen", "<= 200 ms"),
        ("  all", "all", ""),
    ):
        first, *times = (span[paint] for span in paints)
        yield what, f"{statistics.median(times):.0f} ms, first {first:.0f}", budget
    for what, path in (("runs", "/"), ("overview", f"/runs/{few}/"), ("step", f"/runs/{few}/steps/latest/")):
        english, chinese = (measure_size(page, server, path, language) for language in ("en", "zh-hans"))
        yield f"scripts and styles of {what}", f"{english:.1f} KB, in Chinese {chinese:.1f}", "<= 60 KB"


def log_metrics(server: Product, number: int, steps: int = 10_000) -> str:
    """The uid of a run with 48 metrics of `steps` points."""
    run = load.open_run(server, f"screen-charts-{number}")
    for step in range(1, steps + 1):
        run.log({f"group{k % 8}/metric{k}": (step * (k + 1) % 997) / 997 for k in range(48)}, step=step)
    run.finish(timeout=300)
    load.wait_until(lambda: load.count_points(server, run.uid) >= steps)
    return str(run.uid)
