"""If a replay inside slime fails, slime generates what it would have generated without the plug-in."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.slime.test_replay import create_plan, list_artifacts, read_samples, run_training
from tests.trainers.slime.test_slime import require_slime
from tests.trainers.verl.process import Training, require_python, train
from tests.trainers.verl.test_replay import find_run

pytestmark = pytest.mark.trainers

REPLAYING, BREAKING = "../../slime/inside/replaying.py", "../../slime/inside/breaking.py"


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same rollouts without a plan."""
    return train(REPLAYING, "again", folder=tmp_path_factory.mktemp("alone"), SLIME=require_slime())


def test_an_error_in_the_rollout_function_does_not_change_the_samples(plain_training: Training, tmp_path: Path) -> None:
    values = {"SLIME": require_slime(), "BREAKS": "raise", "ROLLOUTDECK_PLAN": "any"}
    result = train(BREAKING, "again", folder=tmp_path, **values)
    assert result.json("made.json") == plain_training.json("made.json")
    assert "Rolloutdeck lost something in replay._try_replay: RuntimeError: a mistake of ours" in result.done.stderr


def test_a_server_that_stops_before_a_pin_is_fetched_does_not_change_the_samples(
    plain_training: Training, tmp_path: Path
) -> None:
    require_python(), require_slime()
    with Product() as product:
        source = run_training(product, tmp_path / "source", "source", "first", SEND="yes")
        wait_until(lambda: [item["state"] for item in list_artifacts(product, "source")] == ["ready"] * 3)
        create_plan(product, "again", find_run(product, "source"), {1: 1})

        def kill() -> None:
            wait_until(lambda: (tmp_path / "found" / "asked").exists(), 200)
            product.down()
            (tmp_path / "found" / "done").touch()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        (tmp_path / "found").mkdir()
        environ = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
        environ |= {"ROLLOUTDECK_RUN": "again", "ROLLOUTDECK_PLAN": "again", "BREAKS": "wait", "SLIME": require_slime()}
        result = train(BREAKING, "again", folder=tmp_path / "found", **environ)
        killer.join(60)
    assert (tmp_path / "found" / "done").exists() and read_samples(source, 1) != read_samples(plain_training, 1)
    assert result.json("made.json") == plain_training.json("made.json")
