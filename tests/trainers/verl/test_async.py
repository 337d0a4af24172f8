"""The plug-in in V1's async trainers, whose batches were generated at earlier steps, one or several updates a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

UPDATES = {"colocate_async": 1, "separate_async": 2}


@pytest.fixture(scope="module", params=UPDATES)
def async_training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, int]:
    """A run, and how many updates it makes at a step."""
    words = ("", f"trainer.v1.trainer_mode={request.param}")
    return train("v1.py", *words, folder=tmp_path_factory.mktemp(request.param)), UPDATES[request.param]


def read_trained_rows(training: Training, step: int, updates: int) -> dict[str, dict[str, Any]]:
    """What the trainer held of each trajectory at the updates of a step, padding left out."""
    seen = training.json("seen.json")[(step - 1) * updates : step * updates]
    return {key: row for batch in seen for key, row in batch.items() if not key.startswith("pad")}


@pytest.mark.parametrize("step", [1, 2])
def test_every_batch_of_an_async_step_arrives_once_with_the_tensors_that_it_was_trained_with(
    async_training: tuple[Training, int], step: int
) -> None:
    result, updates = async_training
    tensors = read_trained_rows(result, step, updates)
    rows = {f"{row['trajectory']}_{row['turn']}": row for row in result.rows("train", step)}
    assert rows.keys() == tensors.keys() and len(result.rows("train", step)) == len(rows) == 4
    for key, row in rows.items():
        assert row["response_ids"] == tensors[key]["responses"]
        assert row["response_mask"] == tensors[key]["response_mask"]
        assert row["logprobs"] == tensors[key]["old_log_probs"]
        assert row["advantages"] == tensors[key]["advantages"]
    wrote = {row["uid"]: row["output"] for row in result.read_json_lines(f"rollout/{step}.jsonl")}
    assert {key: row["response"] for key, row in rows.items()} == {key: wrote[key] for key in rows}
    assert {row["policy_version"] for row in rows.values()} == {3}


def test_an_async_step_records_how_many_generations_it_was_trained_on(async_training: tuple[Training, int]) -> None:
    for step in (1, 2):
        values = async_training[0].values(step)
        assert (values["rolloutdeck/generated"], values["rolloutdeck/trained"]) == (4, 4)
    assert async_training[0].outcomes() == ["finished"]


def test_validations_of_async_trainers_arrive_by_step(async_training: tuple[Training, int]) -> None:
    assert [len(async_training[0].rows("eval", step)) for step in (0, 1, 2)] == [6, 0, 6]
