"""What the pictures show: two small trainings that really ran, real dumps of verl, and what a team made of them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.server import Product

ROOT = Path(__file__).parents[2]
DUMPS = ROOT / "tests" / "data"
TRAININGS = {"tiny-grpo": "2e-3", "tiny-grpo_lr5e-4": "5e-4"}
MANY, REPLAYED, EARLIER = "many-languages", "grpo_n4_in128", "sync-v1"


@dataclass(frozen=True)
class Deck:
    """The server with its runs, {name: uid}; the trainings went on until step `last`."""

    product: Product
    runs: dict[str, str]
    last: int

    @property
    def chief(self) -> str:
        return self.runs["tiny-grpo"]

    @property
    def other(self) -> str:
        return self.runs["tiny-grpo_lr5e-4"]

    def samples(self, run: str, **asked: Any) -> list[dict[str, Any]]:
        return list(self.product.get(f"samples/?{urlencode({'run': run, **asked})}")["results"])

    def wrong(self, run: str) -> list[dict[str, Any]]:
        """Samples of a run's last training step whose group has right ones too, the lowest score first, of those the
        longest: each time the same."""
        last = max(row["step"] for row in self.product.get(f"runs/{run}/steps/?split=train")["results"])
        found = self.samples(run, split="train", step=last, ordering="score", q="-is:zerovar -is:empty")
        return sorted(found, key=lambda one: (one["score"], -one["chars"], one["id"]))


def filled(product: Product, python: str, steps: int) -> Deck:
    trained(product, python, steps)
    imported(product, MANY, DUMPS / "verl_jsonl" / "v0")
    imported(product, EARLIER, DUMPS / "verl_jsonl" / "v1")
    imported(product, REPLAYED, DUMPS / "verl_skip" / "main")
    deck = Deck(product, {run["name"]: run["id"] for run in product.get("runs/")["results"]}, steps)
    flagged(deck)
    pinned(deck)
    found(deck)
    return deck


def trained(product: Product, python: str, steps: int) -> None:
    """The slower one first, so that the other has the latest news."""
    env = {**product.environ, "PYTHONPATH": str(ROOT)}
    demo = [python, str(ROOT / "examples" / "tiny_grpo.py"), "--steps", str(steps)]
    for name, rate in reversed(TRAININGS.items()):
        subprocess.run([*demo, "--name", name, "--lr", rate], env=env, check=True, stdout=subprocess.DEVNULL)
    assert product.command("sync").wait(120) == 0


def imported(product: Product, run: str, folder: Path) -> None:
    said = product.command("import", str(folder), "--project", "math", "--run", run)
    assert said.wait(120) == 0, f"{folder} was not imported"


def flagged(deck: Deck) -> None:
    for row in deck.wrong(deck.chief)[:2]:
        deck.product.post("flags/", {"sample": row["id"], "text": "guesses the last digit"})
    early = deck.samples(deck.chief, split="train", step=deck.last // 3, ordering="score")
    deck.product.post("flags/", {"sample": early[0]["id"], "text": "stops in the middle"})


def pinned(deck: Deck) -> None:
    run = deck.runs[REPLAYED]
    for step in sorted(one["step"] for one in deck.product.get(f"runs/{run}/steps/?split=train")["results"]):
        deck.product.post("pins/", {"run": run, "step": step, "target_step": step, "note": "before the collapse"})


def found(deck: Deck) -> None:
    post = deck.product.post
    made = post(
        "findings/",
        {
            "project": "demo",
            "title": "Sums come in the right form with guessed digits",
            "note": "Both rates learn the form first. What stays wrong are **additions**: the parts are guessed.",
        },
    )
    exhibits = f"findings/{made['id']}/exhibits/"
    post(exhibits, {"run": deck.chief, "runs": [deck.other], "names": ["critic/score/mean"], "words": "Both runs."})
    post(exhibits, {"sample": deck.wrong(deck.chief)[0]["id"], "words": "One of them."})
    post(exhibits, {"run": deck.chief, "q": "is:wrong source:add", "split": "train", "step": deck.last})
