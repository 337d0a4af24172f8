"""`watch` does not follow a link of another user, who could make it read files that they may not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolloutdeck.lib.symlinks import is_safe_to_follow, read_safe_stat
from rolloutdeck.trainer_api.registry import find_steps
from rolloutdeck.watch import artifact_collector
from rolloutdeck.watch.follower import Follower, WatchedFolder
from rolloutdeck.watch.state import WatchState
from rolloutdeck.watch.tree_pattern import TreePattern, TreeRun
from rolloutdeck.watch.types import ScanOptions

DATA = Path(__file__).parents[2] / "data"
OTHER_USER = 54_321  # an account that owns no file here
ROW = '{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n'

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a link in another's name")


def create_unsafe_link(path: Path, target: Path) -> Path:
    """Creates a link of another user, who does not own its target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target, target_is_directory=target.is_dir())
    if not os.getuid():
        os.lchown(path, OTHER_USER, OTHER_USER)
    return path


def test_a_link_is_followed_if_its_owner_owns_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_file = tmp_path / "mine"
    own_file.write_text("x")
    own_link, unsafe_link = tmp_path / "own", create_unsafe_link(tmp_path / "theirs", Path("/etc/passwd"))
    own_link.symlink_to(own_file)
    if os.getuid():
        monkeypatch.setattr(os, "getuid", lambda: OTHER_USER)
    assert [is_safe_to_follow(path) for path in (own_file, own_link, unsafe_link, tmp_path / "gone")] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_safe_to_follow(create_unsafe_link(tmp_path / "nowhere", tmp_path / "gone"))


def test_a_file_that_becomes_a_link_during_its_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, private = tmp_path / "1.jsonl", tmp_path / "private.jsonl"
    path.write_text(ROW)
    private.write_text(ROW)
    lstat = Path.lstat

    def replace_after(checked: Path) -> os.stat_result:
        result = lstat(checked)
        path.unlink()
        path.symlink_to(private)
        return result

    monkeypatch.setattr(Path, "lstat", replace_after)
    assert read_safe_stat(path) is None


@needs_root
def test_watch_skips_an_unsafe_link_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "private.jsonl").write_text(ROW)
    (tmp_path / "run/rollout").mkdir(parents=True)
    (tmp_path / "run/rollout/2.jsonl").write_text(ROW)
    (tmp_path / "run/rollout/3.jsonl").symlink_to(tmp_path / "run/rollout/2.jsonl")  # root's
    unsafe_link = create_unsafe_link(tmp_path / "run/rollout/1.jsonl", tmp_path / "private.jsonl")
    messages: list[str] = []
    follower = Follower(
        [WatchedFolder(tmp_path / "run")],
        tmp_path / "run",
        WatchState(tmp_path / "state", "files"),
        ScanOptions(),
        messages.append,
    )
    for _ in range(2):
        assert [result.source for result in follower.find_complete_files()] == ["rollout/2.jsonl", "rollout/3.jsonl"]
    assert [text for text in messages if "skipped" in text] == [
        f"{unsafe_link} is skipped: it is a link to a file of another user."
    ]


@needs_root
def test_a_folder_behind_an_unsafe_link_is_no_run_of_a_tree(tmp_path: Path) -> None:
    for user in ("ana", "bo"):
        (tmp_path / user / "math/grpo/rollout").mkdir(parents=True)
    create_unsafe_link(tmp_path / "bo/math/stolen", tmp_path / "ana/math/grpo")
    create_unsafe_link(tmp_path / "bo/math/grpo/val", tmp_path / "ana/math/grpo/rollout")
    runs = TreePattern.parse(f"{tmp_path}/{{user}}/{{project}}/{{run}}/{{split}}").find_runs()
    assert set(runs) == {TreeRun("math", "grpo", "ana"), TreeRun("math", "grpo", "bo")}
    assert [root.path.name for root in runs[TreeRun("math", "grpo", "bo")]] == ["grpo", "rollout"]


@needs_root
def test_a_step_behind_an_unsafe_link_is_not_registered(tmp_path: Path) -> None:
    create_unsafe_link(tmp_path / "train/step_000001.pkl", DATA / "roll/mock/train/step_000001.pkl")
    (location,) = find_steps(tmp_path)
    assert artifact_collector._read_stamps(location) == {}
