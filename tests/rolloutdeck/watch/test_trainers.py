"""`watch` of ROLL and CURE, which write their files bit by bit and overwrite them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rolloutdeck.cli.folders.run_follower import RunFollower
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.trainers.cure.test_steps import EVAL_OUTPUTS, EVAL_RESULTS, write_run
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, run_turns

BASE, TUNED = "Qwen.Qwen2.5-7B-Instruct", ".root.CURE.optimization.ckpt.optimized"
SAMPLED = "code response length: 47.5, case response length: 82.1\n"
EXECUTED = "code acc: 0.5, code accumulate acc: 0.58\nBoN setting (4, 4):\nacc: 1.0, accumulate acc: 1.0\n"
EVALUATED = "code acc (average proportion of tasks the generated code can pass): 0.5\n"


def write_slowly(trainer: Trainer, name: str, rows: object, watch: RunFollower) -> None:
    """Writes a file in place as Python does: empty, a half, complete. The watch runs a few turns after each."""
    text = json.dumps(rows, indent=2)
    for part in ("", text[: len(text) // 2], text):
        trainer.write(name, part)
        run_turns(watch)


def write_step(trainer: Trainer, model: str, number: int, watch: RunFollower) -> None:
    """Writes what sample.py, execute.py and reward.py write in `optimization`, in this order."""
    outputs, results = f"temp_data/outputs-rl-{model}-D.json", f"results/results-rl-{model}-D.txt"
    trainer.clock += 600  # as long as sampling takes
    trainer.write(f"optimization/{results}", SAMPLED, "a")
    task = {"question": f"Which of {number}?", "full_code_generation": [f"print({number})"]}
    write_slowly(trainer, f"optimization/{outputs}", [task], watch)
    trainer.write(f"optimization/{results}", EXECUTED, "a")
    write_slowly(trainer, f"optimization/{outputs}", [{**task, "all_case_bool_table": [[True]]}], watch)
    for name in ("rl_code_data", "rl_case_data"):
        row = {"prompt": f"Which of {number}?", "response": f"print({number})", "reward": 0.5}
        write_slowly(trainer, f"optimization/temp_data/{name}.json", [row], watch)


def write_evaluation(trainer: Trainer, number: int, watch: RunFollower) -> None:
    trainer.clock += 600
    trainer.write(f"evaluation/results/results-eval-{TUNED}-E.txt", EVALUATED, "a")
    write_slowly(trainer, f"evaluation/temp_data/outputs-eval-{TUNED}-E.json", [{"question": f"eval {number}"}], watch)


def read_latest_files(deck: Deck, split: str) -> dict[tuple[str, int], str]:
    """Returns the last version of each file of each step."""
    return {
        (Path(query["source"]).name, int(query["step"])): body.decode()
        for _, query, body in deck.dumps
        if query["split"] == split and not query["source"].endswith(".txt")
    }


def list_result_versions(deck: Deck, name: str) -> list[tuple[int, int]]:
    """Returns the step and the number of lines of each version of a file of results."""
    return [
        (int(query["step"]), body.count(b"\n")) for _, query, body in deck.dumps if Path(query["source"]).name == name
    ]


def test_each_step_of_cure_is_kept_though_its_files_are_written_over(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    for number, model in enumerate((BASE, TUNED, TUNED, TUNED)):
        write_step(trainer, model, number, watch)
    result = read_latest_files(deck, "train")
    assert sorted(result) == sorted(
        (name, number)
        for number, model in enumerate((BASE, TUNED, TUNED, TUNED))
        for name in (f"outputs-rl-{model}-D.json", "rl_code_data.json", "rl_case_data.json")
    )
    assert [text for (_, number), text in result.items() if f"print({number})" not in text] == []
    assert ["all_case_bool_table" in text for (name, _), text in result.items() if "outputs" in name] == [True] * 4
    assert all(json.loads(text) for text in result.values())  # never half a file
    assert list_result_versions(deck, f"results-rl-{BASE}-D.txt")[-1] == (0, 4)
    assert list_result_versions(deck, f"results-rl-{TUNED}-D.txt")[-1] == (1, 12)  # the first step of this model


def test_evaluations_of_cure_are_of_the_step_before_which_they_ran(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    write_step(trainer, BASE, 0, watch)
    for number in (1, 2):
        write_evaluation(trainer, number, watch)
        write_step(trainer, TUNED, number, watch)
    write_evaluation(trainer, 3, watch)
    name = f"outputs-eval-{TUNED}-E.json"
    result = read_latest_files(deck, "eval")
    assert sorted(result) == [(name, 1), (name, 2), (name, 3)]
    assert all(f"eval {number}" in text for (_, number), text in result.items())
    assert list_result_versions(deck, f"results-eval-{TUNED}-E.txt") == [(1, 1), (2, 2), (3, 3)]


def test_evaluations_of_cure_without_a_training_are_counted(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    for number in range(3):
        write_evaluation(trainer, number, watch)
    assert [number for _, number in sorted(read_latest_files(deck, "eval"))] == [0, 1, 2]


def test_watch_names_an_evaluation_of_an_unknown_step_once(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(trainer.folder, 107, 10, 500.0, interval=None)
    watch = start_watch()
    run_turns(watch)
    run_turns(watch)
    assert not [query for _, query, _ in deck.dumps if "eval-" in query["source"]]
    output = "".join(capsys.readouterr())
    assert output.count(f"{Path(EVAL_OUTPUTS).name} is skipped") == 1


def test_watch_does_not_name_an_evaluation_that_it_has_sent(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(trainer.folder, 100, 10, -500.0, interval=None)
    run_turns(start_watch())
    sent = [(Path(query["source"]).name, query["step"]) for _, query, _ in deck.dumps if "eval-" in query["source"]]
    assert sorted(sent) == [(Path(EVAL_OUTPUTS).name, "100"), (Path(EVAL_RESULTS).name, "100")]
    write_run(trainer.folder, 107, 10, 500.0, interval=None)
    for name in (EVAL_OUTPUTS, EVAL_RESULTS):
        os.utime(trainer.folder / "evaluation" / name, (9500.0, 9500.0))
    os.utime(trainer.folder / f"optimization/results/results-rl-{TUNED}-D.txt", (9999.0, 9999.0))
    run_turns(start_watch())
    assert "is skipped" not in "".join(capsys.readouterr())


def test_a_step_of_roll_is_taken_once_its_one_line_is_whole(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    rows = {"global_step": [1, 1], "prompt": ["a", "a"], "responses": ["b\u2028", "c"], "scores": [0.5, 1.0]}
    watch = start_watch()
    for number in (1, 2):
        text = json.dumps({**rows, "global_step": [number] * 2}, ensure_ascii=False) + "\n"
        for part in ("", text[:30], text):
            trainer.write(f"rollout/rollout_dump_data.step_{number}.jsonl", part)
            run_turns(watch)
    assert deck.steps() == [("files", 1), ("files", 2)]
    assert [json.loads(body)["global_step"][0] for _, _, body in deck.dumps] == [1, 2]


def test_a_validation_of_rolls_agents_that_takes_the_name_of_its_step_arrives_as_well(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    for mode in ("train", "val"):
        rows = {"trajectory_data": [json.dumps({"env_info": {"mode": mode}})], "messages": ["[]"], "global_step": [5]}
        trainer.write("rollout/rollout_dump_data.step_5.jsonl", json.dumps(rows) + "\n")
        run_turns(watch)
    assert [mode in body.decode() for mode, (_, _, body) in zip(("train", "val"), deck.dumps, strict=True)] == [
        True
    ] * 2
