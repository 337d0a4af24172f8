"""Plans that repeat all targets or the last one, in real verl: over epochs, and after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.verl.process import Training, require_python
from tests.trainers.verl.test_replay import (
    DUMPS,
    call_api,
    create_plan,
    find_run,
    list_events,
    read_answers,
    run_training,
    upload_steps,
)

pytestmark = pytest.mark.trainers

EPOCHS = {"STEPS": "5"}  # of two batches each


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    require_python()
    with Product() as product:
        yield product


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("source")
    result = run_training(product, "v0.py", "source", folder, "", *DUMPS)
    upload_steps(product, "source", folder / "dumps")
    create_plan(product, "round", find_run(product, "source"), {1: 1, 2: 2}, action="repeat")
    return result


WORDS = ("other", "trainer.total_epochs=3", "trainer.resume_mode=auto")


@pytest.fixture(scope="module")
def crashed_training(product: Product, source: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Ends in the update of step 4, where its second round is at its second step."""
    values = {**EPOCHS, "CRASH": "4", "ROLLOUTDECK_PLAN": "round", "ROLLOUTDECK_ATTEMPT": "first", "may_fail": "yes"}
    return run_training(product, "v0.py", "round", tmp_path_factory.mktemp("crashed"), *WORDS, **values)


def test_repeat_starts_again_after_the_last_target_in_each_epoch(
    product: Product, source: Training, crashed_training: Training
) -> None:
    assert "CUDA error" in crashed_training.done.stderr
    assert [read_answers(crashed_training, step) for step in (1, 2, 3)] == [
        read_answers(source, step) for step in (1, 2, 1)
    ]
    wait_until(lambda: len(list_events(product, "round")) >= 4)
    assert list_events(product, "round") == [(step, "hit", 4) for step in (1, 2, 3, 4)]


def test_a_run_that_is_resumed_within_a_round_continues_it_with_the_revision_it_began_with(
    product: Product, source: Training, crashed_training: Training, tmp_path: Path
) -> None:
    wait_until(lambda: len(list_events(product, "round")) >= 4)
    body = {"plan": "round", "action": "cache", "entries": []}
    call_api(product, "PUT", "projects/default/replay-plan/", body, **{"If-Match": '"1"'})
    values = {**EPOCHS, "RESUMED": "3", "ROLLOUTDECK_PLAN": "round", "ROLLOUTDECK_ATTEMPT": "second"}
    result = run_training(product, "v0.py", "round", tmp_path, *WORDS, **values)
    assert [step["step"] for step in result.json("seen.json")] == [4, 5]
    assert [read_answers(result, step) for step in (4, 5)] == [read_answers(source, step) for step in (2, 1)]
    wait_until(lambda: (5, "hit", 4) in list_events(product, "round"))
    generated = run_training(product, "v0.py", "newer", tmp_path / "newer", "other", ROLLOUTDECK_PLAN="round")
    assert read_answers(generated, 1) != read_answers(source, 1)


def test_repeat_last_stays_at_the_last_target(product: Product, source: Training, tmp_path: Path) -> None:
    create_plan(product, "last", find_run(product, "source"), {1: 2}, action="repeat_last")
    values = {"STEPS": "3", "ROLLOUTDECK_PLAN": "last"}
    result = run_training(product, "v0.py", "last", tmp_path, "late", "trainer.total_epochs=3", **values)
    assert [read_answers(result, step) for step in (1, 2, 3)] == [read_answers(source, 2)] * 3
    wait_until(lambda: len(list_events(product, "last")) == 3)
    assert list_events(product, "last") == [(step, "hit", 4) for step in (1, 2, 3)]
