"""The whole way of a pinned step: real verl dumps it, import, pin, plan, pull, and real verl's SkipManager returns the
batch that was dumped, value by value. Nothing on the way is a stand-in, and no byte changes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.product import Product

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]

SHAPE = ("data.train_batch_size=3", "actor_rollout_ref.rollout.n=2", "data.max_prompt_length=8")
OLD = ("trainer.project_name=math", *SHAPE, "data.max_response_length=12")
NEXT = {**dict(word.split("=", 1) for word in OLD), "trainer.experiment_name": "second try"}
TRAINER = {
    "rollout": "trainer.use_v1=False",
    "rollout_tq": "trainer.use_v1=True",
    "async_rollout": "data.gen_batch_size=1",
}
FILE = {"rollout": "gen_batch.dp", "rollout_tq": "tq_batch.pt", "async_rollout": "gen_batch.dp"}


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    if not os.environ.get("TRAINERS_PYTHON"):
        pytest.skip("needs TRAINERS_PYTHON, the Python of an environment with verl")
    with Product() as product:
        yield product


def verl(action: str, kind: str, folder: Path, overrides: Sequence[str]) -> str:
    """What real verl prints while it writes or loads steps, see verl_steps.py."""
    script = Path(__file__).with_name("verl_steps.py")
    command = [os.environ["TRAINERS_PYTHON"], str(script), action, kind, str(folder), *overrides]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def written(kind: str, into: Path, steps: Sequence[int], experiment: str = "first") -> Path:
    """The tree in which real verl dumped these steps, and beside it what it had generated."""
    listed = ",".join(map(str, steps))
    skip = {"enable": True, "dump_dir": into / "dumps", "steps": f"[{listed}]", "action": "cache"}
    words = [f"skip.{kind}.{name}={value}" for name, value in skip.items()]
    verl("write", kind, into / "generated", [*OLD, f"trainer.experiment_name={experiment}", TRAINER[kind], *words])
    return into / "dumps"


def command(product: Product, *words: str) -> subprocess.CompletedProcess[str]:
    told = ["-m", "rolloutdeck", *words, "--project", "math"]
    done = subprocess.run([os.sys.executable, *told], env=product.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def ask(product: Product, method: str, path: str, body: Any, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {product.token}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{product.url}/api/v1/{path}", json.dumps(body).encode(), sent, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def planned(product: Product, run: str, pins: dict[int, int], kind: str, **plan: Any) -> str:
    """A plan of its own in which each of these steps is replayed at a target; its name."""
    axis = "feed_index" if kind == "async_rollout" else "global_step"
    (found,) = product.get(f"runs/?name={run}&project=math")["results"]
    entries = []
    for step, target in pins.items():
        pin = ask(product, "POST", "pins/", {"run": found["id"], "step": step, "step_kind": axis})
        assert pin["state"] == "ready", pin
        entries.append({"pin": pin["id"], "target_step": target})
    body = {"plan": f"of-{run}", "entries": entries, **plan}
    ask(product, "PUT", "projects/math/replay-plan/", body, **{"If-Match": "0"})
    return f"of-{run}"


def hashes(folder: Path, name: str) -> dict[str, str]:
    """Step -> sha256 of its batch; verl's inner folders of V1 are passed over."""
    return {
        next(part for part in reversed(path.relative_to(folder).parts[:3]) if part.isdigit()): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob(name)
    }


@pytest.mark.parametrize("kind", ["rollout", "async_rollout", "rollout_tq"])
def test_real_verl_returns_the_batch_that_real_verl_dumped(product: Product, kind: str, tmp_path: Path) -> None:
    dumps, run = written(kind, tmp_path, [1, 2]), f"first-{kind}"
    command(product, "import", str(dumps), "--run", run)
    plan = planned(product, run, {1: 4, 2: 3}, kind)
    config = [f"{name}={value}" for name, value in NEXT.items()]
    if kind == "async_rollout":
        config += ["async_training.require_batches=1", "data.gen_batch_size=1"]
    pulled = command(
        product, "pull", "--run", f"next-{kind}", "--plan", plan, "--into", str(tmp_path / "replay root"),
        "--trainer", "verl", "--set", TRAINER[kind], *config,
    )  # fmt: skip
    theirs, ours = hashes(dumps, FILE[kind]), hashes(tmp_path / "replay root", FILE[kind])
    assert ours == {"4": theirs["1"], "3": theirs["2"]}

    flags = [word for line in pulled.stdout.splitlines() for word in shlex.split(line)]
    for step, target in ((1, 4), (2, 3)):
        (tmp_path / "expected").mkdir(exist_ok=True)
        (tmp_path / "generated" / f"{step}.pt").rename(tmp_path / "expected" / f"{target}.pt")
    started = [word for word in config if not word.startswith(("async_training", "trainer.experiment_name"))]
    printed = verl(
        "load", kind, tmp_path / "expected", [*started, "trainer.experiment_name='second try'", TRAINER[kind], *flags]
    )
    assert "step 3 is equal" in printed and "step 4 is equal" in printed
    assert hashes(tmp_path / "replay root", FILE[kind]) == ours
