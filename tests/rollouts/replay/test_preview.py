"""What a plan will do, before and after a run: prompts compared by hash, conflicts inside the plan, outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import InvalidInputError
from rollouts.models import Artifact, Pin, Project, Run
from rollouts.pins import pins
from rollouts.replay import bindings, compatibility, outcomes, plans, preview, prompts
from tests.rollouts.support.artifacts import register_artifact
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db

SHAPE = {"serialisation": "json", "format": "own", "rows": 4, "prompts": 2, "samples_per_prompt": 2}
SLIME = {"format": "slime-rollout"}
PROMPTS = ("1+1=", "2+2=")


@pytest.fixture
def source_run(project: Project) -> Run:
    return builders.run(project, "source")


@pytest.fixture
def next_run(project: Project) -> Run:
    return builders.run(project, "next", facts={**SHAPE, "role": "rollout"})


def index_generations(run: Run, step: int, texts: Sequence[str] = PROMPTS, answer: str = "2") -> None:
    """A recorded step with two answers to each prompt."""
    index_file(run, lines(*(generation(prompt, f"{answer} {n}", step=step) for prompt in texts for n in (1, 2))), step)


def create_pin(run: Run, step: int, by: User, texts: Sequence[str] = PROMPTS, **facts: Any) -> Pin:
    index_generations(run, step, texts)
    register_artifact(run, step, facts={**SHAPE, **facts}, attempt="files", role=facts.get("role", "rollout"))
    return pins.pin_step(run, step, by)[0]


def save_and_preview(
    by: User, entries: Sequence[tuple[Pin, int]], run: Run | None = None, **settings: Any
) -> dict[int, preview.EntryPreview]:
    project = entries[0][0].project
    last = plans.find_current_revision(project)
    revision = plans.save_plan(
        project, "default", by, if_match=last.number if last else 0, action="cache", entries=entries, **settings
    )
    compared = compatibility.check_plan_compatibility(revision, compatibility.load_run_facts(run) if run else {})
    context = preview.PlanContext(run, project.loosened, revision.on_selected)
    return preview.preview_entries(compared, context)


def get_states(previews: dict[int, preview.EntryPreview]) -> dict[int, str]:
    return {target: row.state for target, row in previews.items()}


def test_without_a_run_the_prompts_are_unknown(source_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner)
    shown = save_and_preview(owner, [(pin, 1), (pin, 7)])
    assert {row.label for row in shown.values()} == {"unknown: depends on the prompts"}
    assert "same data, seed and batch size as source" in shown[1].reason
    assert "another step than in the source run" in shown[7].reason


def test_a_step_that_the_run_reached_is_compared_by_its_prompts(source_run: Run, next_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner)
    index_generations(next_run, 1, answer="another")
    index_generations(next_run, 2, ("3+3=", "2+2="))
    index_generations(next_run, 3, PROMPTS[::-1])
    index_generations(next_run, 4, PROMPTS[:1])
    shown = save_and_preview(owner, [(pin, step) for step in range(1, 6)], next_run)
    assert get_states(shown) == {1: "will_replay", 2: "will_generate", 3: "unknown", 4: "unknown", 5: "unknown"}
    assert shown[1].reason == "step 1 of next has the same prompts"
    assert shown[2].reason == "the prompts differ from those of step 2 in next"
    assert "another order" in shown[3].reason and "has not reached step 5" in shown[5].reason


def test_a_dry_run_of_the_data_loader_gives_the_prompts_of_later_steps(
    source_run: Run, next_run: Run, owner: User
) -> None:
    pin = create_pin(source_run, 1, owner)
    sent = {"1": [*PROMPTS], "2": ["<|im_start|>user\n1+1=<|im_end|>\n", "2+2=", "2+2="], "3": ["9-9=", "2+2="]}
    assert prompts.record_step_prompts(next_run, sent) == 3
    shown = save_and_preview(owner, [(pin, step) for step in (1, 2, 3)], next_run)
    assert get_states(shown) == {1: "will_replay", 2: "will_replay", 3: "will_generate"}
    prompts.record_step_prompts(next_run, {3: [*PROMPTS]})
    assert save_and_preview(owner, [(pin, 3)], next_run)[3].state == "will_replay"
    index_generations(
        next_run, 3, ("8-1=", "7-1=")
    )  # the recorded prompts of the run count more than those of the dry run
    assert save_and_preview(owner, [(pin, 3)], next_run)[3].state == "will_generate"


@pytest.mark.parametrize("steps", [None, [], {}, {"x": ["a"]}, {"-1": ["a"]}, {"1": []}, {"1": "a"}, {"1": [1]}])
def test_a_malformed_dry_run_is_refused(next_run: Run, steps: Any) -> None:
    with pytest.raises(InvalidInputError):
        prompts.record_step_prompts(next_run, steps)


def test_settings_that_differ_are_named_before_the_prompts(source_run: Run, next_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner, max_response_length=512)
    index_generations(next_run, 1)
    Run.objects.filter(pk=next_run.pk).update(facts={**next_run.facts, "max_response_length": 64})
    next_run.refresh_from_db()
    shown = save_and_preview(owner, [(pin, 1)], next_run)[1]
    assert (shown.state, shown.reason) == ("will_generate", "max_response_length: 512 pinned, 64 in next")


def test_files_that_are_lost_are_generated_instead(source_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner)
    Artifact.objects.update(state="gone")
    assert save_and_preview(owner, [(pin, 1)])[1].reason == "its files are unavailable"


def test_a_trainer_that_replays_its_own_prompts_depends_on_the_settings_only(
    source_run: Run, next_run: Run, owner: User
) -> None:
    pin = create_pin(source_run, 1, owner, **SLIME)
    assert save_and_preview(owner, [(pin, 5)])[5].label == "unknown: depends on the settings"
    Run.objects.filter(pk=next_run.pk).update(facts={**next_run.facts, **SLIME})
    next_run.refresh_from_db()
    index_generations(next_run, 5, ("other", "prompts"))
    shown = save_and_preview(owner, [(pin, 5), (pin, 90)], next_run)
    assert get_states(shown) == {5: "will_replay", 90: "will_replay"} and "slime replays the pinned" in shown[5].reason


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"role": "async_rollout"}, "role async_rollout; the plan's other steps have rollout"),
        (
            {"prompts": 1, "samples_per_prompt": 4},
            "1 prompts × 4 responses per step; the plan has 2 prompts × 2 responses",
        ),
        ({"max_response_length": 9}, "maximum response length 9; the plan's other steps have 64"),
        ({"format": "slime-rollout"}, "pinned from slime; the plan's other steps are from trl"),
    ],
)
def test_conflicts_are_found_without_any_run(source_run: Run, owner: User, facts: dict[str, Any], reason: str) -> None:
    shape = {"format": "trl-rollout", "max_response_length": 64}
    good = [create_pin(source_run, step, owner, **shape) for step in (1, 2)]
    odd = create_pin(source_run, 3, owner, **{**shape, **facts})
    shown = save_and_preview(owner, [(odd, 1), (good[0], 2), (good[1], 3)])
    assert get_states(shown) == {1: "conflict", 2: "unknown", 3: "unknown"}
    assert shown[1].reason == reason


def test_an_overridden_check_is_no_conflict(source_run: Run, owner: User) -> None:
    entries = [(create_pin(source_run, step, owner, max_response_length=step), step) for step in (1, 2)]
    assert get_states(save_and_preview(owner, entries)) == {1: "unknown", 2: "conflict"}
    Project.objects.update(loosened={"max_response_length": {"note": "it cuts"}})
    for pin, _ in entries:
        pin.project.refresh_from_db()
    assert set(get_states(save_and_preview(owner, entries)).values()) == {"unknown"}


def test_a_batch_without_its_flagged_prompts_conflicts_with_full_ones(source_run: Run, owner: User) -> None:
    entries = [(create_pin(source_run, step, owner), step) for step in (1, 2, 3)]
    save_and_preview(owner, entries)
    compared = compatibility.check_plan_compatibility(plans.find_current_revision(source_run.project), {})
    rows = {compared[0].artifacts[0].pk: preview.exclusion.ExcludedRows({}, 1)}
    smaller = replace(compared[0], excluded=preview.exclusion.PinExclusion(1, 0, rows))
    for exclude, state in ((True, "conflict"), (False, "unknown")):
        shown = preview.preview_entries(
            [smaller, *compared[1:]], preview.PlanContext(on_selected="exclude" if exclude else "keep")
        )
        assert get_states(shown) == {1: state, 2: "unknown", 3: "unknown"}
    [single] = preview.preview_entries([smaller], preview.PlanContext(on_selected="exclude")).values()
    assert single.state == "unknown"  # the next run may ask for so few prompts


def test_with_a_run_the_entries_that_do_not_fit_it_are_conflicts(source_run: Run, next_run: Run, owner: User) -> None:
    odd = [(create_pin(source_run, step, owner, rows=64), step) for step in (1, 2)]
    fits = [(create_pin(source_run, 3, owner), 3)]
    assert get_states(save_and_preview(owner, odd + fits)) == {1: "unknown", 2: "unknown", 3: "conflict"}
    compared = compatibility.check_plan_compatibility(plans.find_current_revision(source_run.project), {})
    shown = preview.preview_entries(compared, preview.PlanContext(next_run, facts=next_run.facts))
    assert get_states(shown) == {1: "conflict", 2: "conflict", 3: "unknown"}


def test_after_the_run_each_entry_has_its_outcome(source_run: Run, next_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner)
    entries = [(pin, 1), (pin, 2), (pin, 3), (pin, 9)]
    shown = save_and_preview(owner, entries)
    assert all(row.outcome is None for row in shown.values())
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 1, "hit", rows=4, seconds=0.1)
    outcomes.record_replay_outcome(next_run, "a", 2, "refused", reason="its prompts differ")
    index_generations(next_run, 3)
    targets = {target: pin.pk for pin, target in entries}
    found = preview.load_entry_outcomes(next_run, "cache", targets)
    assert {target: (row.state, row.reason) for target, row in found.items()} == {
        1: ("replayed", ""),
        2: ("refused", "its prompts differ"),
        3: ("not_reported", ""),
        9: ("not_reached", ""),
    }
    other = create_pin(source_run, 2, owner)
    assert preview.load_entry_outcomes(next_run, "cache", {1: pin.pk, 2: other.pk, 5: pin.pk}).keys() == {1}
    assert preview.find_newest_bound_run(pin.project, "default") == next_run
    assert preview.find_newest_bound_run(pin.project, "another") is None


def test_a_plan_that_repeats_counts_all_steps_of_an_entry(source_run: Run, next_run: Run, owner: User) -> None:
    pin = create_pin(source_run, 1, owner)
    plans.save_plan(pin.project, "default", owner, if_match=0, action="repeat_last", entries=[(pin, 1)])
    bindings.bind_run(next_run)
    for step in (1, 2, 3):
        outcomes.record_replay_outcome(next_run, "a", step, "hit")
    outcomes.record_replay_outcome(next_run, "a", 4, "refused", reason="no")
    [row] = preview.load_entry_outcomes(next_run, "repeat_last", {1: pin.pk}).values()
    assert (row.label, row.reason) == ("refused (3 of 4 steps replayed)", "no")
