"""Runs that are drawn as one line with a band."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from rollouts.metrics import append_points
from rollouts.models import Project, Run
from rollouts.runs.configs import build_run_config
from rollouts.runs.run_groups import compute_group_curves, find_run_group, list_group_names
from rollouts.samples.record import MetricPoint
from tests.support import builders


def create_logged_run(project: Project, seed: int, values: dict[int, float | None], **config: object) -> Run:
    run = builders.run(project, f"ppo-s{seed}", tags=["sweep"], config={"seed": seed, "lr": 1, **config})
    append_points(run, builders.attempt(run), [MetricPoint(step, {"loss": value}) for step, value in values.items()])
    return run


@pytest.fixture
def runs(project: Project) -> list[Run]:
    """Of three seeds, one ends early and one begins late."""
    return [
        create_logged_run(project, 1, {1: 1.0, 2: 2.0}),
        create_logged_run(project, 2, {1: 3.0, 2: 4.0, 3: 6.0}),
        create_logged_run(project, 3, {2: None, 3: 8.0, 4: 1.0}),
    ]


def test_a_band_needs_two_runs_at_a_step(runs: list[Run]) -> None:
    (curve,) = compute_group_curves(runs, ["loss"])["loss"]
    assert (curve["steps"], curve["runs"]) == ([1, 2, 3, 4], [2, 2, 2, 1])
    assert curve["values"] == [2, 3, 7, 1]
    assert (curve["low"], curve["high"]) == ([1, 2, 6, None], [3, 4, 8, None])


def test_attempts_of_one_run_that_run_at_the_same_time_are_one_run(project: Project) -> None:
    run, other = builders.run(project, "one"), create_logged_run(project, 9, {1: 5.0})
    for name, value in (("a", 1.0), ("b", 3.0)):
        append_points(run, builders.attempt(run, name), [MetricPoint(1, {"loss": value})])
    run.attempts.update(concurrent_with=run.attempts.get(key="a"))
    (curve,) = compute_group_curves([run, other], ["loss"])["loss"]
    assert (curve["values"], curve["runs"], curve["low"], curve["high"]) == ([3.5], [2], [2], [5])
    (alone,) = compute_group_curves([run], ["loss"])["loss"]
    assert (alone["values"], alone["runs"], alone["low"]) == ([2], [1], [None])


def test_a_long_band_keeps_its_extremes(project: Project) -> None:
    long = [
        create_logged_run(project, seed, {step: float(seed * (step == 777)) for step in range(2000)}) for seed in (1, 9)
    ]
    (curve,) = compute_group_curves(long, ["loss"], 100)["loss"]
    assert len(curve["steps"]) <= 110
    assert (max(curve["high"]), max(curve["values"]), curve["low"][0]) == (9, 5, 0)


def test_seeds_are_runs_that_differ_in_nothing_else(runs: list[Run], project: Project) -> None:
    other = create_logged_run(project, 4, {1: 1.0}, lr=2)
    group = find_run_group("seeds", runs[1], Run.objects.all())
    assert group is not None
    assert ([run.name for run in group.runs], group.name) == (["ppo-s2", "ppo-s3", "ppo-s1"], "ppo")
    tagged = find_run_group("tag:sweep", other, Run.objects.all())
    assert tagged is not None and len(tagged.runs) == 4
    assert list_group_names(runs[0], Run.objects.all()) == [("seeds", 3), ("tag:sweep", 4)]
    assert find_run_group("tag:none", other, Run.objects.all()) is None
    assert find_run_group("what", other, Run.objects.all()) is None


def compute_signature(config: dict[str, object]) -> str:
    return build_run_config(json.dumps(config), "grpo").signature


@pytest.mark.parametrize("key", ["seed", "data.Seed", "trainer.manual_seed", "data-seed", "x/run_name", "output_dir"])
def test_seeds_and_names_are_not_compared(key: str) -> None:
    assert compute_signature({"lr": 1, key: 1}) == compute_signature({"lr": 1, key: 2})
    other = f"{key}_size"
    assert compute_signature({"lr": 1, other: 1}) != compute_signature({"lr": 1, other: 2})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("repeated", ["_", "a_", "."])
def test_a_long_key_is_compared_in_one_pass(repeated: str) -> None:
    """A pass from each of its characters would take an hour."""
    key = repeated * 1_000_000
    assert compute_signature({key: 1, "seed": 1}) == compute_signature({key: 1, "seed": 2}) != ""


def test_runs_without_a_configuration_are_no_seeds_of_each_other(project: Project) -> None:
    plain = [builders.run(project, name) for name in ("one", "two")]
    group = find_run_group("seeds", plain[0], Run.objects.all())
    assert group is not None and group.runs == (plain[0],)


def test_seeds_may_have_their_name_in_paths_and_an_archived_run_is_in_its_own_group(project: Project) -> None:
    folders = {"rollout_data_dir": "/dumps/{}", "save": "/ckpt/{}", "wandb_name": "{}"}
    runs = [
        builders.run(
            project,
            f"grpo-s{seed}",
            config={key: text.format(f"grpo-s{seed}") for key, text in folders.items()} | {"lr": 1},
        )
        for seed in (1, 2, 3)
    ]
    Run.objects.filter(pk=runs[0].pk).update(archived_at=timezone.now())
    group = find_run_group("seeds", Run.objects.get(pk=runs[0].pk), Run.objects.all())
    assert group is not None and [run.name for run in group.runs] == ["grpo-s1", "grpo-s3", "grpo-s2"]
