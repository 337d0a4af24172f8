"""The main pages as pictures, of real data: `python -m scripts.screens [--python PYTHON_WITH_TORCH] [--steps 120]`.

Starts the whole product on a throw-away folder, lets two small trainings run, imports real dumps, and takes each page
with Chromium in both themes and languages: `docs/screens/{page}_{light,dark}[_zh-hans].webp`. `--language en` takes one
language only, `--only step` one page, `--size 800x900 --into FOLDER` other sizes to another place.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import BrowserContext, Page, sync_playwright

from scripts.screens.data import MANY, ROOT, Deck, filled
from tests.support.server import Product

LANGUAGES = ("en", "zh-hans")
THEMES = ("light", "dark")
BIGGEST = 90_000  # bytes of a picture
QUALITIES = (88, 80, 70, 60, 50, 40, 30, 20)


def addresses(deck: Deck) -> dict[str, str]:
    """{page: its address}."""
    chief, other, many = deck.chief, deck.other, deck.runs[MANY]
    worst = deck.wrong(many)[0]
    return {
        "runs": "/",
        "overview": f"/runs/{chief}/?runs={other}&smooth=0.6",
        "step": f"/runs/{many}/steps/latest/?sort=-score",
        "sample": f"/samples/{worst['id']}/",
        "group": f"/runs/{many}/groups/{worst['step']}/{quote(worst['group'])}/?diff=1",
        "compare": f"/compare/?of={chief}@latest,{other}@latest&split=eval&only=A",
        "live": "/live/",
        "pins": "/pins/?project=math",
        "findings": f"/findings/{deck.product.get('findings/')['results'][0]['id']}/",
    }


def opened(page: Page, name: str, address: str) -> None:
    """The page as a person has it before them: on the step page with a sample beside the list."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    if name == "step" and (page.viewport_size or {})["width"] > 1100:
        page.locator("#rows tr[data-id]").nth(5).click()
        page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)


def picture(page: Page) -> bytes:
    """WebP, as good as fits into `BIGGEST`."""
    session = page.context.new_cdp_session(page)
    for quality in QUALITIES:
        asked = {"format": "webp", "quality": quality}
        taken = base64.b64decode(session.send("Page.captureScreenshot", asked)["data"])
        if len(taken) <= BIGGEST:
            break
    session.detach()
    return taken


def take(context: BrowserContext, deck: Deck, told: argparse.Namespace, say: Callable[[str], None] = print) -> None:
    width, _, height = told.size.partition("x")
    page = context.new_page()
    page.set_viewport_size({"width": int(width), "height": int(height)})
    for language in told.language or LANGUAGES:
        context.add_cookies([{"name": "language", "value": language, "url": deck.product.url}])
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            for name, path in addresses(deck).items():
                if told.only and name not in told.only:
                    continue
                opened(page, name, deck.product.url + path)
                ending = "" if language == "en" else f"_{language}"
                file = told.into / f"{name}_{theme}{ending}.webp"
                file.write_bytes(picture(page))
                say(f"{file.name}: {file.stat().st_size:,} bytes")


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    parser.add_argument("--language", action="append", choices=LANGUAGES, help="default: both")
    parser.add_argument("--only", action="append", metavar="PAGE")
    parser.add_argument("--size", default="1440x900", metavar="WIDTHxHEIGHT")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "screens", metavar="FOLDER")
    return parser.parse_args()


def main() -> None:
    told = asked()
    told.into.mkdir(parents=True, exist_ok=True)
    os.environ.pop("REDIS_URL", None)
    with Product() as product, sync_playwright() as playwright:
        deck = filled(product, told.python, told.steps)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(locale="en")
        product.sign_in(context.new_page())
        context.new_page().goto(product.url)  # takes the greeting of the first sign-in away
        take(context, deck, told)
        browser.close()


if __name__ == "__main__":
    main()
