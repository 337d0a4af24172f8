"""Replay outcomes are recorded for each step and shown in the timeline of the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest import attempts
from rollouts.metrics import series
from rollouts.models import Attempt, Pin, Project, Replay, Run
from rollouts.pins import pins
from rollouts.replay import bindings, outcomes, plans, preview
from rollouts.samples.record import MetricPoint
from tests.dashboard.support.api_client import build_row, push_rows
from tests.rollouts.support.artifacts import register_artifact
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def source_run(project: Project) -> Run:
    return builders.run(project, "source")


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "next")


@pytest.fixture
def source_pin(source_run: Run, owner: User) -> Pin:
    """Step 3, whose generation took 41.5 seconds."""
    register_artifact(source_run, 3)
    launched = attempts.get_or_create_attempt(source_run, "launch")
    series.append_points(
        source_run, launched, [MetricPoint(step, {"timing_s/gen": 38.5 + step}, "global_step") for step in (2, 3, 4)]
    )
    return pins.pin_step(source_run, 3, owner)[0]


def test_a_hit_saves_the_generation_time_of_the_source_step(run: Run, source_pin: Pin) -> None:
    row, created = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=source_pin.pk, rows=32, seconds=0.5)
    assert (created, row.outcome, row.pin, row.rows, row.seconds, row.saved) == (True, "hit", source_pin, 32, 0.5, 41.5)


@pytest.mark.parametrize(("name", "kind"), [("perf/rollout_time", "rollout_id"), ("time/step_generate", "global_step")])
def test_the_generation_time_metric_of_each_trainer_is_known(
    run: Run, source_run: Run, owner: User, name: str, kind: str
) -> None:
    register_artifact(source_run, 9, step_kind=kind)
    series.append_points(
        source_run, attempts.get_or_create_attempt(source_run, "launch"), [MetricPoint(9, {name: 12.5}, kind)]
    )
    pinned = pins.pin_step(source_run, 9, owner, step_kind=kind)[0]
    assert outcomes.record_replay_outcome(run, "a", 1, "hit", pin=pinned.pk, step_kind=kind)[0].saved == 12.5


def test_a_source_that_logged_no_time_saves_an_unknown_amount(run: Run, source_run: Run, owner: User) -> None:
    register_artifact(source_run, 9)
    row, _ = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=pins.pin_step(source_run, 9, owner)[0].pk)
    assert row.saved is None


def test_the_saved_time_is_that_of_the_pins_own_launch(run: Run, source_run: Run, source_pin: Pin) -> None:
    series.append_points(source_run, source_pin.attempt, [MetricPoint(3, {"timing_s/gen": 7.0}, "global_step")])
    assert outcomes.record_replay_outcome(run, "a", 1, "hit", pin=source_pin.pk)[0].saved == 7.0


def test_an_outcome_that_is_reported_again_replaces_the_earlier_one(run: Run, source_pin: Pin) -> None:
    outcomes.record_replay_outcome(run, "a", 1, "miss", reason="the bytes are not here yet")
    row, created = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=source_pin.pk)
    assert (created, row.outcome, row.reason, Replay.objects.count()) == (False, "hit", "", 1)


def test_a_miss_saves_nothing(run: Run, source_pin: Pin) -> None:
    assert outcomes.record_replay_outcome(run, "a", 1, "miss", pin=source_pin.pk)[0].saved is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "maybe"},
        {"outcome": ""},
        {"rows": -1},
        {"rows": 1.5},
        {"seconds": -1},
        {"seconds": "1"},
        {"seconds": float("nan")},
        {"step_kind": "epoch"},
        {"reason": 7},
    ],
)
def test_an_invalid_outcome_is_refused(run: Run, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        outcomes.record_replay_outcome(run, "a", 1, **{"outcome": "hit", **wrong})


def test_a_pin_of_another_project_is_not_found(run: Run, source_pin: Pin) -> None:
    other = builders.run(builders.project("code"), "theirs")
    with pytest.raises(NotFoundError, match="no pin"):
        outcomes.record_replay_outcome(other, "a", 1, "hit", pin=source_pin.pk)


def test_an_outcome_without_a_pin_gets_the_pin_of_the_plan(run: Run, source_pin: Pin, owner: User) -> None:
    plans.save_plan(run.project, "default", owner, if_match=0, action="repeat_last", entries=[(source_pin, 2)])
    bindings.bind_run(run)
    assert outcomes.record_replay_outcome(run, "a", 1, "miss")[0].pin is None
    assert [outcomes.record_replay_outcome(run, "a", step, "hit")[0].pin for step in (2, 9)] == [source_pin, source_pin]


def test_the_timeline_has_one_cell_per_step_and_the_sums_of_known_values(
    run: Run, source_pin: Pin, owner: User
) -> None:
    plans.save_plan(
        run.project, "default", owner, if_match=0, action="cache", entries=[(source_pin, n) for n in (2, 3, 4, 5)]
    )
    bindings.bind_run(run)
    for step in (1, 2, 3, 4, 5):
        push_rows(run, step, [build_row(step, n, 1.0) for n in range(2)], attempt="a")
    outcomes.record_replay_outcome(run, "a", 2, "hit", rows=32, seconds=0.5)
    outcomes.record_replay_outcome(run, "a", 3, "refused", reason="32 rows, 64 wanted")
    outcomes.record_replay_outcome(run, "a", 4, "miss", reason="the server did not answer")
    timeline = outcomes.load_replay_timeline(run)
    assert [(cell.step, cell.state) for cell in timeline.steps] == [
        (1, "none"),
        (2, "replayed"),
        (3, "refused"),
        (4, "generated"),
        (5, "planned"),
    ]
    assert (timeline.steps[1].pin, timeline.steps[2].reason, timeline.steps[4].pin) == (
        source_pin,
        "32 rows, 64 wanted",
        source_pin,
    )
    assert (timeline.rows, timeline.seconds, timeline.saved, timeline.estimated) == (32, 0.5, 41.5, 1)
    assert timeline.counts == {"replayed": 1, "generated": 1, "refused": 1, "planned": 1, "none": 1}


def test_after_a_resume_the_outcome_of_the_last_launch_counts(run: Run, source_pin: Pin) -> None:
    outcomes.record_replay_outcome(run, "a", 1, "refused")
    outcomes.record_replay_outcome(run, "b", 1, "hit", pin=source_pin.pk)
    [cell] = outcomes.load_replay_timeline(run).steps
    assert cell.state == "replayed"


def test_feed_indices_have_cells_of_their_own_kind_and_save_no_time(run: Run, source_pin: Pin) -> None:
    row, _ = outcomes.record_replay_outcome(run, "a", 7, "hit", step_kind="feed_index", pin=source_pin.pk)
    push_rows(run, 7, [build_row(7, n, 1.0) for n in range(2)], attempt="a")
    assert row.saved is None
    assert {(cell.step_kind, cell.step, cell.state) for cell in outcomes.load_replay_timeline(run).steps} == {
        ("feed_index", 7, "replayed"),
        ("global_step", 7, "none"),
    }


def test_the_timeline_has_all_steps_of_a_trainer_that_counts_rollouts(run: Run, source_pin: Pin) -> None:
    for step in (0, 1):
        index_file(run, lines({"prompt": "p", "response": "r"}), step, step_kind="rollout_id", format="native")
    states = [(step.step_kind, step.step, step.state) for step in outcomes.load_replay_timeline(run).steps]
    assert states == [("rollout_id", 0, "none"), ("rollout_id", 1, "none")]


def test_prompts_that_are_reported_one_by_one_are_the_outcome_of_their_step(
    run: Run, project: Project, source_pin: Pin, owner: User
) -> None:
    register_artifact(source_pin.run, 4)
    other = pins.pin_step(source_pin.run, 4, owner)[0]
    plans.save_plan(project, "default", owner, if_match=0, action="cache", entries=[(source_pin, 2), (other, 70)])
    bindings.bind_run(run)
    push_rows(run, 2, [build_row(2, n, 1.0) for n in range(2)], attempt="a")
    for feed in (68, 69, 70):
        outcomes.record_replay_outcome(
            run, "a", feed, "hit", step_kind="feed_index", pin=source_pin.pk, rows=4, seconds=0.5
        )
    timeline = outcomes.load_replay_timeline(run)
    assert [(step.step_kind, step.step, step.state) for step in timeline.steps] == [("global_step", 2, "replayed")]
    assert (timeline.rows, timeline.seconds) == (12, 1.5)
    found = preview.load_entry_outcomes(run, "cache", {2: source_pin.pk, 70: other.pk})
    assert found[2].label == "replayed (3 of 3 prompts replayed)" and found[70].state == "not_reached"
    outcomes.record_replay_outcome(run, "a", 69, "refused", step_kind="feed_index", pin=source_pin.pk, reason="torn")
    assert preview.load_entry_outcomes(run, "cache", {5: source_pin.pk}) == {}, "the run's plan has the pin elsewhere"
    timeline = outcomes.load_replay_timeline(run)
    (step,) = timeline.steps
    assert (step.state, step.reason, step.prompts, step.replayed_prompts) == ("refused", "torn", 3, 2)
    assert (timeline.rows, timeline.seconds) == (8, 1.0)
    assert preview.load_entry_outcomes(run, "cache", {2: source_pin.pk})[2].label == "refused (2 of 3 prompts replayed)"


def test_a_prompt_that_names_no_pin_is_not_taken_for_a_step_of_the_plan(
    run: Run, project: Project, source_pin: Pin, owner: User
) -> None:
    plans.save_plan(project, "default", owner, if_match=0, action="cache", entries=[(source_pin, 2)])
    bindings.bind_run(run)
    assert outcomes.record_replay_outcome(run, "a", 2, "miss", step_kind="feed_index")[0].pin is None
    assert preview.load_entry_outcomes(run, "cache", {2: source_pin.pk})[2].state == "not_reached"
    assert outcomes.record_replay_outcome(run, "a", 2, "miss")[0].pin == source_pin


def test_a_run_without_steps_has_an_empty_timeline(run: Run) -> None:
    assert outcomes.load_replay_timeline(run).steps == ()


def test_the_time_of_a_run_is_that_of_its_steps_else_that_of_its_attempts(run: Run) -> None:
    attempt = attempts.get_or_create_attempt(run, "files")
    Attempt.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert outcomes.measure_wall_seconds(run) == 0  # files arrive when they are read
    attempt = attempts.get_or_create_attempt(run, "launch")
    Attempt.objects.filter(pk=attempt.pk).update(created_at=attempt.seen_at - timedelta(seconds=90))
    assert outcomes.measure_wall_seconds(run) == 90
    series.append_points(run, attempt, [MetricPoint(step=n, values={"timing_s/step": 10.0 * n}) for n in (1, 2)])
    assert outcomes.measure_wall_seconds(run) == 30
