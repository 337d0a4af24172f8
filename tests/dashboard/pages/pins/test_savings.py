"""The time that replays save: units that fit, and its share of the time that the run would have taken."""

from __future__ import annotations

import pytest
from django.test import Client

from rollouts.metrics import append_points
from rollouts.models import Pin, Run
from rollouts.pins import pins
from rollouts.replay import bindings, outcomes, plans
from rollouts.samples.record import MetricPoint
from tests.dashboard.pages.pins.support import get_page, get_panel
from tests.support import builders

pytestmark = pytest.mark.one_database


def test_saved_time_is_shown_as_a_share_of_the_time_without_replay(maintainer_client: Client, pin: Pin) -> None:
    points = [MetricPoint(step=2, values={"timing_s/gen": 20.04})]
    append_points(pin.run, pin.attempt, points)
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 2)])
    assert "saves 20 s at most, if all 1 are replayed" in get_page(maintainer_client, "/pins/?project=math")
    next_run = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 2, "hit", rows=2, seconds=0.04)
    append_points(next_run, next_run.attempts.get(), [MetricPoint(step=2, values={"timing_s/step": 80.0})])
    assert "saved 20 s of 100 s (20.0 %)" in get_page(maintainer_client, "/pins/?project=math")
    replayed = get_panel(maintainer_client, "/runs/again/", "reuse")
    assert "(20.0 % of the time without replay)" in replayed and "40 ms" in replayed


def test_loading_time_is_not_counted_if_the_generation_time_is_unknown(
    maintainer_client: Client, pin: Pin, run: Run
) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 60.0})])
    other = pins.pin_step(run, 1, pin.user)[0]
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 1), (other, 2)])
    next_run = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 1, "hit", rows=2, seconds=3.0)
    outcomes.record_replay_outcome(next_run, "a", 2, "hit", rows=2, seconds=300.0)
    assert "saved 57 s" in get_page(maintainer_client, "/pins/?project=math")


def test_no_upper_limit_is_given_for_a_plan_that_replays_a_pin_many_times(maintainer_client: Client, pin: Pin) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 20.0})])
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="repeat", entries=[(pin, 2)])
    assert "at most, if all" not in get_page(maintainer_client, "/pins/?project=math")


def test_the_run_and_its_plan_say_the_same_if_loading_took_longer_than_generating(
    maintainer_client: Client, pin: Pin
) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 2.0})])
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 2)])
    next_run = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 2, "hit", rows=2, seconds=7.7)
    for page in (
        get_page(maintainer_client, "/pins/?project=math"),
        get_panel(maintainer_client, "/runs/again/", "reuse"),
    ):
        assert "no time saved: loading took as long as generating" in page and "of generation saved" not in page
