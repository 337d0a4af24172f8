from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.errors import UsageError
from rolloutdeck.watch import follower
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


def sample(folder: Path, step: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    row = {"input": str(folder), "output": "2", "score": 1.0, "step": step}
    (folder / f"{step}.jsonl").write_text(json.dumps(row) + "\n")


def follow(command: Command, pattern: str, *more: str) -> int:
    return command("watch", "--tree", pattern, "--once", "--poll", "0.01", *more)


def opened(deck: Deck) -> dict[str, tuple[str, str]]:
    return {run["uid"]: (run["project"], run["name"]) for run in deck.posted("/runs/")}


def test_all_runs_of_a_tree_are_followed_each_with_its_split(deck: Deck, tmp_path: Path, command: Command) -> None:
    for project, run, split in (("math", "a", "rollout"), ("math", "a", "val"), ("code", "b", "rollout")):
        sample(tmp_path / project / run / split)
    assert follow(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}") == 0
    runs = opened(deck)
    assert sorted((*runs[uid], query["split"], query["source"]) for uid, query, _ in deck.dumps) == [
        ("code", "b", "train", "rollout/1.jsonl"),
        ("math", "a", "eval", "val/1.jsonl"),
        ("math", "a", "train", "rollout/1.jsonl"),
    ]


def test_metrics_in_the_runs_folder_and_beside_it_are_the_runs(deck: Deck, tmp_path: Path, command: Command) -> None:
    sample(tmp_path / "math" / "a" / "rollout")
    for file in ("math/a.jsonl", "math/a/metrics.jsonl"):
        (tmp_path / file).write_text('{"step": 1, "data": {}}\n')
    follow(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert sorted(query["source"] for _, query, _ in deck.dumps if "offset" in query) == ["a.jsonl", "metrics.jsonl"]


def test_two_people_s_runs_of_one_name_are_two_runs(deck: Deck, tmp_path: Path, command: Command) -> None:
    for user in ("ana", "bo"):
        sample(tmp_path / user / "math" / "grpo" / "rollout")
    follow(command, f"{tmp_path}/{{user}}/{{project}}/{{run}}/{{split}}")
    assert sorted(opened(deck).values()) == [("math", "ana-grpo"), ("math", "bo-grpo")]
    assert {tuple(run["tags"]) for run in deck.posted("/runs/")} == {("user:ana",), ("user:bo",)}


def test_a_run_keeps_its_id_when_the_tree_is_followed_again(deck: Deck, tmp_path: Path, command: Command) -> None:
    sample(tmp_path / "math" / "a" / "rollout")
    for _ in range(2):
        follow(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert len(opened(deck)) == 1 and len(deck.dumps) == 1


def test_folders_without_dumps_and_of_no_split_are_no_runs(deck: Deck, tmp_path: Path, command: Command) -> None:
    (tmp_path / "math" / "empty" / "rollout").mkdir(parents=True)
    sample(tmp_path / "math" / "a" / "checkpoints")
    follow(command, f"{tmp_path}/{{project}}/{{run}}/{{split}}")
    assert deck.posts == [] and deck.dumps == []


def test_once_fails_if_no_folder_matches_the_pattern(
    deck: Deck, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(command, f"{tmp_path}/nowhere/{{project}}/{{run}}") == 2
    assert f"No folder matches {tmp_path}/nowhere" in capsys.readouterr().err


def test_without_split_in_the_pattern_all_below_a_run_is_its(tmp_path: Path) -> None:
    sample(tmp_path / "a" / "dumps" / "rollout")
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
def test_a_pattern_that_leaves_something_open_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("{", r"\{")):
        TreePattern.parse(pattern)
