"""The built-in demo with what its newer pages show: a retention policy with a dry run, and a shared finding."""

from __future__ import annotations

import time

from playwright.sync_api import Page

from tests.support.server import Product

DEMO_RUN = "demo-1-tiny-grpo"


def fill_demo(product: Product, page: Page) -> str:
    """Returns the path of the shared finding."""
    page.goto(product.url)
    page.locator("form[action$='/demo/'] button").first.click()
    page.locator("table.runs", has_text="tiny-grpo-replay").wait_for(timeout=120_000)
    finding = product.get("findings/")["results"][0]["id"]
    exhibit = {"run": DEMO_RUN, "runs": [f"{DEMO_RUN}-any"], "names": ["critic/score/mean"], "words": "Both graders."}
    product.post(f"findings/{finding}/exhibits/", exhibit)
    product.post("projects/demo/retention/", {"train": "every", "every": 4}, method="PATCH")
    page.goto(f"{product.url}/settings/demo/retention/")
    page.locator("[data-key=r]").click()
    page.wait_for_load_state("networkidle")
    wait_for_disk_usage(product, page)
    page.goto(f"{product.url}/share/?finding={finding}")
    page.locator("main form button").last.click()
    return page.locator(".secret pre").inner_text().removeprefix(product.url)


def wait_for_disk_usage(product: Product, page: Page) -> None:
    """A worker measures each run some time after its last change."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        page.goto(f"{product.url}/disk/?project=demo")
        if page.locator("table.numbers").last.locator("tbody tr").count() == 3:
            return
        time.sleep(2)
    raise SystemExit("The demo was not measured within five minutes")
