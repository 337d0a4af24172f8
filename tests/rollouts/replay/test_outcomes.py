"""What came of a plan: events, and the strip of a run."""

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
def source(project: Project) -> Run:
    return builders.run(project, "source")


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "next")


@pytest.fixture
def good(source: Run, owner: User) -> Pin:
    """Step 3, whose generation took 41.5 seconds."""
    register_artifact(source, 3)
    launched = attempts.get_or_create_attempt(source, "launch")
    series.append_points(
        source, launched, [MetricPoint(step, {"timing_s/gen": 38.5 + step}, "global_step") for step in (2, 3, 4)]
    )
    return pins.pin_step(source, 3, owner)[0]


def test_a_hit_says_what_the_source_steps_generation_had_taken(run: Run, good: Pin) -> None:
    row, created = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=good.pk, rows=32, seconds=0.5)
    assert (created, row.outcome, row.pin, row.rows, row.seconds, row.saved) == (True, "hit", good, 32, 0.5, 41.5)


@pytest.mark.parametrize(("name", "kind"), [("perf/rollout_time", "rollout_id"), ("time/step_generate", "global_step")])
def test_each_trainers_own_word_for_the_time_of_a_generation_is_known(
    run: Run, source: Run, owner: User, name: str, kind: str
) -> None:
    register_artifact(source, 9, step_kind=kind)
    series.append_points(source, attempts.get_or_create_attempt(source, "launch"), [MetricPoint(9, {name: 12.5}, kind)])
    pinned = pins.pin_step(source, 9, owner, step_kind=kind)[0]
    assert outcomes.record_replay_outcome(run, "a", 1, "hit", pin=pinned.pk, step_kind=kind)[0].saved == 12.5


def test_a_source_that_logged_no_time_saves_an_unknown_amount(run: Run, source: Run, owner: User) -> None:
    register_artifact(source, 9)
    row, _ = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=pins.pin_step(source, 9, owner)[0].pk)
    assert row.saved is None


def test_the_time_of_the_pins_own_launch_counts(run: Run, source: Run, good: Pin) -> None:
    series.append_points(source, good.attempt, [MetricPoint(3, {"timing_s/gen": 7.0}, "global_step")])
    assert outcomes.record_replay_outcome(run, "a", 1, "hit", pin=good.pk)[0].saved == 7.0


def test_told_again_it_is_the_same_event_and_the_last_word_stands(run: Run, good: Pin) -> None:
    outcomes.record_replay_outcome(run, "a", 1, "miss", reason="the bytes are not here yet")
    row, created = outcomes.record_replay_outcome(run, "a", 1, "hit", pin=good.pk)
    assert (created, row.outcome, row.reason, Replay.objects.count()) == (False, "hit", "", 1)


def test_a_miss_saves_nothing(run: Run, good: Pin) -> None:
    assert outcomes.record_replay_outcome(run, "a", 1, "miss", pin=good.pk)[0].saved is None


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
def test_an_event_that_makes_no_sense_is_refused(run: Run, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        outcomes.record_replay_outcome(run, "a", 1, **{"outcome": "hit", **wrong})


def test_a_pin_of_another_project_is_not_there(run: Run, good: Pin) -> None:
    other = builders.run(builders.project("code"), "theirs")
    with pytest.raises(NotFoundError, match="no pin"):
        outcomes.record_replay_outcome(other, "a", 1, "hit", pin=good.pk)


def test_without_a_pin_it_is_the_one_that_the_plan_has_there(run: Run, good: Pin, owner: User) -> None:
    plans.save_plan(run.project, "default", owner, if_match=0, action="repeat_last", entries=[(good, 2)])
    bindings.bind_run(run)
    assert outcomes.record_replay_outcome(run, "a", 1, "miss")[0].pin is None
    assert [outcomes.record_replay_outcome(run, "a", step, "hit")[0].pin for step in (2, 9)] == [good, good]


def test_the_strip_has_one_cell_per_step_and_sums_what_is_known(run: Run, good: Pin, owner: User) -> None:
    plans.save_plan(
        run.project, "default", owner, if_match=0, action="cache", entries=[(good, n) for n in (2, 3, 4, 5)]
    )
    bindings.bind_run(run)
    for step in (1, 2, 3, 4, 5):
        push_rows(run, step, [build_row(step, n, 1.0) for n in range(2)], attempt="a")
    outcomes.record_replay_outcome(run, "a", 2, "hit", rows=32, seconds=0.5)
    outcomes.record_replay_outcome(run, "a", 3, "refused", reason="32 rows, 64 wanted")
    outcomes.record_replay_outcome(run, "a", 4, "miss", reason="the server did not answer")
    rendered = outcomes.load_replay_timeline(run)
    assert [(cell.step, cell.state) for cell in rendered.steps] == [
        (1, "none"),
        (2, "replayed"),
        (3, "refused"),
        (4, "generated"),
        (5, "planned"),
    ]
    assert (rendered.steps[1].pin, rendered.steps[2].reason, rendered.steps[4].pin) == (
        good,
        "32 rows, 64 wanted",
        good,
    )
    assert (rendered.rows, rendered.seconds, rendered.saved, rendered.estimated) == (32, 0.5, 41.5, 1)
    assert rendered.counts == {"replayed": 1, "generated": 1, "refused": 1, "planned": 1, "none": 1}


def test_after_a_resume_the_last_launchs_word_stands_for_a_step(run: Run, good: Pin) -> None:
    outcomes.record_replay_outcome(run, "a", 1, "refused")
    outcomes.record_replay_outcome(run, "b", 1, "hit", pin=good.pk)
    [cell] = outcomes.load_replay_timeline(run).steps
    assert cell.state == "replayed"


def test_feed_indices_are_cells_of_their_own_kind_without_a_steps_time(run: Run, good: Pin) -> None:
    row, _ = outcomes.record_replay_outcome(run, "a", 7, "hit", step_kind="feed_index", pin=good.pk)
    push_rows(run, 7, [build_row(7, n, 1.0) for n in range(2)], attempt="a")
    assert row.saved is None
    assert {(cell.step_kind, cell.step, cell.state) for cell in outcomes.load_replay_timeline(run).steps} == {
        ("feed_index", 7, "replayed"),
        ("global_step", 7, "none"),
    }


def test_the_steps_of_a_trainer_that_counts_rollouts_are_all_there(run: Run, good: Pin) -> None:
    for step in (0, 1):
        index_file(run, lines({"prompt": "p", "response": "r"}), step, step_kind="rollout_id", format="native")
    states = [(step.step_kind, step.step, step.state) for step in outcomes.load_replay_timeline(run).steps]
    assert states == [("rollout_id", 0, "none"), ("rollout_id", 1, "none")]


def test_prompts_that_are_reported_one_by_one_are_the_outcome_of_their_step(
    run: Run, project: Project, good: Pin, owner: User
) -> None:
    register_artifact(good.run, 4)
    other = pins.pin_step(good.run, 4, owner)[0]
    plans.save_plan(project, "default", owner, if_match=0, action="cache", entries=[(good, 2), (other, 70)])
    bindings.bind_run(run)
    push_rows(run, 2, [build_row(2, n, 1.0) for n in range(2)], attempt="a")
    for feed in (68, 69, 70):
        outcomes.record_replay_outcome(run, "a", feed, "hit", step_kind="feed_index", pin=good.pk, rows=4, seconds=0.5)
    timeline = outcomes.load_replay_timeline(run)
    assert [(step.step_kind, step.step, step.state) for step in timeline.steps] == [("global_step", 2, "replayed")]
    assert (timeline.rows, timeline.seconds) == (12, 1.5)
    found = preview.load_entry_outcomes(run, "cache", {2: good.pk, 70: other.pk})
    assert found[2].label == "replayed (3 of 3 prompts replayed)" and found[70].state == "not_reached"
    outcomes.record_replay_outcome(run, "a", 69, "refused", step_kind="feed_index", pin=good.pk, reason="torn")
    assert preview.load_entry_outcomes(run, "cache", {5: good.pk}) == {}, "the run's plan has the pin elsewhere"
    timeline = outcomes.load_replay_timeline(run)
    (step,) = timeline.steps
    assert (step.state, step.reason, step.prompts, step.replayed_prompts) == ("refused", "torn", 3, 2)
    assert (timeline.rows, timeline.seconds) == (8, 1.0)
    assert preview.load_entry_outcomes(run, "cache", {2: good.pk})[2].label == "refused (2 of 3 prompts replayed)"


def test_a_prompt_that_names_no_pin_is_not_taken_for_a_step_of_the_plan(
    run: Run, project: Project, good: Pin, owner: User
) -> None:
    plans.save_plan(project, "default", owner, if_match=0, action="cache", entries=[(good, 2)])
    bindings.bind_run(run)
    assert outcomes.record_replay_outcome(run, "a", 2, "miss", step_kind="feed_index")[0].pin is None
    assert preview.load_entry_outcomes(run, "cache", {2: good.pk})[2].state == "not_reached"
    assert outcomes.record_replay_outcome(run, "a", 2, "miss")[0].pin == good


def test_a_run_without_steps_has_an_empty_strip(run: Run) -> None:
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
