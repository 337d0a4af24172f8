"""The parts of verl's plug-in that need no verl. The complete plug-in: `tests/trainers/verl/test_plugin.py`."""

from __future__ import annotations

import importlib
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.protocol import RowGuidance
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common.token_selection import TokenSelection
from rolloutdeck.trainers.verl.plugin import evictions, guidance, masked_rows, replay, rows, session
from rolloutdeck.trainers.verl.plugin.rule_marks import RuleMarks

GROUPS = [name for name in "abcdefghij" for _ in range(3)]


@pytest.mark.parametrize(("value", "groups"), [("", 8), ("none", 0), ("groups:3", 3), ("all", None)])
def test_the_environment_sets_how_many_groups_have_tokens(value: str, groups: int | None) -> None:
    assert TokenSelection.parse(value).groups == groups


def test_an_invalid_token_selection_means_the_default_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    patching.once_logger.reset("tokens")
    assert TokenSelection.parse("group:3").groups == 8
    assert "not 'group:3'" in caplog.text


def test_tokens_are_kept_for_complete_groups_and_the_selection_is_deterministic() -> None:
    selection = TokenSelection(4, "run")
    stored = selection.select_rows(GROUPS, "train", 7)
    assert set(Counter(GROUPS[position] for position in stored).values()) == {3}
    assert len({GROUPS[position] for position in stored}) == 4
    assert stored == selection.select_rows(GROUPS, "train", 7) == sorted(stored)


def test_other_steps_and_other_runs_select_other_groups() -> None:
    chosen = {tuple(TokenSelection(4, run).select_rows(GROUPS, "train", step)) for run in "xyz" for step in range(10)}
    assert len(chosen) > 20


def test_all_rows_are_selected_if_there_are_no_more_groups_than_requested() -> None:
    assert (
        TokenSelection(10).select_rows(GROUPS, "train", 1)
        == TokenSelection(None).select_rows(GROUPS, "train", 1)
        == list(range(30))
    )


@pytest.fixture
def library_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Writes a library with a class, and a patcher that wraps one method and looks for one that does not exist."""
    (tmp_path / "theirs.py").write_text("class Trainer:\n    def step(self):\n        return 1\n")
    (tmp_path / "patcher.py").write_text(
        "from rolloutdeck.trainers.common import patching as hooks\n"
        "def patch(module):\n"
        "    hooks.wrap_method(module.Trainer, 'step', lambda original: lambda self: original(self) + 1)\n"
        "    hooks.wrap_method(module.Trainer, 'gone', lambda original: original)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "theirs"
    for name in ("theirs", "patcher"):
        sys.modules.pop(name, None)
    patching.PatchingFinder.waiting.clear()
    patching.once_logger.reset("no Trainer.gone")


def test_masked_rows_are_counted_without_padding_rows() -> None:
    keys, tags = ["pad0_0_0", "a_0_0", "b_0_0", "c_0_0"], [{}, {"is_padding": True}, {}, {"seq_len": 3}]
    batch: dict[str, Any] = {"keys": keys, "tags": tags}
    assert masked_rows.tag_masked_rows({"tq_batch.pt": batch}, {"tq_batch.pt": (1,)}) == 1
    assert [bool(tag.get(masked_rows.MASKED_TAG)) for tag in batch["tags"]] == [False, False, False, True]
    assert masked_rows.find_jagged_rows(SimpleNamespace(tags=batch["tags"])) == {3}
    with pytest.raises(NotReplayableError, match="has 2 rows, and row 2 is to be masked"):
        masked_rows.tag_masked_rows({"tq_batch.pt": batch}, {"tq_batch.pt": (0, 2)})


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_library_is_patched_whether_it_is_imported_before_or_after_rolloutdeck(library_name: str, order: str) -> None:
    if order == "before":
        importlib.import_module(library_name)
    patching.patch_when_imported(library_name, "patcher")
    assert importlib.import_module(library_name).Trainer().step() == 2


def test_patching_twice_changes_nothing(library_name: str) -> None:
    for _ in range(2):
        patching.patch_when_imported(library_name, "patcher")
        result = importlib.import_module(library_name)
    assert result.Trainer().step() == 2


def test_a_method_that_a_version_does_not_have_is_logged_and_the_rest_is_patched(
    library_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    patching.patch_when_imported(library_name, "patcher")
    assert importlib.import_module(library_name).Trainer().step() == 2
    assert "This theirs has no Trainer.gone" in caplog.text


def test_a_patcher_that_raises_an_error_leaves_the_library_unchanged(
    library_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "patcher.py").write_text("def patch(module):\n    raise KeyError('x')\n")
    patching.patch_when_imported(library_name, "patcher")
    assert importlib.import_module(library_name).Trainer().step() == 1
    assert "can't record all of theirs: 'x'" in caplog.text


def test_an_error_of_rolloutdeck_loses_the_record_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    @patching.catch_errors
    def record() -> int:
        raise ZeroDivisionError("of a test")

    with caplog.at_level(logging.WARNING):
        assert [record(), record()] == [None, None]
    assert caplog.text.count("ZeroDivisionError: of a test") == 1


def test_reward_parts_are_numbers_and_everything_else_keeps_its_name() -> None:
    row: dict[str, Any] = {"prompt": "p"}
    rows.add_reward_extras(row, {"acc": True, "reward": 1.0, "pred": "7", "format": 0.5, "note": None})
    assert row == {"prompt": "p", "rewards": {"acc": 1.0, "format": 0.5}, "pred": "7"}


def test_a_reward_function_cannot_replace_fields_that_a_row_already_has() -> None:
    row: dict[str, Any] = {"data_source": "gsm8k"}
    rows.add_reward_extras(row, {"data_source": "mine"})
    assert row == {"data_source": "gsm8k"}


def test_rows_that_the_replay_buffer_evicts_are_counted_by_session_and_reason() -> None:
    keys = [f"{uid}_{session}_{output}" for uid in ("s", "f", "x", "kept") for session in (0, 1) for output in (0, 1)]
    buffer = SimpleNamespace(**{evictions.REASONS_ATTRIBUTE: ({"s"}, {"f"}, set())})
    evictions.count_evictions(buffer, keys, ["s", "f"])
    setattr(buffer, evictions.REASONS_ATTRIBUTE, ())
    evictions.count_evictions(buffer, keys, ["x"])
    assert evictions.take_eviction_counts(buffer) == {"stale": 2, "filtered": 2, "surplus": 2}
    assert evictions.take_eviction_counts(buffer) == {}


class PaddedBatch:
    def __init__(self) -> None:
        self.batch = {"prompts": [[1], [2]], "responses": [[3], [4]]}
        self.non_tensor_batch = {masked_rows.MASKED_TAG: np.array([False, True], dtype=object)}

    def __len__(self) -> int:
        return 2


def test_the_rows_that_a_plan_masks_stay_masked_if_the_rules_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("the tokenizer cannot decode")

    found = SimpleNamespace(measure_blocking=nullcontext)
    monkeypatch.setattr(guidance, "find_guidance", lambda trainer: (found, SimpleNamespace()))
    monkeypatch.setattr(guidance, "match_token_rows", fail)
    batch = guidance.prepare_padded(SimpleNamespace(global_steps=3), PaddedBatch())
    assert batch and set(batch.masked) == {1}


def test_rules_about_rewards_select_no_row() -> None:
    assert guidance.drop_reward_rules(RowGuidance(("more",), values={"more": 1.0})) is None
    both = RowGuidance(("skip", "more"), 0.0, values={"more": 1.0})
    assert guidance.drop_reward_rules(both) == RowGuidance(("skip",), 0.0)


def test_the_marks_of_all_batches_of_a_step_are_found_in_any_order() -> None:
    marks = RuleMarks()
    marks.add(1, ["a", "b"], ["skip", None])
    marks.add(1, ["c", "d"], [None, "half"])
    assert marks.find(1, ["d", "a", "pad", "c"]) == ["half", "skip", None, None]
    assert marks.find(2, ["a"]) == []
    marks.add(2, ["a", "b"], [None, None])
    assert marks.find(2, ["a", "b"]) == marks.find(1, ["a", "b"]) == []


def test_rows_with_the_same_key_have_their_marks_only_in_the_order_of_the_batch() -> None:
    marks = RuleMarks()
    marks.add(1, ["a", "a", "b"], ["skip", None, None])
    assert marks.find(1, ["a", "a", "b"]) == ["skip", None, None]
    assert marks.find(1, ["b", "a", "a"]) == []


def test_a_tokenizer_without_a_name_is_not_read_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("of another model")
    monkeypatch.chdir(tmp_path)
    backend = SimpleNamespace(to_str=lambda: "its own")
    for name in ("", None):
        path = session.find_tokenizer_file(SimpleNamespace(name_or_path=name, backend_tokenizer=backend))
        assert path and path.read_text() == "its own"
    named = session.find_tokenizer_file(SimpleNamespace(name_or_path=str(tmp_path), backend_tokenizer=backend))
    assert named == tmp_path / "tokenizer.json"


def test_a_pin_without_prompts_is_not_replayed_for_known_ones(tmp_path: Path) -> None:
    batch = SimpleNamespace(non_tensor_batch={})
    loaded = SimpleNamespace(rows=2, folder=tmp_path, batches={tmp_path / replay.GEN: batch})
    asked = [[{"role": "user", "content": "2+2"}]] * 2
    with pytest.raises(NotReplayableError, match="the prompts of 2 of its 2 rows are not known"):
        replay.check_prompts(loaded, asked)
    replay.check_prompts(loaded, None)
    batch.non_tensor_batch["raw_prompt"] = asked
    replay.check_prompts(loaded, asked)
