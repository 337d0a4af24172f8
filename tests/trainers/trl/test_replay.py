"""Pinned steps inside a real GRPOTrainer, against the whole product: kept, pinned, planned, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.replay.folder import PULL_MANIFEST
from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.verl.process import Training, require_python, train
from tests.trainers.verl.test_replay import call_api, create_plan, find_run, list_events, read_reason

pytestmark = pytest.mark.trainers

SCRIPT = "../../trl/inside/training.py"
TOOLS = ("tools/call_frequency", "tools/failure_frequency")
OUTCOME = ("loss", "grad_norm", "reward", "reward_std", "entropy", "rewards/letters/mean", "rewards/short/mean")


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    require_python()
    with Product() as product:
        yield product


def run_training(product: Product, folder: Path, name: str, *words: str, plan: str = "", **environ: str) -> Training:
    values = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    return train(
        SCRIPT, "grpo", *words, folder=folder, **values, ROLLOUTDECK_RUN=name, ROLLOUTDECK_PLAN=plan, **environ
    )


def list_artifacts(product: Product, name: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = product.get(f"runs/{find_run(product, name)}/artifacts/")["results"]
    return result


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    result = run_training(product, tmp_path_factory.mktemp("source"), "source", "keep")
    wait_until(lambda: [item["state"] for item in list_artifacts(product, "source")] == ["ready"] * 3, 60)
    return result


@pytest.fixture(scope="module")
def replayed(product: Product, source: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Steps 1 and 2 are replayed, and 2 once more at 3, which has other prompts."""
    create_plan(product, "again", find_run(product, "source"), {1: 1, 2: 2, 3: 2})
    return run_training(product, tmp_path_factory.mktemp("again"), "again", "replay", "other", plan="again")


def read_generation(training: Training, step: int) -> dict[str, Any]:
    (step_info,) = [item for item in training.json("seen.json") if (item["split"], item["step"]) == ("train", step)]
    return dict(step_info)


def read_outcome(training: Training, step: int, names: tuple[str, ...] = OUTCOME) -> list[float]:
    (logged,) = [item for item in training.json("result.json")["history"] if item["step"] == step and "loss" in item]
    return [logged[name] for name in names]


@pytest.mark.parametrize("step", [1, 2])
def test_a_pinned_step_is_replayed_to_the_same_advantages_and_losses(
    source: Training, replayed: Training, step: int
) -> None:
    assert repr(read_generation(replayed, step)) == repr(read_generation(source, step))  # NaN equals itself
    assert read_outcome(replayed, step) == read_outcome(source, step)


def test_other_steps_and_evals_are_generated(source: Training, replayed: Training) -> None:
    assert read_generation(replayed, 3)["ids"] != read_generation(source, 3)["ids"]
    evals = [
        [item["ids"] for item in result.json("seen.json") if item["split"] == "eval"] for result in (source, replayed)
    ]
    assert len(evals[1]) == len(evals[0])
    assert evals[0] != evals[1]


def test_hits_and_the_refusal_with_its_reason_are_reported(product: Product, replayed: Training) -> None:
    wait_until(lambda: len(list_events(product, "again")) == 3, 60)
    assert list_events(product, "again") == [(1, "hit", 8), (2, "hit", 8), (3, "refused", None)]
    assert read_reason(product, "again", 3) == "the prompts of 8 of 8 rows are not those that were answered"


def test_the_plan_shows_no_difference_for_a_run_with_the_arguments_of_the_pinned_one(
    product: Product, replayed: Training
) -> None:
    result = product.get(f"projects/default/replay-plan/?plan=again&run={find_run(product, 'again')}")
    matches = [item for entry in result["entries"] for item in entry["differences"]]
    assert {item["fact"] for item in matches if (item["pinned"], item["asking"]) != (None, None)} == set()


def test_steps_that_pull_wrote_are_replayed_without_a_server_and_without_a_callback(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "laid", find_run(product, "source"), {1: 1, 2: 2, 3: 2})
    server = ["--url", product.url, "--token", product.token, "--project", "default", "--plan", "laid"]
    assert main(["pull", "--run", "offline", "--into", str(tmp_path / "into"), "--trainer", "trl", *server]) == 0
    changed = tmp_path / "into/step_000002/rollout-0.json"
    full = changed.read_bytes()
    changed.unlink()  # another name of the same file is step 3's
    changed.write_bytes(full + b" ")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / PULL_MANIFEST).write_text('{"rolloutdeck": "pull", "complete": false}')
    values = {"FOLDER": str(tmp_path / "into"), "NO_STEPS": f"{tmp_path / 'none'} {tmp_path / 'torn'}"}
    result = train(SCRIPT, "grpo", "plain", "replay", "other", folder=tmp_path, **values)
    message = result.done.stderr
    assert (
        f"{tmp_path / 'none'} has no step of TRL; `rolloutdeck pull --trainer trl --into` writes them there." in message
    )
    assert f"{tmp_path / 'torn'} is not complete: a `rolloutdeck pull` into it did not finish; run it again." in message
    assert repr(read_generation(result, 1)) == repr(read_generation(source, 1))
    assert read_outcome(result, 1) == read_outcome(source, 1)
    for step in (2, 3):
        assert read_generation(result, step)["ids"] != read_generation(source, step)["ids"]
    assert "Step 2 is not replayed: rollout-0.json is not the file that `pull` wrote" in message
    assert "Step 3 is not replayed: the prompts of 8 of 8 rows are not those that were answered" in message
    assert result.receiver.dumps == [] and result.outcomes() == []


def test_a_flagged_step_is_refused_and_a_plan_that_says_stop_ends_the_run_with_the_reason(
    product: Product, source: Training, tmp_path: Path
) -> None:
    run = find_run(product, "source")
    flagged = product.get(f"samples/?run={run}&step=1&split=train")["results"][0]
    call_api(product, "POST", "flags/", {"sample": flagged["id"], "label": "bad", "reason": "repetition"})
    create_plan(product, "clean", run, {1: 1}, exclude_flagged=True, on_mismatch="stop")
    result = run_training(product, tmp_path, "clean", "replay", plan="clean", may_fail="yes")
    why = "the plan leaves out what is flagged, and a step of TRL is replayed whole or not at all"
    assert result.done.returncode != 0
    assert f"clean@1 says to stop where a pin can't be replayed. Step 1: {why}" in result.done.stderr
    wait_until(lambda: list_events(product, "clean"), 60)
    assert list_events(product, "clean") == [(1, "refused", None)]
    assert read_reason(product, "clean", 1) == why


@pytest.mark.parametrize("action", ["mask", "drop"])
def test_selected_rows_are_replayed_without_a_token_in_the_loss(
    product: Product, source: Training, tmp_path: Path, action: str
) -> None:
    run, other = find_run(product, "source"), {"on_selected": action, "selected_by": "rules"}
    samples = product.get(f"samples/?run={run}&step=2&split=train")["results"]
    (second,) = [item for item in samples if (item["group"], item["index"]) == ("1", 0)]
    call_api(product, "POST", "flags/", {"sample": second["id"], "label": "bad", "reason": "language-mix"})
    rules = [{"key": "mix", "query": "reason:language-mix", "action": "mask", "target": "response"}]
    current = product.get("projects/default/guidance/")["version"]
    body = {"rules": rules, "baseline": "trainer", "base_version": current}
    version = call_api(product, "PUT", "projects/default/guidance/", body)["version"]
    create_plan(product, f"{action}ed", run, {2: 2}, **other)
    result = run_training(product, tmp_path, f"{action}ed", "replay", "other", plan=f"{action}ed")
    count = max(int(item["index"]) for item in samples) + 1
    expected = {count} if action == "mask" else set(range(count, 2 * count))
    found, pinned = read_generation(result, 2), read_generation(source, 2)
    rows = zip(found["mask"], found["ids"], strict=True)  # padding has a mask of 1
    assert {index for index, (mask, ids) in enumerate(rows) if not any(mask[: len(ids)])} == expected
    assert {**found, "mask": 0, "generated": 0} == {**pinned, "mask": 0, "generated": 0}
    assert (
        read_outcome(result, 2)[2:4] == read_outcome(source, 2)[2:4]
        and read_outcome(result, 2)[0] != read_outcome(source, 2)[0]
    )
    wait_until(lambda: list_events(product, f"{action}ed"), 60)
    (event,) = product.get(f"runs/{find_run(product, f'{action}ed')}/replays/")["results"]
    assert (event["outcome"], event["selected_action"], event["selected"]) == ("hit", action, 1)
    assert event["guidance_version"] == version
    what = {"mask": "1 sample masked", "drop": "1 prompt dropped"}[action]
    text = result.done.stderr + result.done.stdout
    assert f"{what} by version {version} of the guidance rules." in text


def test_a_pin_whose_bytes_are_lost_is_a_miss_and_generates_as_without_a_plan(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "lost", find_run(product, "source"), {3: 3})
    (pinned,) = [item for item in list_artifacts(product, "source") if item["step"] == 3]
    for file in pinned["files"].values():
        for path in product.data.rglob(f"*{file['sha256']}*"):
            path.unlink()
    result = run_training(product, tmp_path, "lost", "replay", plan="lost")
    wait_until(lambda: list_events(product, "lost"), 60)
    assert list_events(product, "lost") == [(3, "miss", None)]
    assert result.json("result.json") == source.json("result.json")


def test_steps_of_a_custom_rollout_func_are_kept_with_masks_and_fields_and_replayed(
    product: Product, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir(), (tmp_path / "again").mkdir()
    source = run_training(product, tmp_path / "source", "turns", "keep", "turns")
    wait_until(lambda: [item["state"] for item in list_artifacts(product, "turns")] == ["ready"] * 3, 60)
    create_plan(product, "turns", find_run(product, "turns"), {2: 1, 1: 1})
    replayed = run_training(product, tmp_path / "again", "turns-again", "replay", "turns", "other", plan="turns")
    assert {0, 1} == {item for row in read_generation(source, 1)["mask"] for item in row}
    assert repr(read_generation(replayed, 1)) == repr(read_generation(source, 1))
    assert read_outcome(replayed, 1) == read_outcome(source, 1)
    wait_until(lambda: len(list_events(product, "turns-again")) == 2, 60)
    assert list_events(product, "turns-again") == [(1, "hit", 8), (2, "refused", None)]
    assert {0, 1} == {item for row in read_generation(replayed, 2)["mask"] for item in row}  # by the same function


def test_a_step_with_tool_calls_is_replayed_with_their_results_and_calls_no_tool(
    product: Product, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir(), (tmp_path / "again").mkdir()
    source = run_training(product, tmp_path / "source", "tools", "keep", "tools")
    wait_until(lambda: [item["state"] for item in list_artifacts(product, "tools")] == ["ready"] * 3, 60)
    (shown,) = product.get(f"samples/?run={find_run(product, 'tools')}&split=train&step=1")["results"][:1]
    assert product.get(f"samples/{shown['id']}/")["tools"][0]["function"]["name"] == "roll"
    create_plan(product, "tools", find_run(product, "tools"), {1: 1, 2: 2})
    replayed = run_training(product, tmp_path / "again", "tools-again", "replay", "tools", "other", plan="tools")
    wait_until(lambda: len(list_events(product, "tools-again")) == 2, 60)
    assert list_events(product, "tools-again") == [(1, "hit", 8), (2, "hit", 8)]
    for step in (1, 2):
        assert read_outcome(source, step, TOOLS)[0] > 0
        assert repr(read_generation(replayed, step)) == repr(read_generation(source, step))
        assert read_outcome(replayed, step, (*OUTCOME, *TOOLS)) == read_outcome(source, step, (*OUTCOME, *TOOLS))
    called = [[tuple(item) for item in result.json("result.json")["rolls"]] for result in (source, replayed)]
    assert {("train", 1), ("train", 2), ("train", 3)} <= set(called[0])
    assert {("train", 1), ("train", 2)}.isdisjoint(called[1]) and ("train", 3) in called[1]


def test_a_crashed_run_continues_its_replay_with_the_revision_of_the_plan_it_began_with(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "long", find_run(product, "source"), {1: 1, 2: 2})
    words = ("replay", "other", "saves")
    run_training(product, tmp_path, "long", *words, plan="long", CRASH="2", may_fail="yes", ROLLOUTDECK_ATTEMPT="first")
    wait_until(lambda: list_events(product, "long") == [(1, "hit", 8), (2, "hit", 8)], 60)
    body = {"plan": "long", "action": "cache", "entries": []}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"1"'})
    result = run_training(product, tmp_path, "long", *words, "resumed", plan="long", ROLLOUTDECK_ATTEMPT="second")
    assert [item["step"] for item in result.json("seen.json") if item["split"] == "train"] == [2, 3]
    assert repr(read_generation(result, 2)) == repr(read_generation(source, 2))
    assert read_outcome(result, 2) == read_outcome(source, 2)
    assert read_generation(result, 3)["ids"] != read_generation(source, 3)["ids"]
    wait_until(lambda: [item for item in list_events(product, "long") if item[0] == 2] == [(2, "hit", 8)] * 2, 60)
