"""What goes wrong with a pin inside slime changes nothing in what it trains on: what it would have generated without us
it generates."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.slime.test_replay import artifacts, planned, samples, training
from tests.trainers.slime.test_slime import slime
from tests.trainers.verl.process import Training, python, train
from tests.trainers.verl.test_replay import run_of

pytestmark = pytest.mark.trainers

REPLAYING, BREAKING = "../../slime/inside/replaying.py", "../../slime/inside/breaking.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same rollouts without a plan."""
    return train(REPLAYING, "again", folder=tmp_path_factory.mktemp("alone"), SLIME=slime())


def test_a_mistake_of_ours_in_the_rollout_function(alone: Training, tmp_path: Path) -> None:
    values = {"SLIME": slime(), "BREAKS": "raise", "ROLLOUTDECK_PLAN": "any"}
    result = train(BREAKING, "again", folder=tmp_path, **values)
    assert result.json("made.json") == alone.json("made.json")
    assert "Rolloutdeck lost something in replay._try_replay: RuntimeError: a mistake of ours" in result.done.stderr


def test_a_server_that_is_gone_when_a_pin_is_fetched(alone: Training, tmp_path: Path) -> None:
    python(), slime()
    with Product() as product:
        source = training(product, tmp_path / "source", "source", "first", SEND="yes")
        wait_until(lambda: [item["state"] for item in artifacts(product, "source")] == ["ready"] * 3)
        planned(product, "again", run_of(product, "source"), {1: 1})

        def kill() -> None:
            wait_until(lambda: (tmp_path / "found" / "asked").exists(), 200)
            product.down()
            (tmp_path / "found" / "done").touch()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        (tmp_path / "found").mkdir()
        environ = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
        environ |= {"ROLLOUTDECK_RUN": "again", "ROLLOUTDECK_PLAN": "again", "BREAKS": "wait", "SLIME": slime()}
        result = train(BREAKING, "again", folder=tmp_path / "found", **environ)
        killer.join(60)
    assert (tmp_path / "found" / "done").exists() and samples(source, 1) != samples(alone, 1)
    assert result.json("made.json") == alone.json("made.json")
