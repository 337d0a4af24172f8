"""`generate_rollout` in slime's own code, against the whole product: dumped, registered, pinned, planned, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.slime.test_slime import require_slime
from tests.trainers.verl.process import Training, require_python, train
from tests.trainers.verl.test_replay import call_api, find_run, list_events, read_reason

pytestmark = pytest.mark.trainers

SCRIPT = "../../slime/inside/replaying.py"


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    require_python(), require_slime()
    with Product() as product:
        yield product


def run_training(product: Product, folder: Path, name: str, word: str, plan: str = "", **environ: str) -> Training:
    folder.mkdir(exist_ok=True)
    values = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    names = {"ROLLOUTDECK_RUN": name, "ROLLOUTDECK_PLAN": plan, "SLIME": require_slime()}
    return train(SCRIPT, word, folder=folder, **values, **names, **environ)


def list_artifacts(product: Product, name: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = product.get(f"runs/{find_run(product, name)}/artifacts/")["results"]
    return result


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    result = run_training(product, tmp_path_factory.mktemp("source"), "source", "first", SEND="yes")
    wait_until(lambda: [item["state"] for item in list_artifacts(product, "source")] == ["ready"] * 3)
    return result


def create_plan(product: Product, plan: str, run: str, targets: dict[int, int], **more: Any) -> None:
    """Creates a plan. `targets` maps each target to the rollout of `run` that is replayed there."""
    values = {"run": run, "step_kind": "rollout_id", "note": ""}
    entries = [
        {"pin": call_api(product, "POST", "pins/", {**values, "step": step})["id"], "target_step": target}
        for target, step in targets.items()
    ]
    body = {"plan": plan, "action": "cache", "entries": entries, **more}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"0"'})


def read_samples(training: Training, rollout: int) -> list[dict[str, Any]]:
    created: list[dict[str, Any]] = training.json("made.json")[str(rollout)]
    return created


def test_a_pinned_rollout_is_replayed_and_the_others_generated_with_the_prompts_they_had(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "again", find_run(product, "source"), {1: 1})
    result = run_training(product, tmp_path, "again", "second", plan="again")
    assert read_samples(result, 1) == read_samples(source, 1)
    for rollout in (0, 2):
        values = [(item["prompt"], item["index"]) for item in read_samples(result, rollout)]
        assert values == [(item["prompt"], item["index"]) for item in read_samples(source, rollout)]
        assert {item["extra"]["word"] for item in read_samples(result, rollout)} == {"second"}
    wait_until(lambda: list_events(product, "again"))
    assert list_events(product, "again") == [(1, "hit", 4)]


def test_flagged_samples_of_a_replayed_rollout_keep_their_place_and_are_not_trained_on(
    product: Product, source: Training, tmp_path: Path
) -> None:
    run = find_run(product, "source")
    first = product.get(f"samples/?run={run}&step=2&split=train")["results"][0]
    flagged = product.get(f"samples/{first['id']}/")
    call_api(product, "POST", "flags/", {"sample": flagged["id"], "label": "bad", "reason": "repetition"})
    create_plan(product, "clean", run, {0: 2, 1: 1, 2: 2}, exclude_flagged=True)
    (position,) = [at for at, sample in enumerate(read_samples(source, 2)) if sample["response"] == flagged["response"]]
    marked = [{**sample, "remove_sample": at == position} for at, sample in enumerate(read_samples(source, 2))]

    result = run_training(product, tmp_path / "by itself", "clean", "third", plan="clean")
    assert read_samples(result, 2) == read_samples(result, 0) == marked
    assert read_samples(result, 1) == read_samples(source, 1)
    wait_until(lambda: len(list_events(product, "clean")) == 3)
    assert list_events(product, "clean") == [(0, "hit", 4), (1, "hit", 4), (2, "hit", 4)]
    assert read_reason(product, "clean", 2) == "1 flagged samples have no weight (remove_sample)"

    values = ["--project", "default", "--url", product.url, "--token", product.token, "--plan", "clean"]
    shape = ["--set", "rollout_batch_size=2", "n_samples_per_prompt=2"]
    assert main(["pull", "--run", "next", "--into", str(tmp_path / "into"), "--trainer", "slime", *values, *shape]) == 0
    template = str(tmp_path / "into/rollout_data/{rollout_id}.pt")
    loaded = train("../../slime/inside/loading.py", template, folder=tmp_path, SLIME=require_slime(), ROLLOUTS="0 1 2")
    for rollout, pinned in (("0", marked), ("1", read_samples(source, 1)), ("2", marked)):
        assert loaded.json("loaded.json")[rollout] == [pinned] * 3


def test_a_pin_of_another_shape_is_refused_and_the_rollout_generated(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "shape", find_run(product, "source"), {1: 1})
    result = run_training(product, tmp_path, "shape", "fourth", plan="shape", ANSWERS="3")
    assert [item["extra"]["word"] for item in read_samples(result, 1)] == ["fourth"] * 6
    wait_until(lambda: list_events(product, "shape"))
    assert list_events(product, "shape") == [(1, "refused", None)]
    assert "samples_per_prompt: 2 pinned, 3 requested" in read_reason(product, "shape", 1)


def test_a_plan_that_says_stop_ends_the_run_with_the_reason(product: Product, source: Training, tmp_path: Path) -> None:
    create_plan(product, "stop", find_run(product, "source"), {1: 1}, on_mismatch="stop")
    result = run_training(product, tmp_path, "stop", "fifth", plan="stop", ANSWERS="3", may_fail="yes")
    assert result.done.returncode != 0
    assert "The replay plan stop@1 says to stop where a pin can't be replayed. Rollout 1:" in result.done.stderr


def test_a_pin_whose_bytes_are_lost_is_a_miss_and_generates(product: Product, source: Training, tmp_path: Path) -> None:
    create_plan(product, "lost", find_run(product, "source"), {1: 0})
    (pinned,) = [item for item in list_artifacts(product, "source") if item["step"] == 0]
    for file in pinned["files"].values():
        for path in product.data.rglob(f"*{file['sha256']}*"):
            path.unlink()
    result = run_training(product, tmp_path, "lost", "sixth", plan="lost")
    assert {item["extra"]["word"] for item in read_samples(result, 1)} == {"sixth"}
    wait_until(lambda: list_events(product, "lost"))
    assert list_events(product, "lost") == [(1, "miss", None)]
