"""`watch --prune-source` deletes what a real server has received and indexed, and nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.folders.run_follower import RunFollower
from rolloutdeck.lib.http import ServerClient
from rolloutdeck.watch import follower
from rolloutdeck.watch.file_parts import FilePart, build_file_stamp
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.prune import delete_unchanged_file
from rolloutdeck.watch.types import DumpFile, ScanOptions
from rolloutdeck.watch.upload import RetryLaterError, UploadTarget
from rollouts.indexing import index_dump
from rollouts.models import Dump, Project
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.watch.trainer import Trainer
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)
StartWatch = Callable[..., RunFollower]


@pytest.fixture
def start_watch(
    site: Site, owner: User, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StartWatch:
    """Starts a watch whose token may only upload."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr("rolloutdeck.watch.prune.PRUNE_SECONDS", 0.0)
    secret = builders.token(owner, "ingest", on=project)

    def build(prune: str = "delete") -> RunFollower:
        target = UploadTarget(ServerClient(f"http://127.0.0.1:{site.port}", secret), "math", "grpo", "files")
        folder = tmp_path / "run"
        return RunFollower(target, [WatchedFolder(folder)], folder, ScanOptions(), prune=prune)  # type: ignore[arg-type]

    return build


def run_turns(watch: RunFollower, count: int = 3) -> None:
    for _ in range(count):
        watch.send_ready()


def index_all() -> None:
    for dump in Dump.objects.exclude(state="indexed"):
        index_dump(dump.pk)


def list_file_names(trainer: Trainer) -> set[str]:
    return {path.name for path in trainer.folder.rglob("*.jsonl")}


def test_a_round_that_failed_is_repeated_in_the_next_turn(
    start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    index_all()
    monkeypatch.setattr("rolloutdeck.watch.prune.PRUNE_SECONDS", 1000.0)
    summarize = watch.target.summarize_source

    def fail(*_: object) -> None:
        raise RetryLaterError("the server responded with 503")

    watch.target.summarize_source = fail  # type: ignore[assignment, method-assign]
    with pytest.raises(RetryLaterError):
        watch.send_ready()
    watch.target.summarize_source = summarize  # type: ignore[method-assign]
    run_turns(watch, 1)
    assert list_file_names(trainer) == {"2.jsonl"}


def test_files_are_deleted_after_they_are_indexed_except_the_newest(
    start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    trainer.write_metrics(1, 2, 3)
    watch = start_watch()
    run_turns(watch)
    assert Dump.objects.count() == 4 and list_file_names(trainer) == {"1.jsonl", "2.jsonl", "3.jsonl", "metrics.jsonl"}
    assert watch.pruner and watch.pruner.pending_count == 2
    index_all()
    run_turns(watch)
    assert list_file_names(trainer) == {"3.jsonl", "metrics.jsonl"}
    assert "deleted 2 files" in capsys.readouterr().err
    trainer.write_step(4)
    run_turns(watch)
    assert list_file_names(trainer) == {"4.jsonl", "metrics.jsonl"}, "3 is not the newest any more"


def test_a_file_that_the_server_does_not_know_is_named_once_and_stays(
    start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    index_all()
    monkeypatch.setattr("rolloutdeck.watch.prune.MAX_REQUESTED_FILES", 1)
    known = watch.target.has_part
    monkeypatch.setattr(watch.target, "has_part", lambda part: part.file.step != 1 and known(part))
    run_turns(watch)
    assert list_file_names(trainer) == {"1.jsonl", "3.jsonl"}, "the first file does not keep the others waiting"
    assert capsys.readouterr().err.count("1.jsonl stays: the server does not have it") == 1


def test_pruning_is_off_by_default_and_a_dry_run_deletes_nothing(
    start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    for mode in ("never", "dry-run"):
        watch = start_watch(mode)
        run_turns(watch)
        index_all()
        run_turns(watch)
    assert list_file_names(trainer) == {"1.jsonl", "2.jsonl", "3.jsonl"}
    assert capsys.readouterr().err.count("would be deleted") == 2


def test_a_file_with_a_bad_line_is_kept(
    start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trainer.write_step(1)
    trainer.write("rollout/1.jsonl", path.read_text() + '{"input": "1", "output": \n')
    trainer.write_step(2)
    trainer.write_step(3)
    watch = start_watch()
    run_turns(watch)
    index_all()
    run_turns(watch)
    assert list_file_names(trainer) == {"1.jsonl", "3.jsonl"}
    assert "1.jsonl stays: the server could not index all of its rows." in capsys.readouterr().err


def test_a_file_that_changed_after_it_was_sent_is_kept(start_watch: StartWatch, trainer: Trainer) -> None:
    paths = [trainer.write_step(step) for step in (1, 2, 3)]
    watch = start_watch()
    run_turns(watch)
    index_all()
    stamp = paths[0].stat()
    paths[0].write_text(paths[0].read_text().replace("launch 1", "launch 9"))
    os.utime(paths[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same size, time and inode
    run_turns(watch, 1)
    assert list_file_names(trainer) == {"1.jsonl", "3.jsonl"}


def test_recently_changed_files_are_kept(start_watch: StartWatch, trainer: Trainer) -> None:
    for step in (1, 2, 3):
        os.utime(trainer.write_step(step))
    watch = start_watch()
    run_turns(watch)
    index_all()
    run_turns(watch)
    assert list_file_names(trainer) == {"1.jsonl", "2.jsonl", "3.jsonl"}


def test_files_of_replayable_steps_are_kept(start_watch: StartWatch, trainer: Trainer) -> None:
    needed = trainer.write_step(1)
    trainer.write_step(2)
    watch = start_watch()
    run_turns(watch)
    index_all()
    assert watch.pruner
    watch.pruner.find_needed_files = lambda: {needed}  # type: ignore[method-assign]
    run_turns(watch)
    assert list_file_names(trainer) == {"1.jsonl", "2.jsonl"}


def build_part(path: Path) -> FilePart:
    stamp = build_file_stamp(path.stat())
    file = DumpFile(path, path.name, None, "train", 1)  # type: ignore[arg-type]
    return FilePart(file, "files", hashlib.sha256(path.read_bytes()).hexdigest(), stamp[0], stamp)


def test_nothing_outside_of_the_watched_folder_is_deleted(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        folder.mkdir()
        (folder / "1.jsonl").write_text("x\n")
    (run / "link.jsonl").symlink_to(other / "1.jsonl")
    (run / "folder").symlink_to(other)
    assert not delete_unchanged_file(build_part(other / "1.jsonl"), [run])
    assert not delete_unchanged_file(build_part(run / "link.jsonl"), [run])
    assert not delete_unchanged_file(build_part(run / "folder" / "1.jsonl"), [run])
    assert (other / "1.jsonl").exists()
    assert delete_unchanged_file(build_part(run / "1.jsonl"), [run]) and not (run / "1.jsonl").exists()
