"""A pinned step from end to end: real verl dumps it, import, pin, plan, pull, and real verl's SkipManager returns the
batch that was dumped, value by value. There are no stand-ins, and no byte changes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.trainer_config import load
from rolloutdeck.trainers.verl.layout import read_requirements
from rolloutdeck.trainers.verl.settings_check import quote_hydra_value
from tests.support.server import Product
from tests.trainers.interpreter import require_python, run_script

pytestmark = pytest.mark.trainers

SHAPE = ("data.train_batch_size=3", "actor_rollout_ref.rollout.n=2", "data.max_prompt_length=8")
OLD = ("trainer.project_name=math", *SHAPE, "data.max_response_length=12")
NEXT = {**dict(word.split("=", 1) for word in OLD), "trainer.experiment_name": "'second try'"}
TRAINER = {
    "rollout": "trainer.use_v1=False",
    "rollout_tq": "trainer.use_v1=True",
    "async_rollout": "data.gen_batch_size=1",
}
V2 = "actor_rollout_ref.rollout.skip"
FILE = {"rollout": "gen_batch.dp", "rollout_tq": "tq_batch.pt", "async_rollout": "gen_batch.dp"}


@pytest.fixture(scope="module", autouse=True)
def skip_without_trainers() -> None:
    require_python()


@pytest.fixture(scope="module")
def product(skip_without_trainers: None) -> Iterator[Product]:
    with Product() as product:
        yield product


def run_verl(action: str, kind: str, folder: Path, overrides: Sequence[str], fails: str = "") -> str:
    """Lets real verl write, load or join steps, see steps.py. Returns what it prints; `fails` is the expected error."""
    return run_trainer_script("steps.py", [action, kind, str(folder), *overrides], folder.parent, fails)


def run_verl_v2(action: str, folder: Path, steps: int, overrides: Sequence[str]) -> str:
    """The same with verl 0.8, see steps_v2.py; its steps begin with 1."""
    older = Path(os.environ["TRAINERS_PYTHON"]).parents[1] / "verl-0.8"
    if not older.is_dir():
        pytest.skip("needs verl 0.8 in the folder verl-0.8 of the trainers' environment")
    words = [action, str(folder), str(steps), *overrides]
    return run_trainer_script("steps_v2.py", words, folder.parent, PYTHONPATH=str(older))


def run_trainer_script(script: str, words: Sequence[str], cwd: Path, fails: str = "", **environ: str) -> str:
    done = run_script(Path(__file__).with_name(script), words, cwd=cwd, env={**os.environ, **environ}, timeout=300)
    assert (done.returncode != 0) == bool(fails) and fails in done.stderr, done.stderr[-3000:]
    return done.stdout


def dump_steps(kind: str, into: Path, steps: Sequence[int], experiment: str = "first") -> Path:
    """Lets real verl generate and dump these steps. Returns the folder of the dumps."""
    listed = ",".join(map(str, steps))
    skip = {"enable": True, "dump_dir": into / "dumps", "steps": f"[{listed}]", "action": "cache"}
    words = [f"skip.{kind}.{name}={value}" for name, value in skip.items()]
    run_verl("write", kind, into / "generated", [*OLD, f"trainer.experiment_name={experiment}", TRAINER[kind], *words])
    return into / "dumps"


def move_generated(into: Path, moved: dict[int, int]) -> Path:
    """Renames the generated steps to the numbers of the steps that replay them."""
    (into / "expected").mkdir()
    for step, target in moved.items():
        (into / "generated" / f"{step}.pt").rename(into / "expected" / f"{target}.pt")
    return into / "expected"


def run_command(product: Product, *words: str) -> subprocess.CompletedProcess[str]:
    values = ["-m", "rolloutdeck", *words, "--project", "math"]
    done = subprocess.run([sys.executable, *values], env=product.environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done


def call_api(product: Product, method: str, path: str, body: Any, **headers: str) -> Any:
    sent = {"Authorization": f"Bearer {product.token}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{product.url}/api/v1/{path}", json.dumps(body).encode(), sent, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def create_plan(product: Product, run: str, pins: dict[int, int], kind: str, **plan: Any) -> str:
    """Creates a plan in which each of these steps is replayed at a target. Returns its name."""
    axis = "feed_index" if kind == "async_rollout" else "global_step"
    (result,) = product.get(f"runs/?name={run}&project=math")["results"]
    entries = []
    for step, target in pins.items():
        pin = call_api(product, "POST", "pins/", {"run": result["id"], "step": step, "step_kind": axis})
        assert pin["state"] == "ready", pin
        entries.append({"pin": pin["id"], "target_step": target})
    body = {"plan": f"of-{run}", "entries": entries, **plan}
    call_api(product, "PUT", "projects/math/replay-plan/", body, **{"If-Match": "0"})
    return f"of-{run}"


def split_flags(printed: str) -> list[str]:
    """Splits the lines that `pull` prints into arguments, as a shell does."""
    return [word for line in printed.splitlines() for word in shlex.split(line)]


def hash_batches(folder: Path, name: str) -> dict[str, str]:
    """Step folder -> sha256 of its batch; verl's inner folders of V1 are passed over."""
    result = {path.relative_to(folder).parts[2]: path for path in folder.rglob(name)}
    return {step: hashlib.sha256(path.read_bytes()).hexdigest() for step, path in result.items()}


@pytest.mark.parametrize("kind", ["rollout", "async_rollout", "rollout_tq"])
def test_real_verl_returns_the_batch_that_real_verl_dumped(product: Product, kind: str, tmp_path: Path) -> None:
    dumps, run = dump_steps(kind, tmp_path, [1, 2]), f"first-{kind}"
    run_command(product, "import", str(dumps), "--run", run)
    plan = create_plan(product, run, {1: 4, 2: 3}, kind)
    config = [f"{name}={value}" for name, value in NEXT.items()]
    if kind == "async_rollout":
        config += ["async_training.require_batches=1", "data.gen_batch_size=1"]
    pulled = run_command(
        product, "pull", "--run", f"next-{kind}", "--plan", plan, "--into", str(tmp_path / "replay root"),
        "--trainer", "verl", "--set", TRAINER[kind], *config,
    )  # fmt: skip
    dumped, pulled_batches = hash_batches(dumps, FILE[kind]), hash_batches(tmp_path / "replay root", FILE[kind])
    assert pulled_batches == {"4": dumped["1"], "3": dumped["2"]}

    started = [word for word in config if not word.startswith("async_training")]
    values = [*started, TRAINER[kind], *split_flags(pulled.stdout)]
    printed = run_verl("load", kind, move_generated(tmp_path, {1: 4, 2: 3}), values)
    assert "step 3 is equal" in printed and "step 4 is equal" in printed
    assert hash_batches(tmp_path / "replay root", FILE[kind]) == pulled_batches


def test_the_replay_folder_is_the_one_in_which_real_verl_looks(tmp_path: Path) -> None:
    names = ["1e5", *map(quote_hydra_value, ("a/b", "with space", "1e5", "it's", 'a "b"', "日本", "a=b,c"))]
    cases: list[tuple[str, list[str]]] = []
    for role in ("rollout", "rollout_tq"):
        values = [f"skip.{role}.dump_dir={tmp_path}", TRAINER[role]]
        cases.append((role, values))  # verl's own defaults for all else
        cases.append((role, [*OLD, *values, "data.gen_batch_size=6"]))
        cases += [(role, [*OLD, *values, f"trainer.experiment_name={name}"]) for name in names]
    printed = run_trainer_script("installed.py", [json.dumps([overrides for _, overrides in cases])], tmp_path)
    for (role, _), result in zip(cases, json.loads(printed.splitlines()[-1]), strict=True):
        requested = read_requirements(dict(load.flatten_settings(result["config"])))
        assert requested.role == role
        assert str(tmp_path / requested.get_step_folder(7)) == result["folders"][role]


def test_a_dump_that_would_end_v0_with_an_error_is_repaired(product: Product, tmp_path: Path) -> None:
    dumps = dump_steps("rollout", tmp_path, [1, 2], experiment="colocated")
    run_command(product, "import", str(dumps), "--run", "colocated")
    plan = create_plan(product, "colocated", {1: 1, 2: 3}, "rollout")
    config = [*OLD, TRAINER["rollout"], "trainer.experiment_name=next"]
    into = ["--into", str(tmp_path / "into"), "--trainer", "verl", "--set", *config]
    pulled = run_command(product, "pull", "--run", "next-colocated", "--plan", plan, *into)
    assert "step 1 of colocated is replayed without uid:" in pulled.stderr
    assert "step 2 of colocated is replayed without uid, data_source, reward_model, extra_info:" in pulled.stderr

    again = [f"skip.rollout.{name}" for name in ("enable=True", f"dump_dir={dumps}", "steps=[2]")]
    values = [*OLD, TRAINER["rollout"], "trainer.experiment_name=colocated", *again]
    run_verl("join", "rollout", tmp_path / "x", values, fails="are not the same object")
    (moved,) = [flag for flag in split_flags(pulled.stdout) if "steps" in flag]
    printed = run_verl(
        "join", "rollout", tmp_path / "x", [*config, *split_flags(pulled.stdout), moved.replace("[1,3]", "[3]")]
    )
    assert "step 3 is joined" in printed


def test_verl_0_8_returns_the_batch_that_verl_0_8_dumped(product: Product, tmp_path: Path) -> None:
    skip = [f"{V2}.enable=True", f"{V2}.dump_dir={tmp_path / 'dumps'}", f"{V2}.max_dump_step=2", f"{V2}.action=cache"]
    run_verl_v2("write", tmp_path / "generated", 2, [*OLD, "trainer.experiment_name=older", *skip])
    run_command(product, "import", str(tmp_path / "dumps"), "--run", "older")
    plan = create_plan(product, "older", {1: 2, 2: 1}, "rollout")
    config = [*OLD, "trainer.experiment_name=newer"]
    into = ["--into", str(tmp_path / "into"), "--trainer", "verl", "--set", *config, f"{V2}.enable=False"]
    pulled = run_command(product, "pull", "--run", "newer", "--plan", plan, *into)
    assert len(hash_batches(tmp_path / "into", "new_batch.dp")) == 2
    printed = run_verl_v2("load", move_generated(tmp_path, {1: 2, 2: 1}), 2, [*config, *split_flags(pulled.stdout)])
    assert "step 1 is equal" in printed and "step 2 is equal" in printed
