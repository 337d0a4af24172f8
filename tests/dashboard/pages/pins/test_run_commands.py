"""The commands to paste so that the next run uses a plan, for the trainer that loads its pins."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import escape

from rollouts.models import Pin, Run
from rollouts.pins import pins
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import FACTS, create_remote_artifact, get_page

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
def test_the_page_shows_the_line_that_a_trainer_needs_to_fetch_pins_itself(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User, format: str, command: str
) -> None:
    """The project has another pin (the fixture `pin`), which is in no plan."""
    create_remote_artifact(run, 7, facts={**FACTS, "format": format}, files={"7": {"sha256": "7" * 64, "bytes": 9}})
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, maintainer, pins.pin_step(run, 7, maintainer)[0], 7)
    page = get_page(maintainer_client, "/pins/?project=math")
    assert ("export ROLLOUTDECK_PLAN" in page, "Also pass to the trainer:" in page) == (bool(command), bool(command))
    assert escape(command) in page


def test_commands_that_belong_together_are_in_one_column(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    create_remote_artifact(
        run, 7, facts={**FACTS, "format": "trl-rollout"}, files={"7": {"sha256": "7" * 64, "bytes": 9}}
    )
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, maintainer, pins.pin_step(run, 7, maintainer)[0], 7)
    page = (
        get_page(maintainer_client, "/pins/?project=math")
        .partition("Use the plan in the next run</h2>")[2]
        .partition("</section>")[0]
    )
    _, pull_column, fetch_column = page.split('<div class="stack">')
    assert (
        "rolloutdeck pull" in pull_column
        and "ROLLOUTDECK_PLAN" in fetch_column
        and "replay_rollout_func()" in fetch_column
    )


def test_a_custom_training_gets_no_commands_of_other_trainers(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    create_remote_artifact(
        run, 7, facts={**FACTS, "format": "tiny-grpo"}, files={"7.json": {"sha256": "7" * 64, "bytes": 9}}
    )
    plans.add_plan_entry(run.project, plans.DEFAULT_PLAN_NAME, maintainer, pins.pin_step(run, 7, maintainer)[0], 7)
    page = (
        get_page(maintainer_client, "/pins/?project=math")
        .partition("Use the plan in the next run</h2>")[2]
        .partition("</section>")[0]
    )
    assert "calls run.replay_plan()" in page and "export ROLLOUTDECK_PLAN=default@1" in page
    assert "pull" not in page and "verl" not in page and "ray_kwargs" not in page
