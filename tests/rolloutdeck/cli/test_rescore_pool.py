"""The processes of `rolloutdeck rescore`: which calls exceed the time limit if the command itself is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.rescore import pool as pools
from rolloutdeck.cli.rescore.pool import WorkerPool
from rolloutdeck.cli.rescore.worker import read_result
from rolloutdeck.errors import UsageError

FUNCTIONS = """
import time

def score(solution_str):
    time.sleep(float(solution_str))
    return {"score": 1.0, **{f"part {n}": "x" * 200 for n in range(12)}}

def score_batch(solution_strs):
    time.sleep(0.2)
    return [{"score": 1.0, **{f"part {n}": "x" * 200 for n in range(12)}} for text in solution_strs]
"""


@pytest.fixture
def run_pool(tmp_path: Path) -> Callable[..., dict[str, dict[str, Any]]]:
    """Runs a function in a pool and returns the results by id. The command is busy for `busy` seconds after the first
    result, as it is when the server does not answer."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)

    def run(name: str, texts: list[str], busy: float, workers: int) -> dict[str, dict[str, Any]]:
        tasks = [{"id": str(n), "arguments": {"solution_str": text}} for n, text in enumerate(texts)]
        results: dict[str, dict[str, Any]] = {}
        with WorkerPool(f"{path}:{name}", workers=workers, timeout=2.0, batch_size=64) as pool:
            pool.load()
            for task, result in pool.run(iter(tasks)):
                if not results:
                    time.sleep(busy)
                results[task["id"]] = result
        return results

    return run


def test_a_call_that_ended_in_time_is_not_late_because_the_command_was_busy(
    run_pool: Callable[..., dict[str, dict[str, Any]]],
) -> None:
    results = run_pool("score", ["0.6"] * 6, 3.0, 3)
    assert {number: result.get("error") for number, result in results.items()} == dict.fromkeys("012345")


def test_the_long_results_of_a_batch_are_read_to_the_end(run_pool: Callable[..., dict[str, dict[str, Any]]]) -> None:
    results = run_pool("score_batch", ["0"] * 192, 3.0, 3)
    assert len(results) == 192 and not any(result.get("error") for result in results.values())


def test_a_call_that_hangs_is_late_also_if_the_command_was_busy(
    run_pool: Callable[..., dict[str, dict[str, Any]]],
) -> None:
    results = run_pool("score", ["0", "60", "0.1", "0"], 3.0, 2)
    assert results["1"] == {"error": "it took longer than 2 s"}
    assert [results[number]["value"] for number in "023"] == [1.0] * 3


def test_a_start_that_hangs_names_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(pools, "START_SECONDS", 0.7)
    fn, error = f"{tmp_path / 'slow.py'}:score", r"could not be loaded: it took longer than 0\.7 s"
    with (
        WorkerPool(fn, workers=1, timeout=30.0, batch_size=1) as pool,
        pytest.raises(UsageError, match=error),
    ):
        pool.load()


def test_results_that_came_with_a_failure_are_kept(tmp_path: Path) -> None:
    """The file of the function changes while it runs, and one of its processes starts again."""
    path, results = tmp_path / "functions.py", dict[str, dict[str, Any]]()
    path.write_text("import time\ndef score(solution_str):\n    time.sleep(0.3 + len(solution_str))\n    return 1\n")
    tasks = [{"id": str(n), "arguments": {"solution_str": "x" * n}} for n in range(20)]
    with WorkerPool(f"{path}:score", workers=2, timeout=30.0, batch_size=1) as pool:
        pool.load()
        with pytest.raises(UsageError, match="has changed"):
            for task, result in pool.run(iter(tasks)):
                results[task["id"]] = result
                if len(results) == 1:
                    path.write_text(path.read_text() + "# changed\n")
                    pool._start()
                    time.sleep(3.0)  # the results and the news of the process arrive together
    assert results.keys() == {"0", "1"}


def test_acc_is_kept_whatever_its_place_among_the_numbers() -> None:
    result = read_result({"score": 0.1, **{f"part {n}": n for n in range(20)}, "acc": False})
    assert result == {"value": 0.1, "parts": {"acc": 0.0} | {f"part {n}": float(n) for n in range(11)}}
