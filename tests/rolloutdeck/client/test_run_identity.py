"""Which run and attempt a process belongs to: calls, processes of a launch, restarts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutdeck.client import launch, process_identity, spool
from rolloutdeck.client.run import Run
from tests.rolloutdeck.support.fake_server import Receiver, wait_until
from tests.rolloutdeck.support.programs import start_program

Start = Callable[..., Run]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, True), ({"RANK": "0", "SLURM_PROCID": "0"}, True),
        ({"RANK": "3"}, False), ({"SLURM_PROCID": "1"}, False), ({"RAY_JOB_ID": "01000000"}, True),
        ({"OMPI_COMM_WORLD_RANK": "0"}, True), ({"OMPI_COMM_WORLD_RANK": "1"}, False), ({"PMI_RANK": "2"}, False),
    ],
)  # fmt: skip
def test_one_process_of_a_launch_is_its_lead(environ: dict[str, str], expected: bool) -> None:
    assert process_identity.is_lead_process(environ) is expected


def test_two_calls_of_init_return_one_run_and_a_call_after_finish_another(start: Start) -> None:
    first = start()
    assert start() is first
    first.finish()
    second = start()
    assert second.uid != first.uid and second.attempt == first.attempt


def test_processes_of_one_launch_find_the_same_run_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2", "SLURM_JOB_ID": "9"}
    launched = process_identity.detect_attempt(dict(torchrun))
    assert launched.attempt == "torchrun-abc-2"
    assert process_identity.derive_run_uid("p", "n", launched) == process_identity.derive_run_uid(
        "p", "n", process_identity.detect_attempt(dict(torchrun))
    )
    assert process_identity.derive_run_uid("p", "n", launched) != process_identity.derive_run_uid("p", "m", launched)


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({"ROLLOUTDECK_ATTEMPT": "mine", "SLURM_JOB_ID": "9"}, "mine"),
        ({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}, "slurm-9-1"),
        ({"SLURM_JOB_ID": "9", "TORCHELASTIC_RUN_ID": "none"}, "slurm-9-0"),
        ({"RAY_JOB_ID": "01000000"}, "ray-01000000"),
    ],
)
def test_the_attempt_has_the_name_that_the_launcher_gives(environ: dict[str, str], attempt: str) -> None:
    assert process_identity.detect_attempt(environ).attempt == attempt


def test_two_ray_clusters_that_both_count_from_one_are_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = set()
    for session in ("session_2026-11-02_10-00-00_1_22", "session_2026-11-02_11-00-00_1_23"):
        monkeypatch.setattr(sys, "argv", ["default_worker.py", f"--session-name={session}"])
        attempts.add(process_identity.detect_attempt({"RAY_JOB_ID": "01000000"}).attempt)
    assert len(attempts) == 2


def test_ranks_of_torchrun_without_an_id_share_an_attempt_and_its_next_start_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "1"}
    ranks = [dict(torchrun), dict(torchrun)]
    first, second = (process_identity.detect_attempt(environ) for environ in ranks)
    assert first == second and ranks[0]["ROLLOUTDECK_ATTEMPT"] == first.attempt
    restarted = process_identity.detect_attempt({**torchrun, "TORCHELASTIC_RESTART_COUNT": "1"})
    two = {**torchrun, "GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
    machines = [process_identity.detect_attempt({**two, "RANK": rank}) for rank in "01"]
    monkeypatch.setattr(process_identity.os, "getppid", lambda: 1)
    other_parent = process_identity.detect_attempt(dict(torchrun))
    assert len({result.attempt for result in (first, restarted, other_parent, *machines)}) == 5


def test_a_child_that_inherits_the_rank_of_its_parent_is_named_after_both(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(launch, "_has_inherited_rank", lambda environ: True)
    monkeypatch.setattr(launch, "get_child_name", lambda: "Process-1")
    run = start()
    run.log_samples([{"response": "same"}], step=1)
    run.finish()
    assert [query["producer"] for _, query, _ in connected_receiver.dumps] == ["rank3-Process-1"]


def test_without_a_launcher_an_attempt_is_created_and_inherited_by_children() -> None:
    environ: dict[str, str] = {}
    launched = process_identity.detect_attempt(environ)
    assert environ["ROLLOUTDECK_ATTEMPT"] == launched.attempt == process_identity.detect_attempt(environ).attempt


@pytest.mark.parametrize("address", ["s3://bucket/checkpoints", "hdfs://name/checkpoints"])
def test_a_remote_url_of_checkpoints_does_not_become_a_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    start(checkpoint_dir=address).finish()
    assert [path.name for path in tmp_path.iterdir()] == ["spool"] and f"{address} is no local folder" in caplog.text


DRIVER = """
import os, rolloutdeck
first, second = (rolloutdeck.init(project="math", name=name) for name in ("first", "second"))
attempt = os.environ["ROLLOUTDECK_ATTEMPT"]
first.finish(timeout=0)
assert os.environ["ROLLOUTDECK_ATTEMPT"] == attempt, "the second run is open"
second.finish(timeout=0)
assert "ROLLOUTDECK_ATTEMPT" not in os.environ, "programs that start now are trainings of their own"
os.environ["ROLLOUTDECK_ATTEMPT"] = "mine"
rolloutdeck.init(project="math", name="third").finish(timeout=0)
assert os.environ["ROLLOUTDECK_ATTEMPT"] == "mine"
"""


def test_the_attempt_of_a_finished_run_is_not_inherited_by_later_programs(
    connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_ATTEMPT", raising=False)
    assert start_program(DRIVER).wait(60) == 0


def test_a_restart_from_the_same_checkpoints_is_the_same_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(checkpoint_dir=tmp_path / "checkpoints")
    first.finish()
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "second")
    assert start(checkpoint_dir=tmp_path / "checkpoints").uid == first.uid
    copied = start(name="another", checkpoint_dir=tmp_path / "checkpoints")
    assert copied.uid != first.uid


def test_two_first_processes_with_one_checkpoint_folder_have_one_run(tmp_path: Path) -> None:
    first, second = (process_identity.RunIdentity(uid, "p", "n") for uid in ("one", "other"))
    (tmp_path / "temporary").write_text(json.dumps({"uid": "other", "project": "p", "name": "n"}))
    assert process_identity.claim_checkpoint_folder(tmp_path, "p", "n", first) == first
    assert (
        process_identity._link_run_file(tmp_path / "temporary", tmp_path / process_identity.RUN_FILE, second) == first
    )


def test_the_run_id_of_the_environment_wins(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTDECK_RUN_ID", "given-1")
    assert start(checkpoint_dir=tmp_path).uid == "given-1"
    assert not (tmp_path / process_identity.RUN_FILE).exists()


def test_the_spool_is_in_the_checkpoint_folder_by_default(
    start: Start, tmp_path: Path, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_SPOOL")
    connected_receiver.mode = "500"
    start(checkpoint_dir=tmp_path / "checkpoints")
    wait_until(lambda: spool.find_spool_folders(tmp_path / "checkpoints"))
