"""The plug-in's replay inside real verl, against the whole product: dumped, imported, pinned, planned, replayed."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.verl.process import Training, require_python, train

pytestmark = pytest.mark.trainers

DUMPS = ["skip.rollout.enable=true", "skip.rollout.steps=[1,2]", "skip.rollout.dump_dir=dumps"]


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    require_python()
    with Product() as product:
        yield product


def call_api(product: Product, method: str, path: str, body: Any = None, **headers: str) -> Any:
    values = {"Authorization": f"Bearer {product.token}", "Content-Type": "application/json", **headers}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{product.url}/api/v1/{path}", data, values, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def run_training(product: Product, script: str, name: str, folder: Path, *words: str, **environ: str) -> Training:
    """Trains a run called `name` in the project `default`. It fails if verl itself unpickles a dump."""
    folder.mkdir(exist_ok=True)
    environ["NO_UNPICKLING"] = "yes"
    values = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    return train(script, *words, folder=folder, **{**values, "ROLLOUTDECK_RUN": name, **environ})


def find_run(product: Product, name: str) -> str:
    runs = product.get("runs/?project=default")["results"]
    return str(next(run["id"] for run in runs if run["name"] == name))


def upload_steps(product: Product, name: str, folder: Path) -> None:
    """Imports the steps that verl has dumped below `folder`, with their files."""
    words = ["import", str(folder), "--project", "default", "--run", name, "--artifacts", "now"]
    assert product.command(*words).wait(60) == 0
    run = find_run(product, name)
    wait_until(lambda: {item["state"] for item in product.get(f"runs/{run}/artifacts/")["results"]} == {"ready"})


def create_plan(product: Product, plan: str, run: str, targets: dict[int, int], **more: Any) -> None:
    """Creates a plan. `targets` maps each target to the step of `run` that is replayed there."""
    entries = [
        {"pin": call_api(product, "POST", "pins/", {"run": run, "step": step, "note": ""})["id"], "target_step": target}
        for target, step in targets.items()
    ]
    body = {"plan": plan, "action": "cache", "entries": entries, **more}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"0"'})


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("source")
    result = run_training(product, "v0.py", "source", folder, "odd", *DUMPS)
    values = product.get(f"runs/{find_run(product, 'source')}/artifacts/")
    (folder / "registered.json").write_text(json.dumps(values["results"]))
    upload_steps(product, "source", folder / "dumps")
    return result


def read_answers(training: Training, step: int) -> list[tuple[str, list[float]]]:
    (seen,) = [item for item in training.json("seen.json") if item["step"] == step]
    return [(row["response"], row["ids"]) for row in seen["rows"]]


def list_events(product: Product, name: str) -> list[tuple[int, str, int | None]]:
    result = product.get(f"runs/{find_run(product, name)}/replays/")["results"]
    return sorted((item["step"], item["outcome"], item["rows"]) for item in result)


def test_a_pinned_step_of_v0_is_replayed_and_reported(product: Product, source: Training, tmp_path: Path) -> None:
    create_plan(product, "both", find_run(product, "source"), {1: 1})
    result = run_training(product, "v0.py", "v0-hit", tmp_path, "other", ROLLOUTDECK_PLAN="both")
    assert read_answers(result, 1) == read_answers(source, 1)
    assert read_answers(result, 2) != read_answers(source, 2)
    wait_until(lambda: list_events(product, "v0-hit"))
    assert list_events(product, "v0-hit") == [(1, "hit", 4)]


def read_reason(product: Product, name: str, step: int) -> str:
    result = product.get(f"runs/{find_run(product, name)}/replays/")["results"]
    return str(next(item["reason"] for item in result if item["step"] == step))


INCOMPATIBLE = {
    "of other prompts": (1, "the prompts of 4 of 4 rows are not those that were answered"),
    "unpickling only": (2, "it can't be built without unpickling it: its column 'odd':"),
}


@pytest.mark.parametrize(("step", "why"), INCOMPATIBLE.values(), ids=INCOMPATIBLE)
def test_a_batch_that_is_incompatible_with_a_step_is_refused_and_the_step_generated(
    product: Product, source: Training, tmp_path: Path, step: int, why: str
) -> None:
    name = f"unfit-{step}"
    create_plan(product, name, find_run(product, "source"), {2: step})
    result = run_training(product, "v0.py", name, tmp_path, "other", ROLLOUTDECK_PLAN=name)
    assert [text for text, _ in read_answers(result, 2)] == ["sum is 3 plus", "wrong 4", "sum is 4 plus", "wrong 5"]
    wait_until(lambda: list_events(product, name))
    assert list_events(product, name) == [(2, "refused", None)]
    assert read_reason(product, name, 2).startswith(why)


def test_a_run_of_another_shape_generates_and_says_which_fact_differs(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "shape", find_run(product, "source"), {1: 1})
    words = ("other", "data.max_response_length=7")
    result = run_training(product, "v0.py", "v0-shape", tmp_path, *words, ROLLOUTDECK_PLAN="shape")
    assert read_answers(result, 1) != read_answers(source, 1)
    wait_until(lambda: list_events(product, "v0-shape"))
    assert list_events(product, "v0-shape") == [(1, "refused", None)]
    assert "max_response_length: 6 pinned, 7 requested" in read_reason(product, "v0-shape", 1)


def test_a_plan_that_says_stop_ends_the_run_with_the_reason(product: Product, source: Training, tmp_path: Path) -> None:
    create_plan(product, "stop", find_run(product, "source"), {2: 1}, on_mismatch="stop")
    result = run_training(product, "v0.py", "v0-stop", tmp_path, "other", ROLLOUTDECK_PLAN="stop", may_fail="yes")
    assert result.done.returncode != 0
    assert "The replay plan stop@1 says to stop where a pin can't be replayed. Step 2:" in result.done.stderr
    wait_until(lambda: product.get(f"runs/{find_run(product, 'v0-stop')}/")["status"] == "failed")


def test_without_a_server_the_run_continues_without_a_replay(
    product: Product, source: Training, tmp_path: Path
) -> None:
    values = {"ROLLOUTDECK_URL": "http://127.0.0.1:1", "ROLLOUTDECK_PLAN": "both"}
    result = run_training(product, "v0.py", "v0-alone", tmp_path, "other", **values)
    assert len(result.json("seen.json")) == 2


def test_steps_that_verl_dumps_are_registered_on_the_server_with_their_tokenizer(source: Training) -> None:
    result = source.json("registered.json")
    values = {(item["role"], item["step"], item["state"]) for item in result}
    assert values == {("rollout", 1, "waiting"), ("rollout", 2, "waiting"), ("tokenizer", 0, "ready")}
    (first,) = [item for item in result if item["step"] == 1]
    assert first["origin"]["path"].startswith(str(source.folder / "dumps"))
    assert (first["facts"]["rows"], first["facts"]["samples_per_prompt"]) == (4, 2)


@pytest.fixture(scope="module")
def v1_source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("queued")
    dumps = [word.replace("rollout.", "rollout_tq.") for word in DUMPS]
    result = run_training(product, "v1.py", "queued", folder, "", *dumps)
    upload_steps(product, "queued", folder / "dumps")
    return result


def read_trained_tokens(training: Training, step: int) -> list[list[int]]:
    """What was trained on at a step of V1, padding left out."""
    rows = training.json("seen.json")[step - 1]
    return sorted(row["responses"] for key, row in rows.items() if not key.startswith("pad"))


def test_a_pinned_step_of_v1_is_replayed_at_another_step(product: Product, v1_source: Training, tmp_path: Path) -> None:
    create_plan(product, "queue", find_run(product, "queued"), {2: 1})
    result = run_training(product, "v1.py", "v1-hit", tmp_path, "other", ROLLOUTDECK_PLAN="queue")
    assert read_trained_tokens(result, 2) == read_trained_tokens(v1_source, 1)
    assert read_trained_tokens(result, 1) != read_trained_tokens(v1_source, 1)
    wait_until(lambda: list_events(product, "v1-hit"))
    assert list_events(product, "v1-hit") == [(2, "hit", 4)]
    truths = {row["gts"] for row in result.read_json_lines("rollout/2.jsonl") if not row["uid"].startswith("pad")}
    assert truths == {"1", "2"}


def test_repeat_starts_again_after_the_last_target_of_v1(product: Product, v1_source: Training, tmp_path: Path) -> None:
    create_plan(product, "round", find_run(product, "queued"), {1: 2, 2: 1}, action="repeat")
    result = run_training(product, "v1.py", "v1-round", tmp_path, "other", ROLLOUTDECK_PLAN="round", STEPS="3")
    assert [read_trained_tokens(result, step) for step in (1, 2, 3)] == [
        read_trained_tokens(v1_source, step) for step in (2, 1, 2)
    ]
    wait_until(lambda: len(list_events(product, "v1-round")) == 3)
    assert list_events(product, "v1-round") == [(step, "hit", 4) for step in (1, 2, 3)]


def test_a_pinned_prompt_of_fully_async_is_replayed(product: Product, tmp_path_factory: pytest.TempPathFactory) -> None:
    first, second = tmp_path_factory.mktemp("async"), tmp_path_factory.mktemp("async-again")
    dumps = ["skip.async_rollout.enable=true", "skip.async_rollout.steps=[2,3]", "skip.async_rollout.dump_dir=dumps"]
    values = {"ROLLOUTDECK_ATTEMPT": "job"}
    run_training(product, "fully_async.py", "async", first, "rollouter", "", *dumps, **values)
    upload_steps(product, "async", first / "dumps")
    body = {"run": find_run(product, "async"), "step": 2, "step_kind": "feed_index", "note": ""}
    pin = call_api(product, "POST", "pins/", body)["id"]
    plan = {"plan": "feed", "action": "cache", "entries": [{"pin": pin, "target_step": 2}]}
    call_api(product, "PUT", "projects/default/replay-plan/", plan, **{"If-Match": '"0"'})
    values = {**values, "ROLLOUTDECK_PLAN": "feed"}
    run_training(product, "fully_async.py", "async-hit", second, "rollouter", "plus", **values)
    result = run_training(product, "fully_async.py", "async-hit", second, "trainer", "plus", **values)
    assert result.json("said-1.json") == ["sum is 3", "wrong 4", "sum is 4 plus", "wrong 5"]
    wait_until(lambda: list_events(product, "async-hit"))
    assert list_events(product, "async-hit") == [(2, "hit", 2)]


def test_a_plan_that_says_stop_ends_the_rollouter_of_fully_async_as_failed(product: Product, tmp_path: Path) -> None:
    dumps = [word.replace("rollout.", "async_rollout.").replace("[1,2]", "[1,2,3]") for word in DUMPS]
    first = run_training(product, "fully_async.py", "fed-source", tmp_path / "first", "fit", "", *dumps)
    assert first.json("put.json") == ["sample", "sample", "sample", "end"]
    wait_until(lambda: len(product.get(f"runs/{find_run(product, 'fed-source')}/artifacts/")["results"]) == 4)
    registered = product.get(f"runs/{find_run(product, 'fed-source')}/artifacts/")["results"]
    assert [item["role"] for item in registered].count("tokenizer") == 1
    upload_steps(product, "fed-source", tmp_path / "first/dumps")
    pin = {"run": find_run(product, "fed-source"), "step": 1, "step_kind": "feed_index", "note": ""}
    entry = {"pin": call_api(product, "POST", "pins/", pin)["id"], "target_step": 2}
    plan = {"plan": "fed-stop", "action": "cache", "on_mismatch": "stop", "entries": [entry]}
    call_api(product, "PUT", "projects/default/replay-plan/", plan, **{"If-Match": '"0"'})
    values = {"ROLLOUTDECK_PLAN": "fed-stop", "may_fail": "yes"}
    result = run_training(product, "fully_async.py", "fed-stop", tmp_path / "again", "fit", "", **values)
    assert result.done.returncode != 0
    message = "ReplayStoppedError: The replay plan fed-stop@1 says to stop where a pin can't be replayed. Step 2:"
    assert message in result.done.stderr.splitlines()[-1]
    assert result.json("put.json") == ["sample"]  # else the trainer would end as if all prompts were answered
    wait_until(lambda: product.get(f"runs/{find_run(product, 'fed-stop')}/")["status"] == "failed")
