"""The data of the screenshots: two small trainings, real dumps of verl, flags, pins and a finding."""

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
MASKED = "masked"  # a plan


@dataclass(frozen=True)
class Deck:
    """The server with its runs, {name: uid}. `last` is the last step of the trainings."""

    product: Product
    runs: dict[str, str]
    last: int

    @property
    def main(self) -> str:
        return self.runs["tiny-grpo"]

    @property
    def other(self) -> str:
        return self.runs["tiny-grpo_lr5e-4"]

    def samples(self, run: str, **params: Any) -> list[dict[str, Any]]:
        return list(self.product.get(f"samples/?{urlencode({'run': run, **params})}")["results"])

    def list_wrong_samples(self, run: str) -> list[dict[str, Any]]:
        """Samples of a run's last training step whose group also has correct ones, the lowest score first, then the
        longest. The order is always the same."""
        last = max(row["step"] for row in self.product.get(f"runs/{run}/steps/?split=train")["results"])
        samples = self.samples(run, split="train", step=last, ordering="score", q="-is:zerovar -is:empty")
        return sorted(samples, key=lambda sample: (sample["score"], -sample["chars"], sample["id"]))


def fill_product(product: Product, python: str, steps: int) -> Deck:
    run_trainings(product, python, steps)
    import_dumps(product, MANY, DUMPS / "verl_jsonl" / "v0")
    import_dumps(product, EARLIER, DUMPS / "verl_jsonl" / "v1")
    import_dumps(product, REPLAYED, DUMPS / "verl_skip" / "main")
    deck = Deck(product, {run["name"]: run["id"] for run in product.get("runs/")["results"]}, steps)
    add_flags(deck)
    add_pins(deck)
    add_finding(deck)
    add_guidance(deck)
    return deck


def run_trainings(product: Product, python: str, steps: int) -> None:
    """The slower one first, so that the other is the most recently updated run."""
    env = {**product.environ, "PYTHONPATH": str(ROOT)}
    demo = [python, str(ROOT / "examples" / "tiny_grpo.py"), "--steps", str(steps)]
    for name, rate in reversed(TRAININGS.items()):
        subprocess.run([*demo, "--name", name, "--lr", rate], env=env, check=True, stdout=subprocess.DEVNULL)
    assert product.command("sync").wait(120) == 0


def import_dumps(product: Product, run: str, folder: Path) -> None:
    process = product.command("import", str(folder), "--project", "math", "--run", run)
    assert process.wait(120) == 0, f"{folder} was not imported"


def add_flags(deck: Deck) -> None:
    for row in deck.list_wrong_samples(deck.main)[:2]:
        deck.product.post("flags/", {"sample": row["id"], "text": "guesses the last digit"})
    early = deck.samples(deck.main, split="train", step=deck.last // 3, ordering="score")
    deck.product.post("flags/", {"sample": early[0]["id"], "text": "stops in the middle"})


def add_pins(deck: Deck) -> None:
    run = deck.runs[REPLAYED]
    for step in sorted(row["step"] for row in deck.product.get(f"runs/{run}/steps/?split=train")["results"]):
        deck.product.post("pins/", {"run": run, "step": step, "target_step": step, "note": "before the collapse"})


def add_guidance(deck: Deck) -> None:
    """Rules for the trainings, and a plan that masks flagged samples of pinned steps."""
    rules = [
        {"key": "flagged", "query": "is:flagged", "action": "mask"},
        {"key": "low", "query": "score<0.2", "action": "weight", "value": 0.5},
    ]
    deck.product.post("projects/demo/guidance/", {"rules": rules, "baseline": "exclude", "base_version": 0}, "PUT")
    pins = deck.product.get("pins/?project=math")["results"]
    for row in deck.samples(deck.runs[REPLAYED], split="train", step=pins[0]["step"], ordering="score")[::9]:
        deck.product.post("flags/", {"sample": row["id"], "text": "repeats the prompt"})
    entries = [{"pin": pin["id"], "target_step": pin["step"]} for pin in pins]
    plan = {"plan": MASKED, "on_selected": "mask", "entries": entries}
    deck.product.post("projects/math/replay-plan/", plan, "PUT", **{"If-Match": '"0"'})


def add_finding(deck: Deck) -> None:
    post = deck.product.post
    finding = post(
        "findings/",
        {
            "project": "demo",
            "title": "Sums come in the right form with guessed digits",
            "note": "Both rates learn the form first. What stays wrong are **additions**: the parts are guessed.",
        },
    )
    exhibits = f"findings/{finding['id']}/exhibits/"
    post(exhibits, {"run": deck.main, "runs": [deck.other], "names": ["critic/score/mean"], "words": "Both runs."})
    post(exhibits, {"sample": deck.list_wrong_samples(deck.main)[0]["id"], "words": "One of them."})
    post(exhibits, {"run": deck.main, "q": "is:wrong source:add", "split": "train", "step": deck.last})
