"""The context that a process reports: its command, code version and packages, which are not imported for this."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.client import context
from rolloutdeck.client.run import Run
from tests.rolloutdeck.support.fake_server import Receiver, wait_until

Start = Callable[..., Run]


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=mina", "-c", "user.email=mina@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_code_version_is_that_of_the_working_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    commit = git(repository, "rev-parse", "HEAD")
    assert context.collect_context()["git"] == {"branch": "main", "commit": commit, "changed": 0}
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "notes.txt").write_text("untracked\n")
    assert context.collect_context()["git"] == {"branch": "main", "commit": commit, "changed": 1}
    assert "+lr = 2" in context.collect_context(with_patch=True)["git"]["patch"]


def test_packed_references_detached_heads_and_worktrees_are_read(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert context.read_head(repository) == {"branch": "main", "commit": commit}
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert context.read_head(tmp_path / "tree") == {"branch": "other", "commit": commit}
    git(repository, "checkout", "-q", "--detach")
    assert context.read_head(repository) == {"commit": commit}


def test_without_a_repository_or_git_the_rest_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    found = context.collect_context()
    assert "git" not in found
    assert found["folder"] == tmp_path.name
    assert found["python"].startswith("3.")


def test_a_git_that_hangs_loses_only_the_number_of_changes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr(context, "GIT_SECONDS", 0.0)
    assert set(context.collect_context()["git"]) == {"branch", "commit"}


def test_packages_are_read_from_the_names_of_their_metadata(tmp_path: Path) -> None:
    names = (
        "torch-2.7.1+cu126.dist-info",
        "flash_attn-2.8.0.dist-info",
        "Old-1.0-py3.11.egg-info",
        "torch",
        "x.dist-info",
    )
    for name in names:
        (tmp_path / name).mkdir()
    assert context.list_packages([str(tmp_path), "/nowhere"]) == {
        "flash-attn": "2.8.0", "old": "1.0", "torch": "2.7.1+cu126",
    }  # fmt: skip


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\nGCC version: 12\n"
    )
    assert context._describe_gpus(tmp_path, tmp_path / "none") == {
        "gpus": {"NVIDIA H100 80GB HBM3": 2}, "driver": "570.86.15",
    }  # fmt: skip


def test_a_worker_of_ray_has_no_command_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "/x/ray/_private/workers/default_worker.py", "--node-ip=1"])
    assert context.get_command() == []
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "train", "x" * 100_000])
    assert context.get_command() == ["python", "-m", "train", "…"]


@pytest.mark.parametrize(
    ("setting", "requested", "environ", "expected"),
    [
        ("", None, {}, True),
        ("off", None, {}, False),
        ("0", None, {}, False),
        ("off", True, {}, True),
        ("", False, {}, False),
        ("patch", None, {}, True),
        ("", None, {"LOCAL_RANK": "0"}, True),
        ("", None, {"LOCAL_RANK": "3"}, False),  # one process of a host is enough
    ],
)
def test_one_process_of_a_host_reports_its_context_unless_it_is_off(
    setting: str, requested: bool | None, environ: dict[str, str], expected: bool
) -> None:
    assert context.should_collect(setting, requested, environ) is expected


def list_contexts(receiver: Receiver) -> list[dict[str, Any]]:
    return [body for path, body in receiver.posts if path.endswith("/context/")]


def test_a_run_reports_its_context_once(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch, spool_root: Path
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_CONTEXT")
    run = start()
    assert wait_until(lambda: list_contexts(connected_receiver))
    run.finish()
    [body] = list_contexts(connected_receiver)
    assert body["attempt"] == run.attempt
    assert body["lead"] is True
    assert body["command"] and body["packages"]
    assert list(spool_root.iterdir()) == []


def test_nothing_is_reported_if_it_is_off(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_CONTEXT")
    run = start(context=False)
    run.log({"loss": 1.0}, step=1)
    run.finish()
    assert list_contexts(connected_receiver) == []


def test_importing_the_client_does_not_import_what_the_context_needs() -> None:
    names = "{'subprocess', 'importlib.metadata', 'rolloutdeck.client.context'}"
    code = f"import sys, rolloutdeck, rolloutdeck.client; print({names} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


def test_a_server_without_contexts_loses_nothing_else(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch, spool_root: Path
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_CONTEXT")
    connected_receiver.mode, connected_receiver.only = "404", '"packages"'
    run = start()
    run.log({"loss": 1.0}, step=1)
    run.finish()
    assert [point["values"] for point in connected_receiver.points()] == [{"loss": 1.0}]
    assert list(spool_root.iterdir()) == []
