"""The README's pictures, of real data: `python -m scripts.screens [--python PYTHON_WITH_TORCH] [--steps 150]`.

Starts the whole product on a throw-away folder, imports a small real dump, lets the demo train beside it, and takes
`docs/screens/{runs,overview,step}_{light,dark}.png` with Chromium. `--size 800x900:FOLDER` takes further ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.product import Product

ROOT = Path(__file__).parent.parent
DUMP = ROOT / "tests" / "data" / "verl_jsonl" / "v0"


def fill(product: Product, python: str, steps: int) -> dict[str, str]:
    """Two runs; gives {name: uid}."""
    env = {**product.environ, "PYTHONPATH": str(ROOT)}
    demo = [python, str(ROOT / "examples" / "tiny_grpo.py"), "--steps", str(steps), "--warm-up", "300"]
    training = subprocess.Popen(demo, env=env)
    imported = product.command("import", str(DUMP), "--project", "math", "--run", "many-languages")
    assert imported.wait(120) == 0 and training.wait(900) == 0
    return {run["name"]: run["id"] for run in product.get("runs/")["results"]}


def take(page: Page, product: Product, runs: dict[str, str], into: Path, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    demo, read = (f"/runs/{runs[name]}" for name in ("tiny-grpo", "many-languages"))
    pages = {"runs": "/", "overview": f"{demo}/", "step": f"{read}/steps/latest/?sort=-score"}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for name, path in pages.items():
            page.goto(product.url + path)
            page.wait_for_load_state("networkidle")
            if name == "step" and size[0] > 1100:
                page.locator("#rows tr[data-id]").nth(5).click()
                page.wait_for_load_state("networkidle")
            page.mouse.move(0, 0)
            page.wait_for_timeout(300)
            page.screenshot(path=into / f"{name}_{theme}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--size", action="append", help="WIDTHxHEIGHT:FOLDER, besides the README's own")
    told = parser.parse_args()
    sizes = [((1440, 900), ROOT / "docs" / "screens")]
    for size, _, folder in (one.partition(":") for one in told.size or ()):
        width, _, height = size.partition("x")
        sizes.append(((int(width), int(height)), Path(folder)))
    os.environ.pop("REDIS_URL", None)
    with Product() as product, sync_playwright() as playwright:
        runs = fill(product, told.python, told.steps)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context()
        context.new_page().goto(product.sign_in_link())
        context.new_page().goto(product.url)  # takes the greeting of the first sign-in away
        for size, folder in sizes:
            folder.mkdir(parents=True, exist_ok=True)
            take(context.new_page(), product, runs, folder, size)
        browser.close()


if __name__ == "__main__":
    main()
