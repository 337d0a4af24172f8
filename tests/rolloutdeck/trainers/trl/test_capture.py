"""The capture of a TRL trainer's generations, for steps of several processes or several generations. With a real
trainer of one process: `tests/trainers/trl/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.protocol.compatibility import compare_facts
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.trl import layout
from rolloutdeck.trainers.trl.plugin import capture, step_files
from rolloutdeck.trainers.trl.plugin.capture import GenerationCapture
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration
from tests.support.patching import patch_everywhere

torch = pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import NAN, PROMPTS, GeneratingTrainer, Trainer  # noqa: E402


def capture_generations(trainer: Trainer) -> list[CapturedGeneration]:
    matches: list[CapturedGeneration] = []
    GenerationCapture(trainer, matches.append)
    return matches


def test_each_process_records_its_own_rows_with_their_positions_among_all() -> None:
    for rank in (0, 1):
        trainer = Trainer(rank, world=2)
        result = capture_generations(trainer)
        trainer.step()
        rows = result[0].rows(range(99))
        assert [(row["group"], row["index"]) for row in rows] == [
            (str((rank * 4 + position) // 2), position % 2) for position in range(4)
        ]
        assert [row["rewards"]["letters"] for row in rows] == [rank * 4.0 + position for position in range(4)]


def test_row_positions_continue_within_a_step_and_start_again_with_the_next_step() -> None:
    trainer = Trainer(world=2)
    result = capture_generations(trainer)
    trainer.step(at=0), trainer.step(at=0), trainer.step(training=False, at=0), trainer.step(at=1)
    assert [(item.split, item.step, item.first_row) for item in result] == [
        ("train", 1, 0), ("train", 1, 8), ("eval", 0, 0), ("train", 2, 0),
    ]  # fmt: skip


def test_an_eval_may_have_another_number_of_answers() -> None:
    trainer = Trainer(num_generations_eval=4)
    result = capture_generations(trainer)
    trainer.step(), trainer.step(training=False)
    assert [[row["group"] for row in item.rows(())] for item in result] == [
        ["0", "0", "1", "1"],
        ["0", "0", "0", "0"],
    ]


def test_a_row_ends_at_its_end_token_and_has_no_padding() -> None:
    trainer = Trainer()
    result = capture_generations(trainer)
    trainer.step()
    rows = result[0].rows(range(99))
    # A pad token ends a row too; no end tokens were given.
    assert [row["truncated"] for row in rows] == [False, True, False, True]
    assert [row["response_length"] for row in rows] == [3, 1, 2, 0]
    assert [row["prompt_ids"] for row in rows] == [[5], [5], [6, 5], [6, 5]]
    assert [row["logprobs"] for row in rows] == [[-0.25] * 3, [-0.25], [-0.25] * 2, []]
    assert [row["response_mask"] for row in rows] == [[1, 0, 1], [1], [1, 1], []]
    assert [row["advantages"] for row in rows] == [0.5, -0.5, 1.0, -1.0]
    assert [row["first"] for row in rows] == ["a", "a", "a", ""]
    assert {(row["answer"], row["ground_truth"], "image" in row) for row in rows} == {(3, "3", False)}


def test_columns_whose_names_have_a_meaning_for_a_sample_are_kept_under_another_name() -> None:
    names = ("index", "group", "score", "response", "messages", "truncated", "turn")
    trainer = Trainer()
    trainer.columns = {name: f"its {name}" for name in names} | {"data_source": "gsm8k"}
    result = capture_generations(trainer)
    trainer.step()
    result[0].extras = {"score": [9.0] * 4, "note": ["a"] * 4}
    rows = result[0].rows(())
    assert [{name: row[f"dataset_{name}"] for name in names} for row in rows] == [
        {name: f"its {name}" for name in names}
    ] * 4
    assert [(row["index"], row["group"], row["score"]) for row in rows][:2] == [(0, "0", 0.0), (1, "0", 1.0)]
    assert {row["data_source"] for row in rows} == {"gsm8k"} and [row["response"] for row in rows][:2] == ["abc", "a"]
    assert {(row["extra_score"], row["note"]) for row in rows} == {(9.0, "a")}


def test_values_that_a_reward_function_logs_are_no_ground_truth() -> None:
    trainer = Trainer()
    trainer.columns = {"gold": "4"}
    result = capture_generations(trainer)
    trainer.step()
    for row in result[0].inputs:
        del row["answer"]
    result[0].extras = {name: ["5"] * 4 for name in ("answer", "solution", "completion", "image")}
    rows = result[0].rows(())
    assert {row.get("ground_truth") for row in rows} == {None}
    names = ("gold", "answer", "solution", "extra_completion", "extra_image")
    assert [[row[name] for name in names] for row in rows] == [["4", "5", "5", "5", "5"]] * 4


def test_a_generation_that_cannot_be_captured_is_counted() -> None:
    trainer, lost = Trainer(), []

    def fail(generation: CapturedGeneration) -> None:
        raise ValueError("our own mistake")

    GenerationCapture(trainer, fail, lambda: lost.append(1))
    trainer.step(), trainer.step()
    assert lost == [1, 1]


def test_the_end_tokens_that_a_trainer_names_are_used() -> None:
    trainer = Trainer(eos_token_ids=[8], _tokenizer=SimpleNamespace(eos_token_id=2, pad_token_id=None))
    result = capture_generations(trainer)
    trainer.step()
    assert result[0].end_ids == {8}


def test_rewards_of_none_do_not_count_and_a_row_with_only_none_has_no_score() -> None:
    trainer = Trainer()
    result = capture_generations(trainer)
    trainer.step()
    captured = result[0]
    assert [row["score"] for row in captured.rows(())] == [0.0, 1.0, 2.0, 3.0]
    captured.rewards = torch.full((4, 2), NAN)
    rows = captured.rows(())
    assert [row["score"] for row in rows] == [None] * 4
    assert rows[0]["rewards"] == {"letters": None, "short": None}
    captured.rewards = torch.tensor([[1.0, 3.0]] * 4)
    assert [row["score"] for row in captured.rows(())] == [2.5] * 4


def test_without_reward_weights_all_functions_have_the_same_weight() -> None:
    trainer = Trainer(reward_weights=None)
    result = capture_generations(trainer)
    trainer.step()
    assert result[0].weights == [1.0, 1.0]


def test_a_generation_that_was_not_scored_is_not_captured() -> None:
    trainer = Trainer()
    result = capture_generations(trainer)
    trainer.step()
    trainer.fails = True
    trainer.step()
    assert len(result) == 1


def test_values_that_a_trainer_changes_later_are_captured_before() -> None:
    trainer = Trainer()
    result = capture_generations(trainer)
    trainer.step()
    trainer._pending_extra_logs["first"] = []
    assert result[0].extras == {"first": ["a", "a", "a", ""]}


def test_a_trainer_without_these_methods_is_logged_once_and_not_patched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    for _ in range(2):
        older = SimpleNamespace(_calculate_rewards=len)
        GenerationCapture(older, lambda captured: None)
        assert older._calculate_rewards is len
    assert caplog.text.count("has no _generate_and_score_completions: Rolloutdeck records its metrics only") == 1


@pytest.fixture
def step_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a step with one stored generation."""
    trainer = Trainer()
    result = capture_generations(trainer)
    trainer.step(at=6)
    yield step_files.write_generation(tmp_path, result[0], 1)


def test_a_generation_is_stored_completely_and_can_be_read_again(step_folder: Path) -> None:
    assert step_folder.name == "step_000007" and [path.name for path in step_folder.iterdir()] == ["rollout-1.json"]
    rows = json.loads((step_folder / "rollout-1.json").read_text())["rows"]
    assert [row["completion_ids"] for row in rows] == [[7, 8, 2], [7], [7, 0], []]
    assert [row["prompt_ids"] for row in rows] == [[5], [5], [6, 5], [6, 5]]
    assert [row["env_mask"] for row in rows] == [[1, 0, 1], [1], [1, 1], []]
    assert list(step_files.serialize_prompts(rows)) == PROMPTS


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"format": "trl-rollout", "rows": []}', b'{"format": "other", "rows": [{}]}', b"[" * 9999,
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [], "completion_ids": [1]}]}',
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [1], "completion_ids": []}]}',
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [1], "completion_ids": [true]}]}',
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [1], "completion_ids": "12"}]}',
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [1], "completion_ids": [1, 2], "logprobs": [0.5]}]}',
        b'{"format": "trl-rollout", "rows": [{"prompt_ids": [1], "completion_ids": [1], "env_mask": 1}]}',
        b'{"format": "trl-rollout", "rows": [5]}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_generation_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rollout-0.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"rollout-0.json is not a generation of TRL that Rolloutdeck stored"):
        step_files.read_generation(tmp_path / "rollout-0.json")


def test_messages_are_the_same_prompt_in_any_order_of_their_keys() -> None:
    values = [{"role": "user", "content": "1+1?"}]
    assert step_files.serialize_prompt(values) == step_files.serialize_prompt([{"content": "1+1?", "role": "user"}])
    assert step_files.serialize_prompt(values) != step_files.serialize_prompt([{"role": "user", "content": "1+2?"}])


@pytest.mark.parametrize(
    ("accumulated", "per_generation", "iterations", "rows"),
    [(2, 2, 1, 8), (4, 2, 1, 16), (1, 4, 1, 8), (4, 2, 2, 8), (8, 2, 2, 16), (4, 2, 4, 8)],
)
def test_the_facts_of_a_step_count_every_generation_of_it(
    accumulated: int, per_generation: int, iterations: int, rows: int
) -> None:
    arguments: dict[str, Any] = {"gradient_accumulation_steps": accumulated, "steps_per_generation": per_generation}
    arguments |= {"num_iterations": iterations}
    arguments |= {"generation_batch_size": 8, "max_completion_length": 12, "num_generations": 4, "use_vllm": True}
    args = SimpleNamespace(to_dict=lambda: arguments)
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=""))
    facts = step_files.build_trl_step_facts(SimpleNamespace(args=args, model=model), "abc")
    assert (facts["rows"], facts["prompts"], facts["samples_per_prompt"]) == (rows, rows // 4, 4)
    assert (facts["tokenizer"], facts["model"], facts["max_response_length"]) == ("abc", None, 12)
    assert (facts["serialisation"], facts["max_prompt_length"], facts["rollout_correction"]) == (
        "json",
        "unlimited",
        True,
    )


def test_a_step_and_a_run_with_the_same_arguments_differ_only_in_unknown_facts() -> None:
    values = {"generation_batch_size": 8, "max_completion_length": 12, "num_generations": 4, "use_vllm": False}
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path="tiny"))
    trainer = SimpleNamespace(args=SimpleNamespace(to_dict=lambda: values), model=model)
    pinned = step_files.build_trl_step_facts(trainer, "abc")
    assert {item.fact for item in compare_facts(pinned, pinned)} == {"dataset", "versions"}
    before = compare_facts(pinned, layout.read_requirements(values).facts)  # by its arguments alone, before it runs
    assert {item.fact for item in before} == {"tokenizer", "model", "dataset", "versions"}


def test_the_seconds_of_a_step_are_only_those_of_its_generations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(0, 100, 2))
    monkeypatch.setattr(capture, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    trainer = GeneratingTrainer()
    result = capture_generations(trainer)
    trainer.step(at=0), trainer.step(at=0), trainer.step(training=False, at=1), trainer.step(at=1)
    assert [(item.split, item.step, item.seconds) for item in result] == [
        ("train", 1, 2.0), ("train", 1, 4.0), ("eval", 1, 2.0), ("train", 2, 2.0),
    ]  # fmt: skip
