"""The folder that `pull` writes for a trainer: each step is complete, and files of others are not changed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.lib import ServerClient
from rolloutdeck.replay import Placement, PlanPull
from rolloutdeck.replay import folder as replay_folder
from rolloutdeck.replay.folder import PULL_MANIFEST, STAGING_FOLDER, ReplayFolder
from rolloutdeck.replay.plan import PlanEntry, PlanFile

TREE = PurePosixPath("e_p/GBS8_N4_in128_out256")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_steps(into: Path, steps: dict[int, bytes]) -> ReplayFolder:
    """Writes these steps as `pull` does, each with a batch and its `meta.json`."""
    folder = ReplayFolder(into)
    folder.claim(TREE / str(step) for step in steps)
    for step, data in steps.items():
        parts = []
        for name, content in (("gen_batch.dp", data), ("meta.json", b"{}")):
            blob = folder.find_verified_file(sha256(content))
            if blob is None:
                blob = folder.staging / sha256(content)
                blob.write_bytes(content)
            parts.append((name, sha256(content), blob))
        folder.write_step_folder(TREE / str(step), parts)
    folder.finish({"plan": "default@1"})
    return folder


def read_batches(into: Path) -> dict[str, bytes]:
    files = [path for path in into.rglob("*") if path.is_file() and path.name != PULL_MANIFEST]
    return {path.parent.name: path.read_bytes() for path in files if path.name == "gen_batch.dp"}


def test_steps_are_written_and_the_manifest_lists_their_files(tmp_path: Path) -> None:
    write_steps(tmp_path / "into", {2: b"two", 5: b"five"})
    assert read_batches(tmp_path / "into") == {"2": b"two", "5": b"five"}
    result = json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())
    assert result["complete"] and result["plan"] == "default@1"
    assert result["files"][f"{TREE}/2/gen_batch.dp"] == sha256(b"two")
    assert not (tmp_path / "into" / STAGING_FOLDER).exists()


def test_equal_files_are_hard_links_to_one_read_only_file(tmp_path: Path) -> None:
    write_steps(tmp_path, {1: b"same", 2: b"same", 3: b"same"})
    files = list(tmp_path.rglob("gen_batch.dp"))
    assert len({file.stat().st_ino for file in files}) == 1
    assert not files[0].stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_equal_files_are_copied_if_hard_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(replay_folder.os, "link", refuse)
    write_steps(tmp_path, {1: b"same", 2: b"same"})
    assert read_batches(tmp_path) == {"1": b"same", "2": b"same"}


def test_another_pull_replaces_steps_and_removes_those_that_are_no_longer_in_the_plan(tmp_path: Path) -> None:
    write_steps(tmp_path, {2: b"two", 5: b"five", 6: b"six"})
    write_steps(tmp_path, {2: b"two", 5: b"new"})
    assert read_batches(tmp_path) == {"2": b"two", "5": b"new"}
    assert set(json.loads((tmp_path / PULL_MANIFEST).read_text())["files"]) == {
        f"{TREE}/{step}/{name}" for step in (2, 5) for name in ("gen_batch.dp", "meta.json")
    }


@pytest.mark.parametrize("earlier", [{}, {2: b"two"}])
def test_a_pull_that_can_place_no_step_leaves_the_folder_as_it_was(tmp_path: Path, earlier: dict[int, bytes]) -> None:
    """Every step is skipped, for example because of its flags, and the command fails."""
    into, skipped = tmp_path / "into", list[int]()
    file = PlanFile("meta.json", sha256(b"{}"), 2, "")
    placements = [
        Placement(TREE / str(step), step, step, PlanEntry(step, step), (file,), changed_rows={file.name: (0,)})
        for step in (2, 3)
    ]

    def download(server: ServerClient, address: str, path: Path, *_: Any) -> None:
        path.write_bytes(b"{}")

    def exclude(*_: Any) -> str:
        raise NotReplayableError("no row is left")

    def skip(entry: PlanEntry, reason: NotReplayableError) -> None:
        skipped.append(entry.target_step)

    requirements: Any = SimpleNamespace(shared=False, formats={}, write_with_action=exclude)
    if earlier:
        write_steps(into, earlier)
    before = read_tree(into)
    server = ServerClient("http://deck.example", "secret")
    pull = PlanPull(server, requirements, ReplayFolder(into), print, skip, download=download)
    assert pull.run(placements, {"plan": "default@2"}) == [] and skipped == [2, 3]
    assert read_tree(into) == before
    assert read_batches(into) == {str(step): data for step, data in earlier.items()}
    assert ReplayFolder(into).folders == {TREE / str(step) for step in earlier}


def read_tree(into: Path) -> dict[str, bytes]:
    """All files of the folder, also hidden ones."""
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


def test_files_of_an_earlier_pull_are_used_again_unless_they_are_damaged(tmp_path: Path) -> None:
    write_steps(tmp_path, {2: b"two", 5: b"five"})
    damaged = tmp_path / TREE / "5" / "gen_batch.dp"
    damaged.chmod(0o644)
    damaged.write_bytes(b"f1ve")
    again = ReplayFolder(tmp_path)
    again.claim([TREE / "9"])
    assert again.find_verified_file(sha256(b"two")) is not None
    assert again.find_verified_file(sha256(b"five")) is None


def test_a_damaged_step_is_written_again(tmp_path: Path) -> None:
    write_steps(tmp_path, {5: b"five"})
    damaged = tmp_path / TREE / "5" / "gen_batch.dp"
    damaged.chmod(0o644)
    damaged.write_bytes(b"f1ve")
    write_steps(tmp_path, {5: b"five"})
    assert read_batches(tmp_path) == {"5": b"five"}


def test_a_pull_that_was_killed_is_resumed(tmp_path: Path) -> None:
    folder = ReplayFolder(tmp_path)
    folder.claim([TREE / "2"])
    (folder.staging / sha256(b"two")).write_bytes(b"two")
    assert json.loads((tmp_path / PULL_MANIFEST).read_text())["complete"] is False
    del folder
    assert ReplayFolder(tmp_path).find_verified_file(sha256(b"two")) is not None
    write_steps(tmp_path, {2: b"two"})
    assert read_batches(tmp_path) == {"2": b"two"}


def test_a_folder_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty and was not written by `pull`"):
        write_steps(tmp_path, {2: b"two"})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"rolloutdeck": "pull"}', '{"rolloutdeck": "pull", "folders": ["../x"], "files": {}}']
)
def test_a_folder_with_an_invalid_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PULL_MANIFEST).write_text(text)
    with pytest.raises(UsageError, match="was not written by `pull`"):
        ReplayFolder(tmp_path)


def test_files_that_a_trainer_wrote_into_the_folder_are_not_overwritten(tmp_path: Path) -> None:
    write_steps(tmp_path, {2: b"two"})
    generated = tmp_path / TREE / "3"
    generated.mkdir()
    (generated / "gen_batch.dp").write_bytes(b"generated")
    with pytest.raises(UsageError, match="/3 was not written by `pull`"):
        write_steps(tmp_path, {3: b"three"})
    (tmp_path / TREE / "2" / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"notes.txt was not written by `pull`"):
        write_steps(tmp_path, {2: b"new"})
    assert (generated / "gen_batch.dp").read_bytes() == b"generated"


def test_a_target_folder_inside_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    write_steps(tmp_path / "into", {2: b"two"})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "into" / "other_p").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        ReplayFolder(tmp_path / "into").claim([PurePosixPath("other_p/GBS1/1")])


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="needs a folder"):
        ReplayFolder(tmp_path / "file")


def test_only_one_pull_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    first = ReplayFolder(tmp_path / "into")
    first.claim([TREE / "1"])
    with pytest.raises(UsageError, match="Another `pull` is writing"):
        ReplayFolder(tmp_path / "into")
    first.finish({})
    write_steps(tmp_path / "into", {1: b"one"})


def test_only_one_of_two_pulls_creates_a_missing_folder(tmp_path: Path) -> None:
    first, second = ReplayFolder(tmp_path / "into"), ReplayFolder(tmp_path / "into")
    first.claim([TREE / "1"])
    with pytest.raises(UsageError, match="Another `pull` is writing"):
        second.claim([TREE / "1"])


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EWOULDBLOCK, errno.EACCES])
def test_a_lock_error_is_refused_only_if_another_pull_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some network file systems have no locks."""

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    if code == errno.ENOLCK:
        write_steps(tmp_path, {1: b"one"})
        assert read_batches(tmp_path) == {"1": b"one"}
    else:
        with pytest.raises(UsageError, match="Another `pull` is writing"):
            ReplayFolder(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [replay_folder.LOCK_FILE]  # of the other pull


def test_a_pull_that_was_killed_before_it_wrote_a_manifest_can_start_again(tmp_path: Path) -> None:
    (tmp_path / "into" / STAGING_FOLDER).mkdir(parents=True)
    write_steps(tmp_path / "into", {1: b"one"})
    assert read_batches(tmp_path / "into") == {"1": b"one"}


@pytest.mark.parametrize("place", [STAGING_FOLDER, TREE.parts[0]])
def test_a_symbolic_link_in_the_folder_is_refused_and_not_followed(tmp_path: Path, place: str) -> None:
    write_steps(tmp_path / "into", {1: b"one"})
    (tmp_path / "elsewhere").mkdir()
    if (tmp_path / "into" / place).exists():
        (tmp_path / "into" / place).rename(tmp_path / "moved")
    (tmp_path / "into" / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        write_steps(tmp_path / "into", {1: b"one", 2: b"two"})
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_manifest_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PULL_MANIFEST)
    with pytest.raises(UsageError, match="not written by `pull`"):
        ReplayFolder(tmp_path)


SHARED_FOLDER = PurePosixPath("rollout_data")  # with the files of many steps


def write_shared_steps(into: Path, files: dict[str, bytes], *, finish: bool = True) -> ReplayFolder:
    """Writes these files as `pull` does, each as a step of one folder."""
    folder = ReplayFolder(into)
    folder.claim([SHARED_FOLDER] if files else [], [SHARED_FOLDER / name for name in files], shared=True)
    for name, content in files.items():
        blob = folder.find_verified_file(sha256(content)) or folder.staging / sha256(content)
        blob.write_bytes(content) if not blob.exists() else None
        folder.write_shared_files(SHARED_FOLDER, [(name, sha256(content), blob)])
    if finish:
        folder.finish({})
    return folder


def read_shared_files(into: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (into / SHARED_FOLDER).glob("*")}


def test_steps_that_share_a_folder_are_replaced_and_removed_one_by_one(tmp_path: Path) -> None:
    write_shared_steps(tmp_path, {"0.pt": b"zero", "1.pt": b"one", "2.pt": b"zero"})
    inode = (tmp_path / SHARED_FOLDER / "0.pt").stat().st_ino
    assert read_shared_files(tmp_path) == {"0.pt": b"zero", "1.pt": b"one", "2.pt": b"zero"}
    write_shared_steps(tmp_path, {"0.pt": b"zero", "1.pt": b"new"})
    assert read_shared_files(tmp_path) == {"0.pt": b"zero", "1.pt": b"new"}
    assert (tmp_path / SHARED_FOLDER / "0.pt").stat().st_ino == inode
    assert json.loads((tmp_path / PULL_MANIFEST).read_text())["files"] == {
        str(SHARED_FOLDER / "0.pt"): sha256(b"zero"), str(SHARED_FOLDER / "1.pt"): sha256(b"new"),
    }  # fmt: skip
    write_steps(tmp_path, {2: b"two"})  # another trainer's layout
    assert not (tmp_path / SHARED_FOLDER).exists()
    write_shared_steps(tmp_path, {"0.pt": b"zero"})
    assert not (tmp_path / TREE.parts[0]).exists()


def test_a_file_that_a_trainer_wrote_into_a_shared_folder_stops_the_pull(tmp_path: Path) -> None:
    write_shared_steps(tmp_path, {"0.pt": b"zero"})
    (tmp_path / SHARED_FOLDER / "1.pt").write_bytes(b"generated")
    with pytest.raises(UsageError, match=r"rollout_data/1\.pt was not written by `pull`"):
        write_shared_steps(tmp_path, {"0.pt": b"zero", "1.pt": b"one"})
    assert (tmp_path / SHARED_FOLDER / "1.pt").read_bytes() == b"generated"


def test_a_link_in_a_shared_folder_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    into, other = tmp_path / "into", tmp_path / "other.pt"
    write_shared_steps(into, {"0.pt": b"zero"})
    other.write_bytes(b"zero")
    (into / SHARED_FOLDER / "0.pt").unlink()
    (into / SHARED_FOLDER / "0.pt").symlink_to(other)
    write_shared_steps(into, {"0.pt": b"new"})
    assert not (into / SHARED_FOLDER / "0.pt").is_symlink() and read_shared_files(into) == {"0.pt": b"new"}
    assert other.read_bytes() == b"zero"
    (into / SHARED_FOLDER).rename(tmp_path / "moved")
    (into / SHARED_FOLDER).symlink_to(tmp_path / "moved")
    with pytest.raises(UsageError, match="is a symbolic link"):
        write_shared_steps(into, {"0.pt": b"newer"})


def test_a_pull_replaces_the_files_of_one_that_was_killed_between_two_steps_of_a_shared_folder(tmp_path: Path) -> None:
    write_shared_steps(tmp_path, {"0.pt": b"old"})
    write_shared_steps(tmp_path, {"0.pt": b"zero", "1.pt": b"one"}, finish=False)
    write_shared_steps(tmp_path, {"1.pt": b"one", "2.pt": b"two"})
    assert read_shared_files(tmp_path) == {"1.pt": b"one", "2.pt": b"two"}
    assert "coming" not in json.loads((tmp_path / PULL_MANIFEST).read_text())


def test_a_pull_replaces_the_files_of_one_that_was_killed_between_two_step_folders(tmp_path: Path) -> None:
    folder = ReplayFolder(tmp_path)
    folder.claim([TREE / "1", TREE / "2"], [TREE / "1/gen_batch.dp", TREE / "2/gen_batch.dp"])
    blob = folder.staging / sha256(b"one")
    blob.write_bytes(b"one")
    folder.write_step_folder(TREE / "1", [("gen_batch.dp", sha256(b"one"), blob)])
    del folder
    write_steps(tmp_path, {2: b"two"})
    assert read_batches(tmp_path) == {"2": b"two"}


def test_a_pull_into_a_new_folder_is_refused_if_another_pull_has_just_written_it(tmp_path: Path) -> None:
    second = ReplayFolder(tmp_path / "into")
    write_steps(tmp_path / "into", {1: b"one"})
    with pytest.raises(UsageError, match="Another `pull` has just written"):
        second.claim([TREE / "2"])
    second = ReplayFolder(tmp_path / "into")
    assert len(second.files) == 2


def test_a_folder_that_cannot_be_locked_is_written_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    write_steps(tmp_path / "into", {1: b"one"})
    assert "cannot be locked (No locks available)" in caplog.text and read_batches(tmp_path / "into") == {"1": b"one"}


def test_a_file_that_another_pull_has_linked_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    os.link(tmp_path / "a", tmp_path / "target")
    with pytest.raises(FileExistsError):
        replay_folder._link(tmp_path / "b", tmp_path / "target")
    assert (tmp_path / "a").read_bytes() == b"a"


def test_no_file_is_created_in_a_folder_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="was not written by `pull`"):
        ReplayFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
