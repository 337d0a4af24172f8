"""The time that replays save: units that fit, and its share of the time that the run would have taken."""

from __future__ import annotations

import pytest
from django.test import Client

from rollouts.metrics import append_points
from rollouts.models import Pin, Run
from rollouts.pins import pins
from rollouts.replay import bindings, outcomes, plans
from rollouts.samples.record import MetricPoint
from tests.dashboard.pages.pins.support import body, panel
from tests.support import builders

pytestmark = pytest.mark.one_database


def test_saved_time_is_a_part_of_the_time_without_replay(signed: Client, pin: Pin) -> None:
    points = [MetricPoint(step=2, values={"timing_s/gen": 20.04})]
    append_points(pin.run, pin.attempt, points)
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 2)])
    assert "saves 20 s at most, if all 1 are replayed" in body(signed, "/pins/?project=math")
    again = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(again)
    outcomes.record_replay_outcome(again, "a", 2, "hit", rows=2, seconds=0.04)
    append_points(again, again.attempts.get(), [MetricPoint(step=2, values={"timing_s/step": 80.0})])
    assert "saved 20 s of 100 s (20.0 %)" in body(signed, "/pins/?project=math")
    replayed = panel(signed, "/runs/again/", "reuse")
    assert "(20.0 % of the time without replay)" in replayed and "40 ms" in replayed


def test_loading_of_steps_whose_generation_time_is_unknown_is_no_loss(signed: Client, pin: Pin, run: Run) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 60.0})])
    other = pins.pin_step(run, 1, pin.user)[0]
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 1), (other, 2)])
    again = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(again)
    outcomes.record_replay_outcome(again, "a", 1, "hit", rows=2, seconds=3.0)
    outcomes.record_replay_outcome(again, "a", 2, "hit", rows=2, seconds=300.0)
    assert "saved 57 s" in body(signed, "/pins/?project=math")


def test_no_upper_limit_is_given_for_a_plan_that_replays_a_pin_many_times(signed: Client, pin: Pin) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 20.0})])
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="repeat", entries=[(pin, 2)])
    assert "at most, if all" not in body(signed, "/pins/?project=math")


def test_the_run_and_its_plan_say_the_same_if_loading_took_longer_than_generating(signed: Client, pin: Pin) -> None:
    append_points(pin.run, pin.attempt, [MetricPoint(step=2, values={"timing_s/gen": 2.0})])
    plans.save_plan(pin.project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 2)])
    again = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(again)
    outcomes.record_replay_outcome(again, "a", 2, "hit", rows=2, seconds=7.7)
    for page in (body(signed, "/pins/?project=math"), panel(signed, "/runs/again/", "reuse")):
        assert "no time saved: loading took as long as generating" in page and "of generation saved" not in page
