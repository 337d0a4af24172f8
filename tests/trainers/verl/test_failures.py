"""Failures of the plug-in or the server do not change what verl's trainers train on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import Receiver, wait_until
from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

# Script and its words, for each process of a training that is one after the other; the hooks of ours that it reaches.
TRAINERS: dict[str, tuple[list[list[str]], list[str]]] = {
    "v0": ([["v0.py"]], ["trainer_v0.log_trained_batch", "metrics.add_backend", "guidance.match_padded"]),
    "v1": ([["v1.py", ""]], ["trainer_v1.log_batch", "metrics.add_backend", "guidance.match_jagged"]),
    "one step off": (
        [["one_step_off.py", ""]],
        ["trainer_v0.log_trained_batch", "metrics.add_backend", "guidance.match_padded"],
    ),
    "fully async": (
        [["fully_async.py", "rollouter", ""], ["fully_async.py", "trainer", ""]],
        ["dataset_fields.copy_dataset_fields", "trainer_v0.log_trained_batch", "metrics.add_backend"],
    ),
}


def run_trainer(
    kind: str, folder: Path, failure: str = "", receiver: Receiver | None = None
) -> tuple[list[Training], str]:
    """Runs its processes, and returns them with their standard error."""
    receiver, result = receiver or Receiver(), []
    for words in TRAINERS[kind][0]:
        environ = {"BESIDE": failure, "ROLLOUTDECK_ATTEMPT": "job", "ROLLOUTDECK_GUIDANCE": "on"}
        result.append(train(*words, folder=folder, receiver=receiver, **environ))
    return result, "".join(item.done.stderr for item in result)


def list_updates(trainings: list[Training]) -> list[Any]:
    """What the trainer held at each update. verl draws the uids of its rows, by which V1 names and sorts them."""
    created = []
    for step in trainings[-1].json("seen.json"):
        rows = step["rows"] if "rows" in step else [row for key, row in step.items() if not key.startswith("pad")]
        values = [{**row, "uid": ""} for row in rows]
        created.append(values if "rows" in step else sorted(values, key=json.dumps))
    return created


@pytest.fixture(scope="module", params=TRAINERS)
def plain_updates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """A trainer, and what it trains on where its logger does not name us."""
    result, _ = run_trainer(request.param, tmp_path_factory.mktemp("alone"), "unnamed")
    assert result[0].receiver.posts == result[0].receiver.dumps == []
    assert len(list_updates(result)) >= 2 and all(list_updates(result))
    return request.param, list_updates(result)


def test_a_killed_server_and_a_full_disk_do_not_change_the_training(
    plain_updates: tuple[str, list[Any]], tmp_path: Path
) -> None:
    kind, expected = plain_updates
    receiver = Receiver()
    killer = threading.Thread(target=lambda: (wait_until(lambda: receiver.posts, 200), receiver.down()), daemon=True)
    (tmp_path / "killed").mkdir(), (tmp_path / "full").mkdir()
    killer.start()
    result, _ = run_trainer(kind, tmp_path / "killed", receiver=receiver)
    killer.join(60)
    assert receiver.posts and list_updates(result) == expected
    result, message = run_trainer(kind, tmp_path / "full", "full")
    assert "the spool's disk failed" in message and list_updates(result) == expected


def test_hooks_that_raise_do_not_change_the_training(plain_updates: tuple[str, list[Any]], tmp_path: Path) -> None:
    """The hooks of validations, of trained batches, and of the logger."""
    kind, expected = plain_updates
    result, message = run_trainer(kind, tmp_path, "raise")
    for hook in TRAINERS[kind][1]:
        assert f"Rolloutdeck lost something in {hook}: NameError" in message
    assert list_updates(result) == expected
