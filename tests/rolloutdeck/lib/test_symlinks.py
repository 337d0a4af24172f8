"""A watch reads what its user may; a link of somebody else's does not make it read that for them."""

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
SOMEBODY = 54_321  # an account that owns no file here
ROW = '{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n'

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a link in another's name")


def link(path: Path, target: Path) -> Path:
    """A link that is somebody's, who does not own what it leads to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target, target_is_directory=target.is_dir())
    if not os.getuid():
        os.lchown(path, SOMEBODY, SOMEBODY)
    return path


def test_a_link_counts_where_its_maker_owns_what_it_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.write_text("x")
    own, theirs = tmp_path / "own", link(tmp_path / "theirs", Path("/etc/passwd"))
    own.symlink_to(mine)
    if os.getuid():
        monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)
    assert [is_safe_to_follow(path) for path in (mine, own, theirs, tmp_path / "gone")] == [True, True, False, False]
    assert not is_safe_to_follow(link(tmp_path / "nowhere", tmp_path / "gone"))


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


@as_root
def test_watch_leaves_such_a_link_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "private.jsonl").write_text(ROW)
    (tmp_path / "run/rollout").mkdir(parents=True)
    (tmp_path / "run/rollout/2.jsonl").write_text(ROW)
    (tmp_path / "run/rollout/3.jsonl").symlink_to(tmp_path / "run/rollout/2.jsonl")  # root's
    theirs = link(tmp_path / "run/rollout/1.jsonl", tmp_path / "private.jsonl")
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
        f"{theirs} is skipped: it is a link to a file of another user."
    ]


@as_root
def test_a_folder_behind_such_a_link_is_no_run_of_a_tree(tmp_path: Path) -> None:
    for user in ("ana", "bo"):
        (tmp_path / user / "math/grpo/rollout").mkdir(parents=True)
    link(tmp_path / "bo/math/stolen", tmp_path / "ana/math/grpo")
    link(tmp_path / "bo/math/grpo/val", tmp_path / "ana/math/grpo/rollout")
    runs = TreePattern.parse(f"{tmp_path}/{{user}}/{{project}}/{{run}}/{{split}}").find_runs()
    assert set(runs) == {TreeRun("math", "grpo", "ana"), TreeRun("math", "grpo", "bo")}
    assert [root.path.name for root in runs[TreeRun("math", "grpo", "bo")]] == ["grpo", "rollout"]


@as_root
def test_a_step_behind_such_a_link_is_not_told_of(tmp_path: Path) -> None:
    link(tmp_path / "train/step_000001.pkl", DATA / "roll/mock/train/step_000001.pkl")
    (spot,) = find_steps(tmp_path)
    assert artifact_collector._read_stamps(spot) == {}
