"""Placements: which files of which pin are written for which step, for a trainer that only reads folders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rolloutdeck.errors import UsageError
from rolloutdeck.replay.placement import Placement, build_placements, find_layout_steps
from rolloutdeck.replay.plan import PlanRevision, parse_plan
from rolloutdeck.trainers.verl.layout import VerlRequirements, read_requirements

SETTINGS = {
    "trainer.experiment_name": "e",
    "trainer.project_name": "p",
    "trainer.use_v1": False,
    "actor_rollout_ref.rollout.n": 4,
    "data.max_prompt_length": 128,
    "data.max_response_length": 256,
    "data.train_batch_size": 8,
}
ASYNC = {**SETTINGS, "async_training.require_batches": 1, "actor_rollout_ref.actor.ppo_mini_batch_size": 2}
V0, FULLY_ASYNC = read_requirements(SETTINGS), read_requirements(ASYNC)


def entry(target: int, source: int, role: str = "rollout", **more: Any) -> dict[str, Any]:
    """An entry of the server's plan: the pin of step `source` at `target`. The sha256 of its files is `source`."""
    numbers = more.pop("prompts", [source])
    files = {name: {"sha256": f"{source:064x}", "bytes": 9} for name in ("gen_batch.dp", "meta.json")}
    artifacts = [
        {"id": f"{number:064x}", "role": role, "step": number, "state": "ready", "files": files} for number in numbers
    ]
    values = {"run": "old", "name": "grpo", "step": source, "step_kind": "global_step"}
    return {"target_step": target, "pin": source, "source": values, "artifacts": artifacts, "differences": [], **more}


def plan(action: str, *entries: dict[str, Any], **more: Any) -> PlanRevision:
    values = {"plan": "default", "revision": 3, "action": action, "on_mismatch": "generate", "exclude_flagged": False}
    return parse_plan({**values, "entries": list(entries), **more})


def group_placements(placements: list[Placement]) -> dict[int, Any]:
    return {placement.number: placement.entry.source["step"] for placement in placements}


def place_steps(
    revision: PlanRevision, max_step: int | None = None, requirements: VerlRequirements = V0
) -> dict[int, Any]:
    return group_placements(
        build_placements(revision, requirements, find_layout_steps(revision, requirements, max_step))[0]
    )


def test_cache_places_steps_only_at_their_targets() -> None:
    assert place_steps(plan("cache", entry(3, 12), entry(5, 20))) == {3: 12, 5: 20}
    assert place_steps(plan("cache", entry(3, 12), entry(5, 20)), max_step=4) == {3: 12}


def test_a_very_large_target_step_is_placed_without_delay() -> None:
    assert place_steps(plan("cache", entry(3, 12), entry(2**62, 20))) == {3: 12, 2**62: 20}


def test_a_repeat_plan_for_too_many_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="too many"):
        find_layout_steps(plan("repeat", entry(1, 12)), V0, 10**30)


def test_repeat_cycles_through_its_targets_from_the_first_one() -> None:
    assert place_steps(plan("repeat", entry(2, 12), entry(3, 20)), max_step=7) == {
        2: 12,
        3: 20,
        4: 12,
        5: 20,
        6: 12,
        7: 20,
    }


def test_repeat_last_repeats_the_step_of_its_last_target() -> None:
    assert place_steps(plan("repeat_last", entry(1, 12), entry(2, 20)), max_step=5) == {
        1: 12,
        2: 20,
        3: 20,
        4: 20,
        5: 20,
    }


def test_repeat_ends_with_the_run_or_asks_for_the_number_of_steps() -> None:
    result = plan("repeat", entry(1, 12))
    assert place_steps(result, requirements=read_requirements({**SETTINGS, "trainer.total_training_steps": 3})) == {
        1: 12,
        2: 12,
        3: 12,
    }
    with pytest.raises(UsageError, match="Use --steps N"):
        place_steps(result)


def test_the_address_of_a_file_is_that_of_its_artifact() -> None:
    (result,), _ = build_placements(plan("cache", entry(3, 12)), V0, range(1, 4))
    assert str(result.folder) == "e_p/GBS8_N4_in128_out256/3"
    assert [file.name for file in result.files] == ["gen_batch.dp", "meta.json"]
    assert result.files[0].address == f"runs/old/artifacts/{12:064x}/files/{12:064x}/"
    assert result.moved


def test_a_pin_that_does_not_fit_is_skipped_with_its_reason_and_its_steps_are_generated() -> None:
    wrong = {"fact": "rows", "pinned": 32, "asking": 64, "verdict": "refuse"}
    result = plan("repeat", entry(1, 12, differences=[wrong]), entry(2, 20))
    placements, left_out = build_placements(result, V0, range(1, 5))
    assert group_placements(placements) == {2: 20, 4: 20}
    assert left_out == ["Target step 1 (step 12 of grpo) is skipped: rows: 32 pinned, 64 requested."]


def test_the_reason_for_a_role_of_another_trainer_names_both_trainers() -> None:
    _, (reason,) = build_placements(plan("cache", entry(1, 12, role="rollout_tq")), V0, range(1, 2))
    assert "it is a rollout_tq dump of the V1 trainer; this run's V0 trainer reads rollout only" in reason


def test_a_plan_that_says_stop_is_refused_at_a_mismatch() -> None:
    result = plan("cache", entry(1, 12, role="rollout_tq"), on_mismatch="stop")
    with pytest.raises(UsageError, match="The plan default@3 stops at a mismatch"):
        build_placements(result, V0, range(1, 2))


def test_the_prompts_of_a_fully_async_step_are_placed_at_their_feed_indices() -> None:
    result = plan("cache", entry(4, 3, role="async_rollout", prompts=[5, 8]))
    assert [placement.number for placement in build_placements(result, FULLY_ASYNC, range(1, 5))[0]] == [7, 10]


def test_two_pins_in_one_folder_are_refused() -> None:
    result = plan(
        "cache",
        entry(3, 3, role="async_rollout", prompts=[5, 8]),
        entry(4, 4, role="async_rollout", prompts=[8, 9]),
    )
    with pytest.raises(UsageError, match="step 3 of grpo and step 4 of grpo need the same folder .*/8"):
        build_placements(result, FULLY_ASYNC, range(1, 5))


@pytest.mark.parametrize("path", ["../meta.json", "/etc/meta.json", "a\0b"])
def test_a_plan_with_a_file_path_outside_its_folder_is_refused(path: str) -> None:
    invalid = entry(3, 12)
    invalid["artifacts"][0]["files"] = {path: {"sha256": "0" * 64, "bytes": 1}}
    with pytest.raises(ValueError, match="not a replay plan"):
        plan("cache", invalid)


def test_files_that_are_still_uploading_are_an_error_and_unsafe_files_skip_their_step() -> None:
    uploading, unsafe = entry(1, 12), entry(2, 20)
    uploading["artifacts"][0]["state"] = "uploading"
    unsafe["artifacts"][0] |= {"state": "unsafe", "message": "It runs os.system."}
    with pytest.raises(UsageError, match=r"The files of step 12 of grpo are not on the server yet \(uploading\)"):
        build_placements(plan("cache", uploading), V0, range(1, 2))
    _, (reason,) = build_placements(plan("cache", unsafe), V0, range(1, 3))
    assert reason.endswith("is skipped: its files are unsafe: It runs os.system.")


def test_unknown_facts_are_listed_together_in_one_warning() -> None:
    known = {"fact": "model", "pinned": "a", "asking": "b", "verdict": "warn"}
    unknown = [{"fact": fact, "pinned": None, "asking": 1, "verdict": "warn"} for fact in ("dataset", "versions")]
    (result,) = plan("cache", entry(1, 12, differences=[known, *unknown])).entries
    assert result.warnings == ("model: a pinned, b requested; not compared because unknown: dataset, versions")


@pytest.mark.parametrize("action", ["cache", "repeat"])
def test_a_run_without_steps_left_is_refused(action: str) -> None:
    ended = replace(V0, first=5, total_steps=0)
    with pytest.raises(UsageError, match="no steps left: it begins with step 5"):
        find_layout_steps(plan(action, entry(5, 12)), ended, None)
    assert find_layout_steps(plan(action, entry(5, 12)), ended, 2) == range(5, 6 if action == "cache" else 7)
