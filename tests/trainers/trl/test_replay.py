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
from tests.trainers.verl.process import Training, python, train
from tests.trainers.verl.test_replay import call_api, events, planned, reason, run_of

pytestmark = pytest.mark.trainers

SCRIPT = "../../trl/inside/training.py"
TOOLS = ("tools/call_frequency", "tools/failure_frequency")
OUTCOME = ("loss", "grad_norm", "reward", "reward_std", "entropy", "rewards/letters/mean", "rewards/short/mean")


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    python()
    with Product() as product:
        yield product


def training(product: Product, folder: Path, name: str, *words: str, plan: str = "", **environ: str) -> Training:
    values = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    return train(
        SCRIPT, "grpo", *words, folder=folder, **values, ROLLOUTDECK_RUN=name, ROLLOUTDECK_PLAN=plan, **environ
    )


def artifacts(product: Product, name: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = product.get(f"runs/{run_of(product, name)}/artifacts/")["results"]
    return result


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    result = training(product, tmp_path_factory.mktemp("source"), "source", "keep")
    wait_until(lambda: [item["state"] for item in artifacts(product, "source")] == ["ready"] * 3, 60)
    return result


@pytest.fixture(scope="module")
def replayed(product: Product, source: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Steps 1 and 2 are replayed, and 2 once more at 3, which has other prompts."""
    planned(product, "again", run_of(product, "source"), {1: 1, 2: 2, 3: 2})
    return training(product, tmp_path_factory.mktemp("again"), "again", "replay", "other", plan="again")


def generation(found: Training, step: int) -> dict[str, Any]:
    (step_info,) = [item for item in found.json("seen.json") if (item["split"], item["step"]) == ("train", step)]
    return dict(step_info)


def outcome(found: Training, step: int, names: tuple[str, ...] = OUTCOME) -> list[float]:
    (logged,) = [item for item in found.json("result.json")["history"] if item["step"] == step and "loss" in item]
    return [logged[name] for name in names]


@pytest.mark.parametrize("step", [1, 2])
def test_a_pinned_step_is_replayed_to_the_same_advantages_and_losses(
    source: Training, replayed: Training, step: int
) -> None:
    assert repr(generation(replayed, step)) == repr(generation(source, step))  # NaN equals itself
    assert outcome(replayed, step) == outcome(source, step)


def test_other_steps_and_evals_are_generated(source: Training, replayed: Training) -> None:
    assert generation(replayed, 3)["ids"] != generation(source, 3)["ids"]
    evals = [
        [item["ids"] for item in result.json("seen.json") if item["split"] == "eval"] for result in (source, replayed)
    ]
    assert len(evals[1]) == len(evals[0])
    assert evals[0] != evals[1]


def test_hits_and_the_refusal_with_its_reason_are_told(product: Product, replayed: Training) -> None:
    wait_until(lambda: len(events(product, "again")) == 3, 60)
    assert events(product, "again") == [(1, "hit", 8), (2, "hit", 8), (3, "refused", None)]
    assert reason(product, "again", 3) == "the prompts of 8 of 8 rows are not those that were answered"


def test_the_plan_has_nothing_to_say_of_a_run_with_the_arguments_of_the_pinned_one(
    product: Product, replayed: Training
) -> None:
    result = product.get(f"projects/default/replay-plan/?plan=again&run={run_of(product, 'again')}")
    matches = [item for entry in result["entries"] for item in entry["differences"]]
    assert {item["fact"] for item in matches if (item["pinned"], item["asking"]) != (None, None)} == set()


def test_steps_that_pull_laid_out_are_replayed_without_a_server_and_without_a_callback(
    product: Product, source: Training, tmp_path: Path
) -> None:
    planned(product, "laid", run_of(product, "source"), {1: 1, 2: 2, 3: 2})
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
    assert repr(generation(result, 1)) == repr(generation(source, 1))
    assert outcome(result, 1) == outcome(source, 1)
    for step in (2, 3):
        assert generation(result, step)["ids"] != generation(source, step)["ids"]
    assert "Step 2 is not replayed: rollout-0.json is not the file that `pull` wrote" in message
    assert "Step 3 is not replayed: the prompts of 8 of 8 rows are not those that were answered" in message
    assert result.deck.dumps == [] and result.outcomes() == []


def test_a_flagged_step_is_refused_and_a_plan_that_says_stop_ends_the_run_with_the_reason(
    product: Product, source: Training, tmp_path: Path
) -> None:
    run = run_of(product, "source")
    flagged = product.get(f"samples/?run={run}&step=1&split=train")["results"][0]
    call_api(product, "POST", "flags/", {"sample": flagged["id"], "label": "bad", "reason": "repetition"})
    planned(product, "clean", run, {1: 1}, exclude_flagged=True, on_mismatch="stop")
    result = training(product, tmp_path, "clean", "replay", plan="clean", may_fail="yes")
    why = "the plan leaves out what is flagged, and a step of TRL is replayed whole or not at all"
    assert result.done.returncode != 0
    assert f"clean@1 says to stop where a pin can't be replayed. Step 1: {why}" in result.done.stderr
    wait_until(lambda: events(product, "clean"), 60)
    assert events(product, "clean") == [(1, "refused", None)]
    assert reason(product, "clean", 1) == why


@pytest.mark.parametrize("action", ["mask", "drop"])
def test_selected_rows_are_replayed_without_a_token_in_the_loss(
    product: Product, source: Training, tmp_path: Path, action: str
) -> None:
    run, other = run_of(product, "source"), {"on_selected": action, "selected_by": "rules"}
    samples = product.get(f"samples/?run={run}&step=2&split=train")["results"]
    (second,) = [item for item in samples if (item["group"], item["index"]) == ("1", 0)]
    call_api(product, "POST", "flags/", {"sample": second["id"], "label": "bad", "reason": "language-mix"})
    rules = [{"key": "mix", "query": "reason:language-mix", "action": "mask", "target": "response"}]
    current = product.get("projects/default/guidance/")["version"]
    body = {"rules": rules, "baseline": "trainer", "base_version": current}
    version = call_api(product, "PUT", "projects/default/guidance/", body)["version"]
    planned(product, f"{action}ed", run, {2: 2}, **other)
    result = training(product, tmp_path, f"{action}ed", "replay", "other", plan=f"{action}ed")
    count = max(int(item["index"]) for item in samples) + 1
    expected = {count} if action == "mask" else set(range(count, 2 * count))
    found, pinned = generation(result, 2), generation(source, 2)
    rows = zip(found["mask"], found["ids"], strict=True)  # padding has a mask of 1
    assert {index for index, (mask, ids) in enumerate(rows) if not any(mask[: len(ids)])} == expected
    assert {**found, "mask": 0, "generated": 0} == {**pinned, "mask": 0, "generated": 0}
    assert outcome(result, 2)[2:4] == outcome(source, 2)[2:4] and outcome(result, 2)[0] != outcome(source, 2)[0]
    wait_until(lambda: events(product, f"{action}ed"), 60)
    (event,) = product.get(f"runs/{run_of(product, f'{action}ed')}/replays/")["results"]
    assert (event["outcome"], event["selected_action"], event["selected"]) == ("hit", action, 1)
    assert event["guidance_version"] == version
    what = {"mask": "1 sample masked", "drop": "1 prompt dropped"}[action]
    text = result.done.stderr + result.done.stdout
    assert f"{what} by version {version} of the guidance rules." in text


def test_a_pin_whose_bytes_are_lost_is_a_miss_and_generates_as_without_a_plan(
    product: Product, source: Training, tmp_path: Path
) -> None:
    planned(product, "lost", run_of(product, "source"), {3: 3})
    (pinned,) = [item for item in artifacts(product, "source") if item["step"] == 3]
    for file in pinned["files"].values():
        for path in product.data.rglob(f"*{file['sha256']}*"):
            path.unlink()
    result = training(product, tmp_path, "lost", "replay", plan="lost")
    wait_until(lambda: events(product, "lost"), 60)
    assert events(product, "lost") == [(3, "miss", None)]
    assert result.json("result.json") == source.json("result.json")


def test_a_rollout_func_of_ones_own_is_kept_with_its_masks_and_fields_and_replayed(
    product: Product, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir(), (tmp_path / "again").mkdir()
    source = training(product, tmp_path / "source", "turns", "keep", "turns")
    wait_until(lambda: [item["state"] for item in artifacts(product, "turns")] == ["ready"] * 3, 60)
    planned(product, "turns", run_of(product, "turns"), {2: 1, 1: 1})
    replayed = training(product, tmp_path / "again", "turns-again", "replay", "turns", "other", plan="turns")
    assert {0, 1} == {item for row in generation(source, 1)["mask"] for item in row}
    assert repr(generation(replayed, 1)) == repr(generation(source, 1))
    assert outcome(replayed, 1) == outcome(source, 1)
    wait_until(lambda: len(events(product, "turns-again")) == 2, 60)
    assert events(product, "turns-again") == [(1, "hit", 8), (2, "refused", None)]
    assert {0, 1} == {item for row in generation(replayed, 2)["mask"] for item in row}  # by the same function


def test_a_step_whose_answers_called_tools_is_replayed_with_what_they_gave_and_calls_none(
    product: Product, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir(), (tmp_path / "again").mkdir()
    source = training(product, tmp_path / "source", "tools", "keep", "tools")
    wait_until(lambda: [item["state"] for item in artifacts(product, "tools")] == ["ready"] * 3, 60)
    (shown,) = product.get(f"samples/?run={run_of(product, 'tools')}&split=train&step=1")["results"][:1]
    assert product.get(f"samples/{shown['id']}/")["tools"][0]["function"]["name"] == "roll"
    planned(product, "tools", run_of(product, "tools"), {1: 1, 2: 2})
    replayed = training(product, tmp_path / "again", "tools-again", "replay", "tools", "other", plan="tools")
    wait_until(lambda: len(events(product, "tools-again")) == 2, 60)
    assert events(product, "tools-again") == [(1, "hit", 8), (2, "hit", 8)]
    for step in (1, 2):
        assert outcome(source, step, TOOLS)[0] > 0
        assert repr(generation(replayed, step)) == repr(generation(source, step))
        assert outcome(replayed, step, (*OUTCOME, *TOOLS)) == outcome(source, step, (*OUTCOME, *TOOLS))
    called = [[tuple(item) for item in result.json("result.json")["rolls"]] for result in (source, replayed)]
    assert {("train", 1), ("train", 2), ("train", 3)} <= set(called[0])
    assert {("train", 1), ("train", 2)}.isdisjoint(called[1]) and ("train", 3) in called[1]


def test_a_run_that_crashed_among_its_replayed_steps_goes_on_with_them_by_the_revision_it_began_with(
    product: Product, source: Training, tmp_path: Path
) -> None:
    planned(product, "long", run_of(product, "source"), {1: 1, 2: 2})
    words = ("replay", "other", "saves")
    training(product, tmp_path, "long", *words, plan="long", CRASH="2", may_fail="yes", ROLLOUTDECK_ATTEMPT="first")
    wait_until(lambda: events(product, "long") == [(1, "hit", 8), (2, "hit", 8)], 60)
    body = {"plan": "long", "action": "cache", "entries": []}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"1"'})
    result = training(product, tmp_path, "long", *words, "resumed", plan="long", ROLLOUTDECK_ATTEMPT="second")
    assert [item["step"] for item in result.json("seen.json") if item["split"] == "train"] == [2, 3]
    assert repr(generation(result, 2)) == repr(generation(source, 2))
    assert outcome(result, 2) == outcome(source, 2)
    assert generation(result, 3)["ids"] != generation(source, 3)["ids"]
    wait_until(lambda: [item for item in events(product, "long") if item[0] == 2] == [(2, "hit", 8)] * 2, 60)
