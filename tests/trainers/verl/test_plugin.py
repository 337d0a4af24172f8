"""The plug-in inside real verl, on a CPU: what stands in for GPUs is in `inside/stubs.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollouts.metrics import series
from rollouts.models import Project, Sample
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file
from tests.support import builders
from tests.trainers.verl.process import Training, install_entry_points, train

pytestmark = pytest.mark.trainers


@pytest.fixture(scope="module")
def v0(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train("v0.py", folder=tmp_path_factory.mktemp("v0"))


def test_verl_finds_the_plugin_by_its_entry_point(tmp_path: Path) -> None:
    install_entry_points(tmp_path)
    training = train("tracking.py", "0", folder=tmp_path, VERL_USE_EXTERNAL_MODULES="")
    assert training.read_output()["loaded"] is True
    assert training.values(2)["critic/score/mean"] == 0.5


def test_the_plugin_is_installed_once_however_often_it_is_loaded(tmp_path: Path) -> None:
    install_entry_points(tmp_path)
    training = train("tracking.py", "0", folder=tmp_path)
    assert training.read_output()["backends"] == 1
    assert len(training.receiver.points()) == 2
    assert training.outcomes() == ["finished"]


def test_the_plugin_works_when_a_models_external_lib_loads_it_after_verl(tmp_path: Path) -> None:
    training = train("tracking.py", "0", "late", folder=tmp_path, VERL_USE_EXTERNAL_MODULES="")
    assert training.read_output()["loaded"] is False
    assert training.values(2)["critic/score/mean"] == 0.5


def test_the_plugin_is_imported_about_as_fast_as_asyncio(tmp_path: Path) -> None:
    """Compared in one process, since the milliseconds depend on the machine; measured: 1.7 to 1.8 times."""
    pairs = train("importing.py", folder=tmp_path, VERL_USE_EXTERNAL_MODULES="").read_output()
    plugin, asyncio = (min(times) for times in zip(*pairs, strict=True))
    assert plugin <= 2.5 * asyncio, (plugin, asyncio)


def test_metrics_and_configuration_arrive_by_trainer_logger(tmp_path: Path) -> None:
    training = train("tracking.py", "0", folder=tmp_path)
    assert training.values(1) == {"critic/score/mean": 0.25, "actor/entropy": None}
    run = training.receiver.posted("/runs/")[0]
    assert (run["project"], run["name"], run["framework"]) == ("math", "qwen", "verl")
    assert run["config"] == {"trainer": {"lr": 3}, "data": {"n": 4}}


def test_a_run_that_verl_calls_failed_ends_as_failed(tmp_path: Path) -> None:
    assert train("tracking.py", "1", folder=tmp_path).outcomes() == ["failed"]


def pick_fields(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in names) for row in rows]


@pytest.mark.parametrize("step", [0, 2])
def test_every_validation_of_v0_arrives_with_data_source_uid_and_extras(v0: Training, step: int) -> None:
    rows, wrote = v0.rows("eval", step), v0.read_json_lines(f"val/{step}.jsonl")
    assert pick_fields(rows, "prompt", "response", "score", "ground_truth") == pick_fields(
        wrote, "input", "output", "score", "gts"
    )
    assert {row["data_source"] for row in rows} == {"arith/test"}
    assert [row["dataset_index"] for row in rows] == [10, 11, 12]
    assert len({row["group"] for row in rows}) == 3
    assert [row["rewards"] for row in rows] == [{"acc": 1.0}] * 3
    assert [row["pred"] for row in rows] == [row["response"] for row in rows]


@pytest.mark.parametrize("step", [1, 2])
def test_every_rollout_of_v0_arrives_as_its_own_file_has_it_and_in_groups(v0: Training, step: int) -> None:
    rows, wrote = v0.rows("train", step), v0.read_json_lines(f"rollout/{step}.jsonl")
    assert pick_fields(rows, "prompt", "response", "score", "ground_truth") == pick_fields(
        wrote, "input", "output", "score", "gts"
    )
    assert [row["index"] for row in rows] == [0, 1, 0, 1]
    assert rows[0]["group"] == rows[1]["group"] != rows[2]["group"]
    assert {row["data_source"] for row in rows} == {"arith/train"}


def check_tensors(training: Training, step: int) -> None:
    """The rows of a step have the tensors that the trainer held when it updated the actor."""
    (seen,) = [item for item in training.json("seen.json") if item["step"] == step]
    for row, tensors in zip(training.rows("train", step), seen["rows"], strict=True):
        length = sum(tensors["mask"])
        assert row["group"] == tensors["uid"]
        assert row["response_ids"] == tensors["ids"][:length]
        assert row["response_mask"] == tensors["mask"][:length]
        assert row["logprobs"] == tensors["logprobs"][:length]
        assert row["advantages"] == tensors["advantages"][:length]


@pytest.mark.parametrize("step", [1, 2])
def test_log_probs_and_advantages_of_v0_equal_the_trainers_tensors(v0: Training, step: int) -> None:
    check_tensors(v0, step)


def test_token_fields_can_be_kept_of_whole_groups_or_of_none(tmp_path: Path) -> None:
    done = train("v0.py", folder=tmp_path, ROLLOUTDECK_TOKENS="groups:1")
    stored = [row for row in done.rows("train", 1) if "response_ids" in row]
    assert len(stored) == 2
    assert len({row["group"] for row in stored}) == 1
    assert sum("response_ids" in row for row in done.rows("eval", 0)) == 1
    none = train("v0.py", folder=tmp_path, ROLLOUTDECK_TOKENS="none")
    assert not any("response_ids" in row for row in none.rows("train", 1))
    assert all(isinstance(row["advantages"], float) for row in none.rows("train", 1))


def test_aborted_generations_are_counted_with_their_reason(tmp_path: Path) -> None:
    values = train("v0.py", "silent", folder=tmp_path).values(1)
    assert values["rolloutdeck/generated"] == 4
    assert values["rolloutdeck/trained"] == 3
    assert values["rolloutdeck/left_out/aborted"] == 1


def test_the_seconds_that_training_waits_for_us_are_a_metric(v0: Training) -> None:
    assert 0 < v0.values(1)["timing_s/rolloutdeck"] < 5


def test_a_training_that_crashes_ends_as_failed_with_its_rows_sent(tmp_path: Path) -> None:
    training = train("v0.py", "crash", folder=tmp_path, may_fail="yes")
    assert "CUDA error" in training.done.stderr
    assert training.outcomes() == ["failed"]
    assert len(training.rows("eval", 0)) == 3


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train("v1.py", "", folder=tmp_path_factory.mktemp("v1"))


def split_uid(uid: str) -> tuple[str, int]:
    group, _, output = uid.rsplit("_", 2)
    return group, int(output)


@pytest.mark.parametrize("step", [0, 2])
def test_every_validation_of_v1_arrives_with_data_source_uid_extras_and_turns(v1: Training, step: int) -> None:
    rows, wrote = v1.rows("eval", step), v1.read_json_lines(f"val/{step}.jsonl")
    names = ("group", "turn", "prompt", "response", "score", "ground_truth")
    expected = [(*split_uid(row["uid"]), row["input"], row["output"], row["score"], row["gts"]) for row in wrote]
    assert sorted(pick_fields(rows, *names)) == sorted(expected)
    assert len(rows) == 6
    assert {row["data_source"] for row in rows} == {"arith/test"}
    assert all(row["rewards"] == {"acc": 1.0} and row["pred"].startswith("sum") for row in rows)


@pytest.mark.parametrize("step", [1, 2])
def test_every_rollout_of_v1_arrives_as_its_own_file_has_it_and_padding_does_not(v1: Training, step: int) -> None:
    rows, wrote = v1.rows("train", step), v1.read_json_lines(f"rollout/{step}.jsonl")
    real = [row for row in wrote if not row["uid"].startswith("pad")]
    assert len(wrote) == 6
    assert pick_fields(rows, "prompt", "response", "score", "ground_truth") == pick_fields(
        real, "input", "output", "score", "gts"
    )
    assert [row["trajectory"] + "_0" for row in rows] == [row["uid"] for row in real]
    assert {row["data_source"] for row in rows} == {"arith/train"}


@pytest.mark.parametrize("step", [1, 2])
def test_log_probs_and_advantages_of_v1_equal_the_trainers_tensors(v1: Training, step: int) -> None:
    seen = v1.json("seen.json")[step - 1]
    for row in v1.rows("train", step):
        tensors = seen[row["trajectory"] + "_0"]
        assert row["response_ids"] == tensors["responses"]
        assert row["response_mask"] == tensors["response_mask"]
        assert row["logprobs"] == tensors["old_log_probs"]
        assert row["advantages"] == tensors["advantages"]


def test_groups_that_v1_filters_out_are_counted_with_their_reason(tmp_path: Path) -> None:
    training = train("v1.py", "filter", folder=tmp_path)
    values = training.values(1)
    left_out = {name: value for name, value in values.items() if name.startswith("rolloutdeck/left_out/")}
    assert values["rolloutdeck/trained"] == len(training.rows("train", 1)) == 4
    assert left_out["rolloutdeck/left_out/filtered"] == 2 * values["training/filter_groups/evicted_samples"] > 0
    surplus = 2 * values.get("training/filter_groups/discarded_surplus_samples", 0)
    assert left_out.get("rolloutdeck/left_out/surplus", 0) == surplus
    assert values["rolloutdeck/generated"] == 4 + sum(left_out.values())


def test_scores_of_a_colocated_reward_model_are_in_the_validation_of_v1(tmp_path: Path) -> None:
    rows = train("v1.py", "colocated", folder=tmp_path).rows("eval", 0)
    assert {row["response"][:3]: row["score"] for row in rows} == {"Wha": 0.0, "sum": 0.5}


@pytest.fixture(scope="module")
def fully_async(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The rollouter's process and then the trainer's, as two actors of one Ray job."""
    folder = tmp_path_factory.mktemp("fully_async")
    first = train("fully_async.py", "rollouter", "", folder=folder, ROLLOUTDECK_ATTEMPT="job")
    return train("fully_async.py", "trainer", "", folder=folder, receiver=first.receiver, ROLLOUTDECK_ATTEMPT="job")


def test_both_processes_of_fully_async_write_to_one_run(fully_async: Training) -> None:
    assert len({uid for uid, _, _ in fully_async.receiver.dumps}) == 1


def test_the_end_of_the_rollouters_process_is_not_the_end_of_the_run(fully_async: Training) -> None:
    assert fully_async.outcomes() == ["finished"]


def test_two_validations_at_one_feed_index_are_kept_apart(fully_async: Training) -> None:
    (first, rows), (second, others) = fully_async.list_batches("eval")
    assert (first["step_kind"], first["step"]) == (second["step_kind"], second["step"]) == ("feed_index", "1")
    assert first["producer"] != second["producer"]
    assert [row["response"] for row in rows] == ["sum is 11", "sum is 12"]
    assert [row["response"] for row in others] == ["sum is 11 plus", "sum is 12 plus"]
    assert {row["data_source"] for row in rows + others} == {"arith/test"}
    assert len({row["group"] for row in rows + others}) == 4


@pytest.mark.django_db
def test_all_rows_of_both_processes_are_stored_once_and_a_resend_changes_nothing(
    fully_async: Training, project: Project
) -> None:
    run = builders.run(project)
    names = ("attempt", "split", "step_kind", "source", "format", "producer")
    rendered = []
    for _ in range(2):
        for _, query, body in fully_async.receiver.dumps:
            index_file(run, body, int(query["step"]), **{name: query[name] for name in names if name in query})
        result = (
            Sample.objects.current_and_visible()
            .filter(step__run=run)
            .values_list("id", "step__split", "data_source", "group")
        )
        rendered.append(sorted(result))
    assert rendered[0] == rendered[1]
    assert Counter(split for _, split, _, _ in rendered[0]) == {"eval": 4, "train": 8}
    assert {(split, source) for _, split, source, _ in rendered[0]} == {
        ("eval", "arith/test"),
        ("train", "arith/train"),
    }
    assert len({group for _, _, _, group in rendered[0]}) == 8


def test_rows_of_the_fully_async_trainer_have_data_source_and_ground_truth_of_the_rollouter(
    fully_async: Training,
) -> None:
    batches = fully_async.list_batches("train")
    assert [len(rows) for _, rows in batches] == [4, 4]
    assert {query["producer"] for query, _ in batches} == {"trainer"}
    rows = [row for _, each in batches for row in each]
    assert pick_fields(rows, "data_source", "ground_truth")[::2] == [
        ("arith/train", str(truth)) for truth in (3, 4, 5, 6)
    ]
    assert [row["group"] for row in rows[::2]] == [f"uid_sample_0_{feed}" for feed in (2, 3, 4, 5)]


def list_axes(training: Training) -> dict[str, set[tuple[str, int]]]:
    """Returns the axes and steps of our own metrics and of those of verl."""
    result: dict[str, set[tuple[str, int]]] = {"ours": set(), "theirs": set()}
    for point in training.receiver.points():
        ours = any(name.startswith("rolloutdeck/") for name in point["values"])
        result["ours" if ours else "theirs"].add((point["step_kind"], point["step"]))
    return result


def test_fully_async_logs_its_metrics_by_parameter_version_and_counts_generations_at_the_trained_step(
    fully_async: Training,
) -> None:
    assert list_axes(fully_async) == {"ours": {("global_step", 1)}, "theirs": {("policy_version", 5)}}
    last = [point["values"] for point in fully_async.receiver.points() if "rolloutdeck/generated" in point["values"]][
        -1
    ]
    assert (last["rolloutdeck/generated"], last["rolloutdeck/trained"]) == (8, 8)  # of both batches of the step


@pytest.mark.django_db
def test_a_trained_step_of_fully_async_says_how_many_were_generated_and_has_their_tokens(
    fully_async: Training, project: Project
) -> None:
    run = builders.run(project)
    series.append_points(run, builders.attempt(run, "job"), [
        MetricPoint(point["step"], point["values"], step_kind=point["step_kind"])
        for point in fully_async.receiver.points()
    ])  # fmt: skip
    names = ("attempt", "split", "step_kind", "source", "format", "producer")
    for _, query, body in fully_async.receiver.dumps:
        index_file(run, body, int(query["step"]), **{name: query[name] for name in names if name in query})
    step = run.steps.get(split="train")
    assert (step.samples, step.generated, step.facets.get("tokens")) == (8, 8, 8)


@pytest.fixture(scope="module")
def one_step_off(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train("one_step_off.py", "", folder=tmp_path_factory.mktemp("one_step_off"))


@pytest.mark.parametrize("step", [1, 2])
def test_every_batch_of_one_step_off_arrives_at_the_step_that_trains_on_it(one_step_off: Training, step: int) -> None:
    rows, wrote = one_step_off.rows("train", step), one_step_off.read_json_lines(f"rollout/{step}.jsonl")
    assert pick_fields(rows, "prompt", "response", "score", "ground_truth") == pick_fields(
        wrote, "input", "output", "score", "gts"
    )
    assert {row["data_source"] for row in rows} == {"arith/train"}
    check_tensors(one_step_off, step)
    values = one_step_off.values(step)
    assert (values["rolloutdeck/generated"], values["rolloutdeck/trained"]) == (4, 4)


@pytest.mark.parametrize(("script", "error"), [
    (["one_step_off.py", "actor"], "CUDA error"),
    (["fully_async.py", "crash", ""], "MessageQueue client not set. Call set_message_queue_client() first."),
])  # fmt: skip
def test_a_crash_in_an_actor_of_ray_ends_the_run_as_failed(script: list[str], error: str, tmp_path: Path) -> None:
    training = train(*script, folder=tmp_path)
    assert training.read_output() == error
    assert training.outcomes() == ["failed"]


def test_actors_of_fully_async_work_on_a_node_without_rolloutdeck(tmp_path: Path) -> None:
    """Ray sends their classes to other nodes, with what we have put into them."""
    train("fully_async.py", "pickle", "", folder=tmp_path)
    words = ("fully_async.py", "unpickle", "", "trainer.logger=[console]")
    without = train(*words, folder=tmp_path, PYTHONPATH=str(tmp_path), VERL_USE_EXTERNAL_MODULES="")
    errors = [line for line in without.done.stdout.splitlines() if line.startswith('"')]
    assert errors == ['"MessageQueue client not set. Call set_message_queue_client() first."'] * 2
    training = train("fully_async.py", "unpickle", "", folder=tmp_path)
    assert training.outcomes() == ["failed"]


def test_validations_of_one_step_off_arrive_and_the_run_ends(one_step_off: Training) -> None:
    assert [len(one_step_off.rows("eval", step)) for step in (0, 1, 2)] == [3, 0, 3]
    assert {row["data_source"] for row in one_step_off.rows("eval", 2)} == {"arith/test"}
    assert one_step_off.outcomes() == ["finished"]


def test_a_one_step_off_training_that_crashes_ends_as_failed(tmp_path: Path) -> None:
    training = train("one_step_off.py", "crash", folder=tmp_path, may_fail="yes")
    assert "CUDA error" in training.done.stderr
    assert training.outcomes() == ["failed"]
