"""Plans: saved as revisions, bound to runs, judged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rolloutdeck.protocol import resolve_targets
from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.models import Artifact, AuditEntry, Binding, Entry, Pin, Project, Revision, Run
from rollouts.pins import artifacts, pins
from rollouts.replay import bindings, compatibility, outcomes, overrides, plans, ranges
from tests.dashboard.support.api_client import build_row, push_rows
from tests.rollouts.support.artifacts import register_artifact
from tests.support import builders

pytestmark = pytest.mark.django_db

SHAPE = {"serialisation": "torch", "format": "gen_batch", "rows": 32, "prompts": 8, "samples_per_prompt": 4}


@pytest.fixture
def source(project: Project) -> Run:
    return builders.run(project, "source")


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "next")


@pytest.fixture
def good(source: Run, owner: User) -> list[Pin]:
    """Pins of the steps 1 to 3."""
    for step in (1, 2, 3):
        register_artifact(source, step, facts=SHAPE)
    return [pins.pin_step(source, step, owner)[0] for step in (1, 2, 3)]


def saved(project: Project, by: User, if_match: int, *entries: tuple[Pin, int], **more: Any) -> Revision:
    return plans.save_plan(
        project, "default", by, if_match=if_match, action=more.pop("action", "cache"), entries=entries
    )


def preview(revision: Revision | None, steps: range) -> list[tuple[int, int | None]]:
    targets = [entry.target_step for entry in plans.load_plan_entries(revision)]
    return resolve_targets(revision.action if revision else "cache", targets, steps)


def test_there_is_no_plan_until_somebody_saves_one(project: Project, owner: User, good: list[Pin]) -> None:
    assert plans.find_current_revision(project) is None
    revision = saved(project, owner, 0, (good[0], 1), (good[1], 4), action="repeat")
    assert (revision.number, revision.action, plans.find_current_revision(project)) == (1, "repeat", revision)
    assert list(revision.entries.order_by("target_step").values_list("target_step", "pin")) == [
        (1, good[0].pk),
        (4, good[1].pk),
    ]
    assert AuditEntry.objects.get(verb="plan.save").detail["entries"] == {"1": good[0].pk, "4": good[1].pk}


def test_every_save_is_a_new_revision_and_the_old_one_stays_as_it_was(
    project: Project, owner: User, good: list[Pin]
) -> None:
    first = saved(project, owner, 0, (good[0], 1))
    second = saved(project, owner, 1, (good[1], 1))
    assert (second.number, [item.number for item in plans.list_revisions(project)]) == (2, [1, 2])
    assert plans.load_plan_entries(first)[0].pin == good[0]
    assert plans.find_revision(project, "default@1") == first and plans.find_revision(project, "") == second


def test_the_second_of_two_people_who_save_at_once_is_told_and_nothing_is_written(
    project: Project, owner: User, mate: User, good: list[Pin]
) -> None:
    saved(project, owner, 0, (good[0], 1))
    saved(project, owner, 1, (good[1], 1))
    with pytest.raises(OutdatedError, match="olga saved revision 2 of default after you started from 1"):
        saved(project, mate, 1, (good[2], 1))
    assert Revision.objects.count() == 2 and Entry.objects.count() == 2


def test_the_same_save_again_is_the_revision_it_made(project: Project, owner: User, good: list[Pin]) -> None:
    first = saved(project, owner, 0, (good[0], 1))
    assert saved(project, owner, 0, (good[0], 1)) == first
    with pytest.raises(OutdatedError):
        saved(project, owner, 0, (good[0], 2))


def test_a_revision_that_was_never_there_is_no_base_for_a_save(project: Project, owner: User) -> None:
    with pytest.raises(OutdatedError, match="has no revision 7"):
        saved(project, owner, 7)


def test_a_plan_does_not_grow_beyond_what_can_be_saved(
    project: Project, owner: User, source: Run, good: list[Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_ENTRIES", 2)
    revision = saved(project, owner, 0, (good[0], 1), (good[1], 2))
    with pytest.raises(InvalidInputError, match="at most 2 entries"):
        plans.add_plan_entry(project, "default", owner, good[2], 3)
    with pytest.raises(InvalidInputError, match="at most 2 entries"):
        ranges.pin_range(source, 3, 3, owner)
    assert plans.add_plan_entry(project, "default", owner, good[1], 2) == revision


def test_a_step_replays_one_pin_of_this_project_that_stands(project: Project, owner: User, good: list[Pin]) -> None:
    with pytest.raises(InvalidInputError, match="Two entries have the target step 2"):
        saved(project, owner, 0, (good[0], 2), (good[1], 2))
    for target in (0, -1, None, "x"):
        with pytest.raises(InvalidInputError):
            saved(project, owner, 0, (good[0], target))  # type: ignore[arg-type]
    other = builders.project("code")
    with pytest.raises(NotFoundError, match="Pin [0-9]+ not found in code"):
        saved(other, owner, 0, (good[0], 1))
    pins.remove_pin(good[0], owner)
    with pytest.raises(InvalidInputError, match="was removed"):
        saved(project, owner, 0, (good[0], 1))
    assert Revision.objects.count() == 0


@pytest.mark.parametrize(
    "wrong", [{"action": "nearest"}, {"on_mismatch": "crash"}, {"name": "a/b"}, {"name": "@"}, {"name": "x" * 81}]
)
def test_words_that_no_plan_knows_are_refused(project: Project, owner: User, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        plans.save_plan(project, wrong.pop("name", "default"), owner, if_match=0, **{"action": "cache", **wrong})  # type: ignore[arg-type]


def test_a_plan_begins_where_the_trainer_of_its_pins_begins(project: Project, owner: User, source: Run) -> None:
    for step, form in enumerate(("slime-rollout", "gen_batch")):
        register_artifact(source, step, facts={**SHAPE, "format": form})
    counted_from_0, counted_from_1 = (pins.pin_step(source, step, owner)[0] for step in (0, 1))
    revision = saved(project, owner, 0, (counted_from_0, 0))
    assert plans.find_first_steps([counted_from_0.pk, counted_from_1.pk]) == {
        counted_from_0.pk: 0,
        counted_from_1.pk: 1,
    }
    assert plans.find_plan_trainer(revision) == "slime"
    with pytest.raises(InvalidInputError, match="`target_step` must be between 1 and"):
        saved(project, owner, 1, (counted_from_1, 0))
    with pytest.raises(InvalidInputError, match="`target_step` must be between 0 and"):
        saved(project, owner, 1, (counted_from_0, -1))


def test_a_pin_with_a_target_enters_the_plan_whoever_saved_it(project: Project, owner: User, good: list[Pin]) -> None:
    saved(project, owner, 0, (good[0], 1), action="repeat_last")
    plans.pin_into_plan(good[1].run, 2, owner, target_step=6)
    newest = plans.find_current_revision(project)
    assert newest and (newest.number, newest.action, plans.serialize_revision(newest)["targets"]) == (
        2,
        "repeat_last",
        {1: good[0].pk, 6: good[1].pk},
    )
    plans.pin_into_plan(good[1].run, 2, owner, target_step=6)
    assert plans.find_current_revision(project) == newest
    with pytest.raises(InvalidInputError, match="replays another pin"):
        plans.pin_into_plan(good[2].run, 3, owner, target_step=6)


def test_a_run_that_is_bound_never_sees_later_edits(project: Project, owner: User, run: Run, good: list[Pin]) -> None:
    first = saved(project, owner, 0, (good[0], 1))
    assert bindings.bind_run(run).revision == first
    builders.attempt(run, "a")
    outcomes.record_replay_outcome(run, "a", 1, "hit")
    saved(project, owner, 1, (good[1], 1))
    assert bindings.bind_run(run).revision == first
    assert bindings.bind_run(run, "default@2").revision == first
    assert Binding.objects.count() == 1


def test_until_it_has_begun_a_run_follows_what_it_asked_for_last(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    saved(project, owner, 0, (good[0], 1))
    bindings.bind_run(run)
    second = saved(project, owner, 1, (good[1], 1))
    assert bindings.bind_run(run).revision == second
    push_rows(run, 0, [build_row(0, n, 1.0) for n in range(2)], split="eval")
    assert bindings.bind_run(run, "default@1").revision == plans.find_revision(project, "default@1")
    push_rows(run, 1, [build_row(1, n, 1.0) for n in range(2)])
    assert bindings.bind_run(run).revision == plans.find_revision(project, "default@1")


def test_a_run_that_began_without_a_plan_goes_on_without_one(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    assert bindings.bind_run(run).revision is None
    push_rows(run, 1, [build_row(1, n, 1.0) for n in range(2)])
    saved(project, owner, 0, (good[0], 2))
    assert bindings.bind_run(run).revision is None and bindings.resolve_run_revision(run) is None


def test_a_plan_or_revision_that_is_not_there_is_said(project: Project, run: Run) -> None:
    for ref in ("nightly", "default@3", "nightly@1"):
        with pytest.raises(NotFoundError, match=f"Replay plan '{ref}' not found in math"):
            bindings.bind_run(run, ref)
    with pytest.raises(InvalidInputError):
        bindings.bind_run(run, "default@one")
    assert not Binding.objects.exists()


def test_a_plan_is_judged_entry_by_entry_for_the_run_that_asks(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    revision = saved(project, owner, 0, (good[0], 2), (good[1], 3), action="repeat")
    bindings.bind_run(run, "", {**SHAPE, "role": "rollout", "rows": 64, "model": "Qwen3-8B"})
    run.refresh_from_db()
    entries = compatibility.check_plan_compatibility(revision, compatibility.load_run_facts(run))
    assert preview(revision, range(1, 7)) == [(1, None), (2, 2), (3, 3), (4, 2), (5, 3), (6, 2)]
    assert [entry.entry.target_step for entry in entries] == [2, 3]
    strict = [
        (difference.fact, difference.pinned, difference.asking)
        for difference in entries[0].differences
        if difference.verdict == "refuse"
    ]
    assert strict == [("rows", 32, 64)] and entries[0].refused
    unknown = {difference.fact for difference in entries[0].differences if difference.verdict == "warn"}
    assert {"tokenizer", "model", "dataset", "versions"} <= unknown


def test_a_refusal_that_the_project_has_loosened_is_a_warning(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    saved(project, owner, 0, (good[0], 2))
    request_data = {**SHAPE, "role": "rollout", "rows": 64}
    overrides.override_check(project, "rows", owner, "half a batch is enough for this test")
    [entry] = compatibility.check_plan_compatibility(plans.find_current_revision(project), request_data)
    assert not entry.refused
    assert [(difference.fact, difference.verdict) for difference in entry.differences if difference.loosened] == [
        ("rows", "warn")
    ]
    overrides.restore_check(project, "rows", owner)
    [entry] = compatibility.check_plan_compatibility(plans.find_current_revision(project), request_data)
    assert entry.refused


def test_an_empty_plan_has_a_verdict_too() -> None:
    assert compatibility.check_plan_compatibility(None, {}) == []
    assert preview(None, range(1, 3)) == [(1, None), (2, None)]


CONFIG = {
    "data": {"train_batch_size": 16, "max_prompt_length": 128, "max_response_length": 256},
    "actor_rollout_ref": {"rollout": {"n": 4}, "model": {"path": "Qwen/Qwen3-8B"}},
    "trainer": {"use_v1": False, "project_name": "p", "experiment_name": "e"},
}


def test_what_a_run_is_compared_by_comes_from_its_files_its_config_and_its_own_word(run: Run) -> None:
    assert compatibility.load_run_facts(run) == {}
    register_artifact(run, 1, facts={**SHAPE, "tokenizer": "ab" * 32, "dataset": "cd" * 32})
    assert compatibility.load_run_facts(run) == {**SHAPE, "role": "rollout", "tokenizer": "ab" * 32}
    Run.objects.filter(pk=run.pk).update(config=CONFIG)
    run.refresh_from_db()
    known = compatibility.load_run_facts(run)
    assert (known["rows"], known["prompts"], known["model"]) == (64, 16, "Qwen/Qwen3-8B")
    assert known["tokenizer"] == "ab" * 32
    bindings.bind_run(run, "", {"rows": 48})
    run.refresh_from_db()
    assert compatibility.load_run_facts(run) == {**known, "rows": 48}


def test_files_that_were_checked_speak_for_a_run_before_newer_ones_that_were_not(run: Run) -> None:
    register_artifact(run, 1, facts=SHAPE)
    register_artifact(run, 2, facts={**SHAPE, "rows": 4})
    assert compatibility.load_run_facts(run)["rows"] == 4
    run.artifacts.filter(step=1).update(state="ready")
    assert compatibility.load_run_facts(run)["rows"] == SHAPE["rows"]
    run.artifacts.update(state="ready")
    assert compatibility.load_run_facts(run)["rows"] == 4


@pytest.mark.parametrize(
    "config", [{"lr": 1}, {**CONFIG, "data": None}, {**CONFIG, "data": {**CONFIG["data"], "train_batch_size": "x"}}, []]
)
def test_a_config_that_no_trainer_understands_says_nothing(run: Run, config: Any) -> None:
    run.config = config
    assert compatibility.load_run_facts(run) == {}


def test_past_the_last_target_a_bound_run_generates_and_records(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    """Where V2 with `cache` neither loaded nor wrote."""
    revision = saved(project, owner, 0, (good[0], 1))
    bindings.bind_run(run)
    assert preview(revision, range(1, 4)) == [(1, 1), (2, None), (3, None)]
    later = register_artifact(run, 3)
    assert pins.pin_step(run, 3, owner)[0].artifacts.get() == later


def test_bytes_of_a_bound_revision_are_kept_until_its_run_ends(
    project: Project, owner: User, run: Run, good: list[Pin]
) -> None:
    saved(project, owner, 0, (good[0], 1))
    bindings.bind_run(run)
    saved(project, owner, 1)
    pins.remove_pin(good[0], owner)
    artifact = good[0].artifacts.get()
    assert (
        artifact in Artifact.objects.in_use()
        and artifacts.list_requested_files(good[0].run)[0].artifact == artifact.key
    )
    Run.objects.filter(pk=run.pk).update(outcome="finished")
    assert artifact not in Artifact.objects.in_use()


@pytest.mark.django_db(transaction=True)
def test_of_many_who_save_at_the_same_moment_one_wins(project: Project) -> None:
    people = [builders.member(project, f"p{number}", "maintainer") for number in range(6)]

    def attempt(by: User) -> bool:
        try:
            plans.save_plan(project, "default", by, if_match=0, action="repeat" if by.pk % 2 else "cache")
        except OutdatedError:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(attempt, people)) == [False] * 5 + [True]
    assert Revision.objects.count() == 1


def test_a_range_is_pinned_to_the_same_steps_in_one_revision(
    project: Project, source: Run, owner: User, good: list[Pin]
) -> None:
    saved(project, owner, 0, (good[2], 2))
    result = ranges.pin_range(source, 1, 5, owner)
    assert {step: pin.step for step, pin in result.targets.items()} == {1: 1, 3: 3}
    assert result.skipped.keys() == {2, 4, 5} and result.skipped[2].startswith(
        "Step 2 of the plan already replays another pin;"
    )
    assert result.revision and result.revision.number == 2
    assert dict(result.revision.entries.values_list("target_step", "pin__step")) == {1: 1, 2: 3, 3: 3}
    again = ranges.pin_range(source, 1, 3, owner)
    assert again.revision == result.revision
    moved = ranges.pin_range(source, 1, 3, owner, target=11, plan="other")
    assert {step: pin.step for step, pin in moved.targets.items()} == {11: 1, 12: 2, 13: 3}


@pytest.mark.parametrize(("first", "last"), [(3, 2), (1, 501), (7, 9)])
def test_a_range_that_is_no_range_or_has_no_files_is_refused_and_changes_nothing(
    project: Project, source: Run, owner: User, good: list[Pin], first: int, last: int
) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        ranges.pin_range(source, first, last, owner)
    assert plans.find_current_revision(project) is None


def test_a_range_of_steps_of_another_kind_names_the_kind(source: Run, owner: User, good: list[Pin]) -> None:
    Artifact.objects.update(step_kind="iteration")
    with pytest.raises(NotFoundError, match="of the kind iteration"):
        ranges.pin_range(source, 1, 3, owner)
