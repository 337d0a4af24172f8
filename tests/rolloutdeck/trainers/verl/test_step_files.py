"""verl's skip folders: the real ones in `tests/data`, and copies with one invalid part."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rolloutdeck.replay import PULL_MANIFEST
from rolloutdeck.trainer_api import registry
from rolloutdeck.trainer_api.types import LoadableStep
from rolloutdeck.trainers.verl.step_files import (
    DUMPS_WITHOUT_STEP,
    INCOMPLETE_STEPS,
    PULLED_DUMPS,
    UNREADABLE_DUMPS,
    VALIDATION_BATCHES,
    find_steps,
    read_step,
)

DATA = Path(__file__).parents[3] / "data"
SHAPE = {"samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256, "parameter_sync_step": 1}


def get_step_folder(tree: str, step: str = "1") -> Path:
    (result,) = (DATA / tree).glob(f"*/GBS*/{step}")
    return result


def create_tree(tmp_path: Path, shape: str = "GBS8_N4_in128_out256") -> Path:
    folder = tmp_path / "exp_proj" / shape
    folder.mkdir(parents=True)
    return folder


def copy_folder(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def list_complete_steps(root: Path) -> list[LoadableStep]:
    """The complete steps below `root`, sorted by tree and step."""
    matches = [read_step(location) for location in find_steps(root) if not location.reason]
    return sorted(
        (item for item in matches if isinstance(item, LoadableStep)), key=lambda item: (item.path.parent, item.step)
    )


def list_reasons(root: Path) -> dict[str, str]:
    return {location.path.name: location.reason for location in find_steps(root)}


@pytest.mark.parametrize(
    ("tree", "step", "expected", "files", "facts"),
    [
        (
            "verl_skip/main",
            "1",
            ("rollout", 1, "global_step", "skip"),
            ("gen_batch.dp", "meta.json"),
            {"rows": 32, "prompts": 8, "format": "gen_batch", "serialisation": "torch"},
        ),
        (
            "verl_skip/numpy_ser",
            "1",
            ("rollout", 1, "global_step", "skip"),
            ("gen_batch.dp", "meta.json"),
            {"rows": 32, "prompts": 8, "format": "gen_batch", "serialisation": "numpy"},
        ),
        (
            "verl_skip/async",
            "1",
            ("async_rollout", 1, "feed_index", "skip"),
            ("gen_batch.dp", "meta.json"),
            {"rows": 4, "prompts": 1, "format": "gen_batch", "serialisation": "torch"},
        ),
        (
            "verl_tq/sync",
            "1",
            ("rollout_tq", 1, "global_step", "tq"),
            ("0/meta.json", "0/tq_batch.pt"),
            {"rows": 32, "prompts": 8, "format": "tq_batch", "serialisation": "torch"},
        ),
        (
            "verl_v2/main",
            "genstep_000001",
            ("rollout", 1, "global_step", "v2"),
            ("gen_batch.dp", "meta.json", "new_batch.dp"),
            {"rows": 32, "prompts": 8, "format": "gen_batch", "serialisation": "torch"},
        ),
    ],
)
def test_every_layout_is_recognised_with_its_role_step_and_facts(
    tree: str, step: str, expected: tuple[str, int, str, str], files: tuple[str, ...], facts: dict[str, Any]
) -> None:
    [result] = list_complete_steps(DATA / tree)
    assert (result.role, result.step, result.step_kind, result.layout) == expected
    assert (result.path, result.files) == (get_step_folder(tree, step), files)
    assert result.facts == {"role": result.role, **SHAPE, **facts}


def test_the_folder_of_a_single_step_can_be_read(tmp_path: Path) -> None:
    assert list_complete_steps(get_step_folder("verl_tq/sync")) == list_complete_steps(DATA / "verl_tq/sync")
    assert list_complete_steps(get_step_folder("verl_skip/main")) == list_complete_steps(DATA / "verl_skip/main")


def test_steps_are_sorted_and_experiment_names_with_folders_are_found(tmp_path: Path) -> None:
    tree = create_tree(tmp_path / "team" / "exp")
    for step in ("10", "2", "9"):
        copy_folder(get_step_folder("verl_skip/main"), tree / step)
    assert [result.step for result in list_complete_steps(tmp_path)] == [2, 9, 10]


@pytest.mark.parametrize("name", ["gen_batch.dp", "meta.json"])
@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_step_that_verl_did_not_finish_is_skipped(tmp_path: Path, name: str, damage: str) -> None:
    step = copy_folder(get_step_folder("verl_skip/main"), create_tree(tmp_path) / "3")
    (step / name).unlink()
    if damage == "empty":
        (step / name).touch()
    assert list_reasons(tmp_path) == {"3": INCOMPLETE_STEPS} and list_complete_steps(tmp_path) == []


def test_folders_that_verl_would_not_load_are_no_steps(tmp_path: Path) -> None:
    tree = create_tree(tmp_path)
    for name in ("07", "latest", "-1", "1e3"):
        copy_folder(get_step_folder("verl_skip/main"), tree / name)
    assert set(list_reasons(tmp_path).values()) == {DUMPS_WITHOUT_STEP} and len(list_reasons(tmp_path)) == 4


def test_a_step_of_v1_is_complete_if_it_has_every_inner_folder(tmp_path: Path) -> None:
    tree, inner = create_tree(tmp_path, "GBS1_N4_in128_out256"), get_step_folder("verl_tq/sync") / "0"
    for position in ("1/0", "1/1", "2/0", "3/0", "3/2", "4/0", "4/1"):
        copy_folder(inner, tree / position)
    (tree / "4/1/meta.json").unlink()
    assert list_reasons(tmp_path) == {"1": "", "2": INCOMPLETE_STEPS, "3": INCOMPLETE_STEPS, "4": INCOMPLETE_STEPS}
    [result] = list_complete_steps(tmp_path)
    assert result.files == ("0/meta.json", "0/tq_batch.pt", "1/meta.json", "1/tq_batch.pt")
    # The same 32 trajectories twice: rows are summed, prompts are counted by their uid.
    assert result.facts["parameter_sync_step"] == 2
    assert (result.facts["rows"], result.facts["prompts"]) == (64, 8)


def test_the_first_step_of_an_async_v1_run_may_still_get_inner_folders(tmp_path: Path) -> None:
    inner = get_step_folder("verl_tq/sync") / "0"
    sync, several = create_tree(tmp_path / "a"), create_tree(tmp_path / "b", "GBS1_N4_in128_out256")
    copy_folder(inner, sync / "1/0")
    copy_folder(inner, several / "1/0")
    assert [location.grows for location in find_steps(tmp_path / "a")] == [False]
    assert [location.grows for location in find_steps(tmp_path / "b")] == [True]
    copy_folder(inner, several / "2/0")
    assert [location.grows for location in find_steps(tmp_path / "b")] == [False, False]


def test_a_batch_of_one_prompt_is_fully_async_only_if_it_says_so(tmp_path: Path) -> None:
    tree = create_tree(tmp_path, "GBS1_N4_in128_out256")
    copy_folder(get_step_folder("verl_skip/main"), tree / "1")
    copy_folder(get_step_folder("verl_skip/async"), tree / "2")
    assert [(result.step, result.role, result.step_kind) for result in list_complete_steps(tmp_path)] == [
        (1, "rollout", "global_step"),
        (2, "async_rollout", "feed_index"),
    ]


def build_new_batch(monkeypatch: pytest.MonkeyPatch, meta: dict[str, Any]) -> bytes:
    """A `new_batch.dp` without rows, as verl 0.8 pickles one."""

    class DataProto:
        __module__, __qualname__ = "verl.protocol", "DataProto"

        def __getstate__(self) -> tuple[Any, ...]:
            return None, {}, meta

    module = ModuleType("verl.protocol")
    module.DataProto = DataProto  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl", ModuleType("verl"))
    monkeypatch.setitem(sys.modules, "verl.protocol", module)
    return pickle.dumps(DataProto(), protocol=4)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"global_steps": 7}, 7),
        ({"global_steps": 7, "validate": True}, VALIDATION_BATCHES),
        ({}, UNREADABLE_DUMPS),
        ({"global_steps": "7"}, UNREADABLE_DUMPS),
    ],
)
def test_a_genstep_has_the_step_of_its_batch_and_validation_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: dict[str, Any], expected: Any
) -> None:
    step = copy_folder(get_step_folder("verl_v2/main", "genstep_000001"), create_tree(tmp_path) / "genstep_000012")
    (step / "new_batch.dp").write_bytes(build_new_batch(monkeypatch, meta))
    [location] = find_steps(tmp_path)
    result = read_step(location)
    assert (result.step if isinstance(result, LoadableStep) else result) == expected


def test_the_single_file_of_old_versions_is_kept_for_reading_only(tmp_path: Path) -> None:
    name = "exp_proj_GBS8__N4"
    shutil.copy(get_step_folder("verl_skip/main") / "gen_batch.dp", tmp_path / name)
    [result] = list_complete_steps(tmp_path)
    assert (result.path, result.files, result.step, result.layout) == (tmp_path, (name,), 0, "single")
    assert result.facts["format"] == "single_file"  # no run asks for this format
    assert list_complete_steps(tmp_path / name) == [result]


def test_steps_that_pull_wrote_are_skipped(tmp_path: Path) -> None:
    copy_folder(get_step_folder("verl_skip/main"), create_tree(tmp_path) / "3")
    (tmp_path / PULL_MANIFEST).write_text("{}")
    assert list_reasons(tmp_path) == {"3": PULLED_DUMPS}


@pytest.mark.parametrize("damage", ["cut", "hostile"])
def test_a_batch_that_cannot_be_read_has_the_facts_of_its_path(tmp_path: Path, damage: str) -> None:
    step = copy_folder(get_step_folder("verl_skip/main"), create_tree(tmp_path) / "5")
    batch = step / "gen_batch.dp"
    hostile = get_step_folder("verl_skip/broken", "5") / "gen_batch.dp"
    batch.write_bytes(hostile.read_bytes() if damage == "hostile" else batch.read_bytes()[:5000])
    [result] = list_complete_steps(tmp_path)
    assert result.facts == {"role": "rollout", **SHAPE, "prompts": 8}


def test_no_other_folder_looks_like_a_step(tmp_path: Path) -> None:
    for name in ("checkpoints/global_step_4/meta.json", "notes/3/data.json", "1.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert registry.find_steps(tmp_path) == []
