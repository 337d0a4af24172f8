"""Screenshots of the main pages with real data: `python -m scripts.screens [--python PYTHON_WITH_TORCH] [--steps 120]`.

Starts the product on a temporary folder, runs two small trainings, imports real dumps, and saves each page in both
themes and languages with Chromium: `docs/screens/{page}_{light,dark}[_zh-hans].webp`. A second product with the
built-in demo shows the other pages; they need no torch. `--language en` saves only one language, `--only step` one
page, `--size 800x900 --into FOLDER` another size in another folder.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from scripts.screens.data import MANY, MASKED, ROOT, Deck, fill_product
from scripts.screens.demo import DEMO_RUN, fill_demo
from tests.support.chromium import find_launch_options
from tests.support.server import Product

LANGUAGES = ("en", "zh-hans")
THEMES = ("light", "dark")
MAX_BYTES = 90_000  # of a file
QUALITIES = (88, 80, 70, 60, 50, 40, 30, 20)


def build_paths(deck: Deck) -> dict[str, str]:
    """{page: path}."""
    main, other, many = deck.main, deck.other, deck.runs[MANY]
    worst = deck.list_wrong_samples(many)[0]
    return {
        "runs": "/",
        "overview": f"/runs/{main}/?runs={other}&smooth=0.6",
        "step": f"/runs/{many}/steps/latest/?sort=-score",
        "sample": f"/samples/{worst['id']}/",
        "group": f"/runs/{many}/groups/{worst['step']}/{quote(worst['group'])}/?diff=1",
        "compare": f"/compare/?of={main}@latest,{other}@latest&split=eval&only=A",
        "live": "/live/",
        "pins": "/pins/?project=math",
        "selected": f"/pins/?project=math&plan={MASKED}",
        "guidance": "/settings/demo/guidance/",
        "findings": f"/findings/{deck.product.get('findings/')['results'][0]['id']}/",
    }


def build_demo_paths(shared: str) -> dict[str, str]:
    """{page: path} of pages of the built-in demo."""
    run = f"/runs/{DEMO_RUN}"
    return {
        "large_chart": f"{run}/?runs={DEMO_RUN}-any&smooth=0.6",
        "timeline": f"{run}/timeline/?step=168",
        "context": f"{run}/context/?against={DEMO_RUN}-any",
        "search": "/search/?project=demo&q=is:answer-mismatch",
        "disk": "/disk/?project=demo",
        "retention": "/settings/demo/retention/",
        "audit": "/audit/?project=demo",
        "shared": shared,
    }


def open_page(page: Page, name: str, url: str) -> None:
    """Opens the page, on the step page with a sample next to the list, on that of a large chart the chart, on that of
    selected samples their part."""
    page.goto(url)
    page.wait_for_load_state("networkidle")
    if name == "step" and page.viewport_size and page.viewport_size["width"] > 1100:
        page.locator("#rows tr[data-id]").nth(5).click()
        page.wait_for_load_state("networkidle")
    if name == "large_chart":
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.locator("#large").wait_for()
    if name == "selected":
        page.locator(".plan-selection").evaluate("part => part.scrollIntoView()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)


def take_screenshot(page: Page) -> bytes:
    """WebP of the best quality that fits into `MAX_BYTES`."""
    session = page.context.new_cdp_session(page)
    for quality in QUALITIES:
        params = {"format": "webp", "quality": quality}
        image = base64.b64decode(session.send("Page.captureScreenshot", params)["data"])
        if len(image) <= MAX_BYTES:
            break
    session.detach()
    return image


def save_screenshots(context: BrowserContext, server: str, paths: dict[str, str], args: argparse.Namespace) -> None:
    width, _, height = args.size.partition("x")
    page = context.new_page()
    page.set_viewport_size({"width": int(width), "height": int(height)})
    for language in args.language or LANGUAGES:
        context.add_cookies([{"name": "language", "value": language, "url": server}])
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            for name, path in paths.items():
                if args.only and name not in args.only:
                    continue
                open_page(page, name, server + path)
                ending = "" if language == "en" else f"_{language}"
                file = args.into / f"{name}_{theme}{ending}.webp"
                file.write_bytes(take_screenshot(page))
                print(f"{file.name}: {file.stat().st_size:,} bytes")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    parser.add_argument("--language", action="append", choices=LANGUAGES, help="default: both")
    parser.add_argument("--only", action="append", metavar="PAGE")
    parser.add_argument("--size", default="1440x900", metavar="WIDTHxHEIGHT")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "screens", metavar="FOLDER")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    args.into.mkdir(parents=True, exist_ok=True)
    os.environ.pop("REDIS_URL", None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**find_launch_options())
        if not args.only or not set(args.only) <= build_demo_paths("").keys():
            with Product() as product:
                deck = fill_product(product, args.python, args.steps)
                save_screenshots(sign_in(browser, product), product.url, build_paths(deck), args)
        if not args.only or set(args.only) & build_demo_paths("").keys():
            with Product() as product:
                context = sign_in(browser, product)
                paths = build_demo_paths(fill_demo(product, context.new_page()))
                save_screenshots(context, product.url, paths, args)
        browser.close()


def sign_in(browser: Browser, product: Product) -> BrowserContext:
    context = browser.new_context(locale="en")
    product.sign_in(context.new_page())
    context.new_page().goto(product.url)  # so that the greeting of the first sign-in is not shown again
    return context


if __name__ == "__main__":
    main()
