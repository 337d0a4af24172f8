"""Plans that go round, or stay at their last target, in real verl: over epochs, and after a crash in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.verl.process import Training, python
from tests.trainers.verl.test_replay import DUMPS, answers, call_api, events, planned, run_of, training, upload_steps

pytestmark = pytest.mark.trainers

EPOCHS = {"STEPS": "5"}  # of two batches each


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    python()
    with Product() as product:
        yield product


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("source")
    result = training(product, "v0.py", "source", folder, "", *DUMPS)
    upload_steps(product, "source", folder / "dumps")
    planned(product, "round", run_of(product, "source"), {1: 1, 2: 2}, action="repeat")
    return result


WORDS = ("other", "trainer.total_epochs=3", "trainer.resume_mode=auto")


@pytest.fixture(scope="module")
def crashed(product: Product, source: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Ends in the update of step 4, where its second round is at its second step."""
    values = {**EPOCHS, "CRASH": "4", "ROLLOUTDECK_PLAN": "round", "ROLLOUTDECK_ATTEMPT": "first", "may_fail": "yes"}
    return training(product, "v0.py", "round", tmp_path_factory.mktemp("crashed"), *WORDS, **values)


def test_repeat_goes_round_the_targets_in_each_epoch(product: Product, source: Training, crashed: Training) -> None:
    assert "CUDA error" in crashed.done.stderr
    assert [answers(crashed, step) for step in (1, 2, 3)] == [answers(source, step) for step in (1, 2, 1)]
    wait_until(lambda: len(events(product, "round")) >= 4)
    assert events(product, "round") == [(step, "hit", 4) for step in (1, 2, 3, 4)]


def test_a_run_that_is_resumed_within_a_round_goes_on_in_it_by_the_revision_it_began_with(
    product: Product, source: Training, crashed: Training, tmp_path: Path
) -> None:
    wait_until(lambda: len(events(product, "round")) >= 4)
    body = {"plan": "round", "action": "cache", "entries": []}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"1"'})
    values = {**EPOCHS, "RESUMED": "3", "ROLLOUTDECK_PLAN": "round", "ROLLOUTDECK_ATTEMPT": "second"}
    result = training(product, "v0.py", "round", tmp_path, *WORDS, **values)
    assert [step["step"] for step in result.json("seen.json")] == [4, 5]
    assert [answers(result, step) for step in (4, 5)] == [answers(source, step) for step in (2, 1)]
    wait_until(lambda: (5, "hit", 4) in events(product, "round"))
    generated = training(product, "v0.py", "newer", tmp_path / "newer", "other", ROLLOUTDECK_PLAN="round")
    assert answers(generated, 1) != answers(source, 1)


def test_repeat_last_stays_at_the_last_target(product: Product, source: Training, tmp_path: Path) -> None:
    planned(product, "last", run_of(product, "source"), {1: 2}, action="repeat_last")
    values = {"STEPS": "3", "ROLLOUTDECK_PLAN": "last"}
    result = training(product, "v0.py", "last", tmp_path, "late", "trainer.total_epochs=3", **values)
    assert [answers(result, step) for step in (1, 2, 3)] == [answers(source, 2)] * 3
    wait_until(lambda: len(events(product, "last")) == 3)
    assert events(product, "last") == [(step, "hit", 4) for step in (1, 2, 3)]
