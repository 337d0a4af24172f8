"""`watch` beside ROLL and CURE, whose files appear bit by bit and are written over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rolloutdeck.cli.watch_run import RunFollower
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.trainers.cure.test_steps import EVAL_OUTPUTS, EVAL_RESULTS, write_run
from tests.rolloutdeck.watch.trainer import Trainer, Watching, turns

BASE, TUNED = "Qwen.Qwen2.5-7B-Instruct", ".root.CURE.optimization.ckpt.optimized"
SAMPLED = "code response length: 47.5, case response length: 82.1\n"
EXECUTED = "code acc: 0.5, code accumulate acc: 0.58\nBoN setting (4, 4):\nacc: 1.0, accumulate acc: 1.0\n"
EVALUATED = "code acc (average proportion of tasks the generated code can pass): 0.5\n"


def write_slowly(trainer: Trainer, name: str, rows: object, follow: RunFollower) -> None:
    """As Python writes a file in place: emptied, half of it, all of it, with somebody looking in between."""
    text = json.dumps(rows, indent=2)
    for part in ("", text[: len(text) // 2], text):
        trainer.write(name, part)
        turns(follow)


def step(trainer: Trainer, model: str, number: int, follow: RunFollower) -> None:
    """What sample.py, execute.py and reward.py do in `optimization`, in their order."""
    outputs, results = f"temp_data/outputs-rl-{model}-D.json", f"results/results-rl-{model}-D.txt"
    trainer.clock += 600  # as long as sampling takes
    trainer.write(f"optimization/{results}", SAMPLED, "a")
    task = {"question": f"Which of {number}?", "full_code_generation": [f"print({number})"]}
    write_slowly(trainer, f"optimization/{outputs}", [task], follow)
    trainer.write(f"optimization/{results}", EXECUTED, "a")
    write_slowly(trainer, f"optimization/{outputs}", [{**task, "all_case_bool_table": [[True]]}], follow)
    for name in ("rl_code_data", "rl_case_data"):
        row = {"prompt": f"Which of {number}?", "response": f"print({number})", "reward": 0.5}
        write_slowly(trainer, f"optimization/temp_data/{name}.json", [row], follow)


def evaluated(trainer: Trainer, number: int, follow: RunFollower) -> None:
    trainer.clock += 600
    trainer.write(f"evaluation/results/results-eval-{TUNED}-E.txt", EVALUATED, "a")
    write_slowly(trainer, f"evaluation/temp_data/outputs-eval-{TUNED}-E.json", [{"question": f"eval {number}"}], follow)


def arrived(deck: Deck, split: str) -> dict[tuple[str, int], str]:
    """The last version of each file of each step."""
    return {
        (Path(query["source"]).name, int(query["step"])): body.decode()
        for _, query, body in deck.dumps
        if query["split"] == split and not query["source"].endswith(".txt")
    }


def figures(deck: Deck, name: str) -> list[tuple[int, int]]:
    """Of each version of a file of results: the step that is said, and how many lines it has."""
    return [
        (int(query["step"]), body.count(b"\n")) for _, query, body in deck.dumps if Path(query["source"]).name == name
    ]


def test_each_step_of_cure_is_kept_though_its_files_are_written_over(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    for number, model in enumerate((BASE, TUNED, TUNED, TUNED)):
        step(trainer, model, number, follow)
    result = arrived(deck, "train")
    assert sorted(result) == sorted(
        (name, number)
        for number, model in enumerate((BASE, TUNED, TUNED, TUNED))
        for name in (f"outputs-rl-{model}-D.json", "rl_code_data.json", "rl_case_data.json")
    )
    assert [text for (_, number), text in result.items() if f"print({number})" not in text] == []
    assert ["all_case_bool_table" in text for (name, _), text in result.items() if "outputs" in name] == [True] * 4
    assert all(json.loads(text) for text in result.values())  # never half a file
    assert figures(deck, f"results-rl-{BASE}-D.txt")[-1] == (0, 4)
    assert figures(deck, f"results-rl-{TUNED}-D.txt")[-1] == (1, 12)  # what its first step is


def test_evaluations_of_cure_are_of_the_step_before_which_they_ran(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    step(trainer, BASE, 0, follow)
    for number in (1, 2):
        evaluated(trainer, number, follow)
        step(trainer, TUNED, number, follow)
    evaluated(trainer, 3, follow)
    name = f"outputs-eval-{TUNED}-E.json"
    result = arrived(deck, "eval")
    assert sorted(result) == [(name, 1), (name, 2), (name, 3)]
    assert all(f"eval {number}" in text for (_, number), text in result.items())
    assert figures(deck, f"results-eval-{TUNED}-E.txt") == [(1, 1), (2, 2), (3, 3)]


def test_evaluations_of_cure_without_a_training_are_counted(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    follow = watching()
    for number in range(3):
        evaluated(trainer, number, follow)
    assert [number for _, number in sorted(arrived(deck, "eval"))] == [0, 1, 2]


def test_watch_names_an_evaluation_of_an_unknown_step_once(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(trainer.folder, 107, 10, 500.0, interval=None)
    follow = watching()
    turns(follow)
    turns(follow)
    assert not [query for _, query, _ in deck.dumps if "eval-" in query["source"]]
    output = "".join(capsys.readouterr())
    assert output.count(f"{Path(EVAL_OUTPUTS).name} is skipped") == 1


def test_watch_does_not_name_an_evaluation_that_it_has_sent(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(trainer.folder, 100, 10, -500.0, interval=None)
    turns(watching())
    sent = [(Path(query["source"]).name, query["step"]) for _, query, _ in deck.dumps if "eval-" in query["source"]]
    assert sorted(sent) == [(Path(EVAL_OUTPUTS).name, "100"), (Path(EVAL_RESULTS).name, "100")]
    write_run(trainer.folder, 107, 10, 500.0, interval=None)
    for name in (EVAL_OUTPUTS, EVAL_RESULTS):
        os.utime(trainer.folder / "evaluation" / name, (9500.0, 9500.0))
    os.utime(trainer.folder / f"optimization/results/results-rl-{TUNED}-D.txt", (9999.0, 9999.0))
    turns(watching())
    assert "is skipped" not in "".join(capsys.readouterr())


def test_a_step_of_roll_is_taken_once_its_one_line_is_whole(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    rows = {"global_step": [1, 1], "prompt": ["a", "a"], "responses": ["b\u2028", "c"], "scores": [0.5, 1.0]}
    follow = watching()
    for number in (1, 2):
        text = json.dumps({**rows, "global_step": [number] * 2}, ensure_ascii=False) + "\n"
        for part in ("", text[:30], text):
            trainer.write(f"rollout/rollout_dump_data.step_{number}.jsonl", part)
            turns(follow)
    assert deck.steps() == [("files", 1), ("files", 2)]
    assert [json.loads(body)["global_step"][0] for _, _, body in deck.dumps] == [1, 2]


def test_a_validation_of_rolls_agents_that_takes_the_name_of_its_step_arrives_as_well(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    for mode in ("train", "val"):
        rows = {"trajectory_data": [json.dumps({"env_info": {"mode": mode}})], "messages": ["[]"], "global_step": [5]}
        trainer.write("rollout/rollout_dump_data.step_5.jsonl", json.dumps(rows) + "\n")
        turns(follow)
    assert [mode in body.decode() for mode, (_, _, body) in zip(("train", "val"), deck.dumps, strict=True)] == [
        True
    ] * 2
