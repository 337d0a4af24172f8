"""`watch --tree`: the runs that a pattern of folders finds, with their project, name and split."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.errors import UsageError
from rolloutdeck.watch import follower
from rolloutdeck.watch.follower import Follower
from rolloutdeck.watch.tree_pattern import TreePattern, TreeRun
from tests.rolloutdeck.support.deck import Deck

Command = Callable[..., int]


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    running.created = True
    yield running
    running.down()


@pytest.fixture
def command(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "secret")
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.0)
    return lambda *words: main([*words])


def write_sample(folder: Path, step: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    row = {"input": str(folder), "output": "2", "score": 1.0, "step": step}
    (folder / f"{step}.jsonl").write_text(json.dumps(row) + "\n")


def watch_tree(command: Command, pattern: str, *more: str) -> int:
    return command("watch", "--tree", pattern, "--once", "--poll", "0.01", *more)


def list_opened_runs(deck: Deck) -> dict[str, tuple[str, str]]:
    return {run["uid"]: (run["project"], run["name"]) for run in deck.posted("/runs/")}


def test_all_runs_of_a_tree_are_followed_each_with_its_split(deck: Deck, tmp_path: Path, command: Command) -> None:
    for project, run, split in (("math", "a", "rollout"), ("math", "a", "val"), ("code", "b", "rollout")):
        write_sample(tmp_path / project / run / split)
    assert watch_tree(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}") == 0
    runs = list_opened_runs(deck)
    assert sorted((*runs[uid], query["split"], query["source"]) for uid, query, _ in deck.dumps) == [
        ("code", "b", "train", "rollout/1.jsonl"),
        ("math", "a", "eval", "val/1.jsonl"),
        ("math", "a", "train", "rollout/1.jsonl"),
    ]


def test_metrics_in_the_folder_of_a_run_and_next_to_it_belong_to_the_run(
    deck: Deck, tmp_path: Path, command: Command
) -> None:
    write_sample(tmp_path / "math" / "a" / "rollout")
    for file in ("math/a.jsonl", "math/a/metrics.jsonl"):
        (tmp_path / file).write_text('{"step": 1, "data": {}}\n')
    watch_tree(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert sorted(query["source"] for _, query, _ in deck.dumps if "offset" in query) == ["a.jsonl", "metrics.jsonl"]


@pytest.mark.parametrize("pattern", ["{project}/{run}", "{project}/{run}/{split}", "{project}/{run}/dumps"])
def test_a_file_of_samples_next_to_the_folder_of_a_run_belongs_to_the_run(
    deck: Deck, tmp_path: Path, command: Command, pattern: str
) -> None:
    run = tmp_path / "math" / "7"
    run.mkdir(parents=True)
    write_sample(tmp_path / "math", 7)  # 7.jsonl
    assert watch_tree(command, f"{tmp_path}/{pattern}", "--project", "math") == 0
    assert [(query["source"], query["split"]) for _, query, _ in deck.dumps] == [("7.jsonl", "train")]
    write_sample(run / "dumps" / "val")
    write_sample(run / "val")
    before = list_opened_runs(deck)
    assert watch_tree(command, f"{tmp_path}/{pattern}", "--project", "math") == 0
    assert list_opened_runs(deck) == before and len(deck.dumps) > 1


def test_runs_of_two_users_with_the_same_name_are_two_runs(deck: Deck, tmp_path: Path, command: Command) -> None:
    for user in ("ana", "bo"):
        write_sample(tmp_path / user / "math" / "grpo" / "rollout")
    watch_tree(command, f"{tmp_path}/{{user}}/{{project}}/{{run}}/{{split}}")
    assert sorted(list_opened_runs(deck).values()) == [("math", "ana-grpo"), ("math", "bo-grpo")]
    assert {tuple(run["tags"]) for run in deck.posted("/runs/")} == {("user:ana",), ("user:bo",)}


def test_a_run_keeps_its_id_when_the_tree_is_followed_again(deck: Deck, tmp_path: Path, command: Command) -> None:
    write_sample(tmp_path / "math" / "a" / "rollout")
    for _ in range(2):
        watch_tree(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert len(list_opened_runs(deck)) == 1 and len(deck.dumps) == 1


def test_folders_without_dumps_or_without_a_split_are_no_runs(deck: Deck, tmp_path: Path, command: Command) -> None:
    (tmp_path / "math" / "empty" / "rollout").mkdir(parents=True)
    write_sample(tmp_path / "math" / "a" / "checkpoints")
    watch_tree(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert deck.posts == [] and deck.dumps == []


def refuse_access(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes a folder unreadable, as `chmod 700` by its owner does for other users. It would not stop root."""
    stat = os.stat

    def stat_others(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, (str, Path)) and folder in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_others)


@pytest.mark.parametrize("pattern", ["{user}/runs/{run}/rollout", "{user}/runs/{run}/{split}", "{user}/runs/{run}"])
def test_a_folder_that_can_t_be_read_does_not_end_the_watch_of_others(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for user in ("ana", "bob"):
        write_sample(tmp_path / user / "runs" / user / "rollout")
    refuse_access(monkeypatch, tmp_path / "bob")
    assert watch_tree(command, f"{tmp_path}/{pattern}", "--project", "math") == 0
    assert [name for _, name in list_opened_runs(deck).values()] == ["ana"]


def test_a_link_that_leads_nowhere_hides_no_other_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "b")
    assert [run.run for run in TreePattern.parse(f"{tmp_path}/runs/{{run}}", project="math").find_runs()] == ["a"]


def test_a_run_that_becomes_unreadable_does_not_stop_the_others(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a", "b"):
        write_sample(tmp_path / run)
    find_changed = Follower.find_changed

    def fail_for_a(self: Follower) -> Any:
        if self.base.name == "a":
            raise OSError(errno.EIO, "Input/output error", str(self.base))
        return find_changed(self)

    monkeypatch.setattr(Follower, "find_changed", fail_for_a)
    assert watch_tree(command, f"{tmp_path}/{{run}}", "--project", "math") == 2
    assert [name for _, name in list_opened_runs(deck).values()] == ["b"] and len(deck.dumps) == 1
    message = capsys.readouterr().err
    assert message.count(f"a: {tmp_path}/a: Input/output error. Trying again every 30 s.") == 1


def test_an_outage_for_one_run_is_reported_once_and_not_ended_by_another_run(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a", "b"):
        write_sample(tmp_path / run)
    monkeypatch.setattr("rolloutdeck.cli.folders.watch.MAX_RETRY_SECONDS", 0.01)
    deck.mode, deck.only = "503", f"{tmp_path}/a"
    for step in range(2, 9):
        write_sample(tmp_path / "b", step)
    assert watch_tree(command, f"{tmp_path}/{{run}}", "--project", "math") == 2
    message = capsys.readouterr().err
    assert message.count("Nothing is lost") == 1 and "The server answers again." not in message
    assert len(deck.dumps) == 8


def test_a_run_that_the_server_refuses_is_not_sent_again(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a", "b"):
        write_sample(tmp_path / run)
    monkeypatch.setattr("rolloutdeck.cli.folders.watch.DISCOVER_SECONDS", 0.0)
    deck.mode, deck.only = "400", '"name": "b"'
    assert watch_tree(command, f"{tmp_path}/{{run}}", "--project", "math") == 1
    assert capsys.readouterr().err.count("math/b is skipped: No, because of a test.") == 1
    assert [name for _, name in list_opened_runs(deck).values()] == ["a"]


def test_watch_once_fails_if_no_folder_matches_the_pattern(
    deck: Deck, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch_tree(command, f"{tmp_path}/nowhere/{{project}}/{{run}}") == 2
    assert f"No folder matches {tmp_path}/nowhere" in capsys.readouterr().err


def test_without_split_in_the_pattern_all_files_below_a_run_belong_to_it(tmp_path: Path) -> None:
    write_sample(tmp_path / "a" / "dumps" / "rollout")
    runs = TreePattern.parse(f"{tmp_path}/{{run}}/dumps", project="math").find_runs()
    assert {run_name: [root.path for root in roots] for run_name, roots in runs.items()} == {
        TreeRun("math", "a"): [tmp_path / "a" / "dumps"]
    }


def test_a_placeholder_may_be_part_of_a_name(tmp_path: Path) -> None:
    for name in ("run-a_x", "run-b_x", "other"):
        (tmp_path / name).mkdir()
    runs = TreePattern.parse(f"{tmp_path}/run-{{run}}_x", project="math").find_runs()
    assert sorted(run.run for run in runs) == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("/x/{project}/{name}", "{name}"),
        ("/x/{run}/{run}", "must not repeat"),
        ("/x/{run}", "--project"),
        ("/x/{project}/{split}", "--run"),
        ("/x/{project}/{run", "unmatched brace"),
        ("/x/{project}/run}", "unmatched brace"),
        ("/x/{split}/{project}/{run}", "must come after"),
    ],
)
def test_an_ambiguous_or_incomplete_pattern_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("{", r"\{")):
        TreePattern.parse(pattern)
