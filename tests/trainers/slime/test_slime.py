"""The plug-in in slime's own code, next to a receiver. SLIME is a checkout of slime; TRAINERS_PYTHON needs
torch, numpy and what slime imports for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollouts.formats.base import DumpContext
from rollouts.formats.slime import rollout as slime_rollout
from rollouts.samples.record import Record
from tests.rolloutdeck.support.fake_server import Receiver
from tests.trainers.verl.process import ROOT, Training, require_python, train

pytestmark = pytest.mark.trainers

SCRIPT = "../../slime/inside/rollouts.py"


def require_slime() -> str:
    """Returns a checkout of slime; skips the test if there is none."""
    result = os.environ.get("SLIME")
    if not result:
        pytest.skip("needs SLIME, a checkout of slime (github.com/THUDM/slime)")
    return result


def run_rollouts(folder: Path, wrong: str = "", receiver: Receiver | None = None, **environ: str) -> Training:
    return train(
        SCRIPT, wrong, folder=folder, receiver=receiver, SLIME=require_slime(), ROLLOUTDECK_TOKENS="all", **environ
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_rollouts(tmp_path_factory.mktemp("slime"))


def list_batches_of_step(training: Training, split: str, step: int) -> list[list[dict[str, Any]]]:
    """Returns the rows of each request with samples of this step."""
    return [rows for query, rows in training.list_batches(split) if int(query["step"]) == step]


def list_final_rows(training: Training, step: int) -> list[dict[str, Any]]:
    """Returns the rows that were sent at the end of the rollout."""
    return next(rows for rows in list_batches_of_step(training, "train", step) if "score" in rows[0])


@pytest.mark.parametrize("step", [0, 1])
def test_the_rows_are_what_the_server_reads_out_of_slimes_own_dump(training: Training, step: int) -> None:
    path = training.folder / "dump" / f"{step}.pt"
    with path.open("rb") as file:
        dumped = [
            item
            for item in slime_rollout.read(file, DumpContext(filename=path.name, step=step))
            if isinstance(item, Record)
        ]
    rows = list_final_rows(training, step)[:4]
    assert len(dumped) == 4
    for row, record in zip(rows, dumped, strict=True):
        for name in (
            "prompt", "response", "group", "index", "trajectory", "turn", "ground_truth", "finish_reason", "truncated",
            "data_source", "policy_version", "prompt_ids", "response_ids", "response_mask", "logprobs",
        ):  # fmt: skip
            assert row.get(name) == getattr(record, name), name
        assert {"accuracy": row["score"], **row["rewards"]} == record.rewards


def test_the_fragments_of_one_execution_are_the_turns_of_one_trajectory(training: Training) -> None:
    rows = list_final_rows(training, 1)
    assert [(row["trajectory"], row.get("turn")) for row in rows[:3]] == [("101", 0), ("101", 1), ("8", None)]


def test_groups_that_a_filter_dropped_are_recorded_as_filtered(training: Training) -> None:
    rows = list_final_rows(training, 0)
    assert [(row["group"], row.get("filtered", False)) for row in rows] == [
        ("0", False), ("0", False), ("1", False), ("1", False), ("2", True), ("2", True),
    ]  # fmt: skip


def test_a_sample_is_recorded_before_its_rollout_is_over(training: Training) -> None:
    early = list_batches_of_step(training, "train", 0)[0]
    assert [row["prompt"] for row in early] == ["What is 0 + 0?"]
    assert "score" not in early[0]


def test_an_eval_is_recorded_by_data_set(training: Training) -> None:
    rows = [row for call in list_batches_of_step(training, "eval", 1) for row in call]
    values = [(row["data_source"], row["group"], row["score"], row["truncated"]) for row in rows]
    assert values == [
        (name, f"{name}:20", score, truncated)
        for name in ("aime", "gsm8k")
        for score, truncated in ((0.0, False), (1.0, True))
    ]


def test_the_metrics_are_slimes_own(training: Training) -> None:
    values = training.values(1)
    assert values["rollout/reward"] == 0.5 and values["perf/rollout_time"] == 2.0
    assert values["rollout/dynamic_filter/drop_zero_std"] == 1 and values["rollout/truncated_ratio"] == 0.25
    assert values["rollout/response_len/mean"] == 2.0  # of those that the loss counted when the rollout was logged
    assert values["eval/aime"] == 0.5 and values["eval/gsm8k-truncated_ratio"] == 0.5 and values["eval/extra"] == 3.0


def test_the_run_has_slimes_arguments_without_its_keys(training: Training) -> None:
    config = next(
        body["config"] for path, body in training.receiver.posts if path.endswith("/runs/") and "config" in body
    )
    assert config["hf_checkpoint"] == "tiny" and "wandb_key" not in config


def test_the_dump_of_a_rollout_is_registered_so_that_it_can_be_pinned(training: Training) -> None:
    values = [body for path, body in training.receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], list(body["files"]), body["facts"]["rows"]) for body in values] == [
        (0, ["0.pt"], 4), (1, ["1.pt"], 4),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_rollouts(tmp_path_factory.mktemp("alone"), "without")


@pytest.mark.parametrize("wrong", ["", "raise", "no server", "no disk"])
def test_failures_do_not_change_the_samples_of_slime(plain_training: Training, tmp_path: Path, wrong: str) -> None:
    receiver = Receiver()
    environ = {}
    if wrong == "no server":
        receiver.down()
    if wrong == "no disk":
        (tmp_path / "full").write_text("no folder can be made below a file")
        environ["ROLLOUTDECK_SPOOL"] = str(tmp_path / "full" / "below")
    result = run_rollouts(tmp_path, wrong if wrong == "raise" else "", receiver=receiver, **environ)
    assert not plain_training.receiver.posts
    assert result.json("made.json") == plain_training.json("made.json")
    if wrong == "raise":
        assert "RuntimeError: a mistake of ours" in result.done.stderr


CONTRACTS = {
    "test_plugin_runtime_hook_contracts.py": (
        "--custom-rollout-log-function-path", "rolloutdeck.trainers.slime.log_rollout",
        "--custom-eval-rollout-log-function-path", "rolloutdeck.trainers.slime.log_eval",
        "--custom-reward-post-process-path", "rolloutdeck.trainers.slime.guide_rewards", "-p", "generating",
    ),
    "test_plugin_path_loading_contracts.py": (
        "--rollout-all-samples-process-path", "rolloutdeck.trainers.slime.all_samples",
    ),
    "test_plugin_rollout_contracts.py": (
        "--rollout-function-path", "rolloutdeck.trainers.slime.generate_rollout", "-p", "generating",
    ),
}  # fmt: skip


@pytest.mark.parametrize("contract", list(CONTRACTS))
def test_slimes_own_contract_tests_hold_for_our_functions(tmp_path: Path, contract: str) -> None:
    checkout = Path(require_slime())
    inside = Path(__file__).with_name("inside")
    values = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (checkout, ROOT, inside))), "HOME": str(tmp_path)}
    words = [*CONTRACTS[contract], "-p", "no:django", "-p", "no:cacheprovider", "--capture=sys"]
    command = [require_python(), str(checkout / "tests/plugin_contracts" / contract), *words]
    done = subprocess.run(command, cwd=checkout, env=values, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
