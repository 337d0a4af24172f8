"""The lines to paste by which the next run uses a plan, for the trainer that would load its pins."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import escape

from rollouts.models import Pin, Run
from rollouts.pins import pins
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import FACTS, body, remote_artifact

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize(
    ("format", "command"),
    [
        ("trl-rollout", "rollout_func=replay_rollout_func())"),
        ("slime-rollout", "--rollout-function-path rolloutdeck.trainers.slime.generate_rollout"),
        ("gen_batch", "trainer.logger="),
        ("roll-mock", ""),
        ("cure", ""),
    ],
)
def test_a_trainer_that_fetches_pins_by_itself_is_told_by_which_of_its_own_lines(
    signed: Client, pin: Pin, run: Run, keeper: User, format: str, command: str
) -> None:
    """`pin`: the project has one more, which stands in no plan."""
    remote_artifact(run, 7, facts={**FACTS, "format": format}, files={"7": {"sha256": "7" * 64, "bytes": 9}})
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, keeper, pins.pin_step(run, 7, keeper)[0], 7)
    page = body(signed, "/pins/?project=math")
    assert ("export ROLLOUTDECK_PLAN" in page, "Also pass to the trainer:" in page) == (bool(command), bool(command))
    assert escape(command) in page


def test_what_goes_together_stands_in_one_column(signed: Client, pin: Pin, run: Run, keeper: User) -> None:
    remote_artifact(run, 7, facts={**FACTS, "format": "trl-rollout"}, files={"7": {"sha256": "7" * 64, "bytes": 9}})
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, keeper, pins.pin_step(run, 7, keeper)[0], 7)
    page = (
        body(signed, "/pins/?project=math").partition("Use the plan in the next run</h2>")[2].partition("</section>")[0]
    )
    _, placed, fetched = page.split('<div class="stack">')
    assert "rolloutdeck pull" in placed and "ROLLOUTDECK_PLAN" in fetched and "replay_rollout_func()" in fetched


def test_a_training_of_ones_own_is_not_told_of_a_trainer_that_would_not_load_it(
    signed: Client, pin: Pin, run: Run, keeper: User
) -> None:
    remote_artifact(run, 7, facts={**FACTS, "format": "tiny-grpo"}, files={"7.json": {"sha256": "7" * 64, "bytes": 9}})
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, keeper, pins.pin_step(run, 7, keeper)[0], 7)
    page = (
        body(signed, "/pins/?project=math").partition("Use the plan in the next run</h2>")[2].partition("</section>")[0]
    )
    assert "calls run.replay_plan()" in page and "export ROLLOUTDECK_PLAN=default@1" in page
    assert "pull" not in page and "verl" not in page and "ray_kwargs" not in page
