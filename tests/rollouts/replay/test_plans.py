"""Replay plans are saved as revisions, bound to runs and checked for compatibility."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rolloutdeck.protocol import resolve_targets
from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.models import Artifact, AuditEntry, Binding, Entry, Pin, Project, Revision, Run
from rollouts.pins import file_requests, pins
from rollouts.replay import bindings, compatibility, loading_trainers, outcomes, overrides, plans, ranges
from tests.dashboard.support.api_client import build_row, push_rows
from tests.rollouts.support.artifacts import register_artifact
from tests.support import builders

pytestmark = pytest.mark.django_db

SHAPE = {"serialisation": "torch", "format": "gen_batch", "rows": 32, "prompts": 8, "samples_per_prompt": 4}


@pytest.fixture
def source_run(project: Project) -> Run:
    return builders.run(project, "source")


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "next")


@pytest.fixture
def source_pins(source_run: Run, owner: User) -> list[Pin]:
    """Pins of the steps 1 to 3."""
    for step in (1, 2, 3):
        register_artifact(source_run, step, facts=SHAPE)
    return [pins.pin_step(source_run, step, owner)[0] for step in (1, 2, 3)]


def save_plan(project: Project, by: User, if_match: int, *entries: tuple[Pin, int], **more: Any) -> Revision:
    return plans.save_plan(
        project, "default", by, if_match=if_match, action=more.pop("action", "cache"), entries=entries
    )


def resolve_steps(revision: Revision | None, steps: range) -> list[tuple[int, int | None]]:
    targets = [entry.target_step for entry in plans.load_plan_entries(revision)]
    return resolve_targets(revision.action if revision else "cache", targets, steps)


def test_a_project_has_no_plan_until_one_is_saved(project: Project, owner: User, source_pins: list[Pin]) -> None:
    assert plans.find_current_revision(project) is None
    revision = save_plan(project, owner, 0, (source_pins[0], 1), (source_pins[1], 4), action="repeat")
    assert (revision.number, revision.action, plans.find_current_revision(project)) == (1, "repeat", revision)
    assert list(revision.entries.order_by("target_step").values_list("target_step", "pin")) == [
        (1, source_pins[0].pk),
        (4, source_pins[1].pk),
    ]
    assert AuditEntry.objects.get(verb="plan.save").detail["entries"] == {
        "1": source_pins[0].pk,
        "4": source_pins[1].pk,
    }


def test_every_save_creates_a_revision_and_keeps_the_old_one(
    project: Project, owner: User, source_pins: list[Pin]
) -> None:
    first = save_plan(project, owner, 0, (source_pins[0], 1))
    second = save_plan(project, owner, 1, (source_pins[1], 1))
    assert (second.number, [item.number for item in plans.list_revisions(project)]) == (2, [1, 2])
    assert plans.load_plan_entries(first)[0].pin == source_pins[0]
    assert plans.find_revision(project, "default@1") == first and plans.find_revision(project, "") == second


def test_a_save_that_is_based_on_an_old_revision_is_refused_and_writes_nothing(
    project: Project, owner: User, mate: User, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[0], 1))
    save_plan(project, owner, 1, (source_pins[1], 1))
    with pytest.raises(OutdatedError, match="olga saved revision 2 of default after you started from 1"):
        save_plan(project, mate, 1, (source_pins[2], 1))
    assert Revision.objects.count() == 2 and Entry.objects.count() == 2


def test_a_repeated_save_returns_the_same_revision(project: Project, owner: User, source_pins: list[Pin]) -> None:
    first = save_plan(project, owner, 0, (source_pins[0], 1))
    assert save_plan(project, owner, 0, (source_pins[0], 1)) == first
    with pytest.raises(OutdatedError):
        save_plan(project, owner, 0, (source_pins[0], 2))


def test_a_save_that_is_based_on_a_missing_revision_is_refused(project: Project, owner: User) -> None:
    with pytest.raises(OutdatedError, match="has no revision 7"):
        save_plan(project, owner, 7)


def test_the_number_of_entries_of_a_plan_is_limited(
    project: Project, owner: User, source_run: Run, source_pins: list[Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_ENTRIES", 2)
    revision = save_plan(project, owner, 0, (source_pins[0], 1), (source_pins[1], 2))
    with pytest.raises(InvalidInputError, match="at most 2 entries"):
        plans.add_plan_entry(project, "default", owner, source_pins[2], 3)
    with pytest.raises(InvalidInputError, match="at most 2 entries"):
        ranges.pin_range(source_run, 3, 3, owner)
    assert plans.add_plan_entry(project, "default", owner, source_pins[1], 2) == revision


def test_a_step_replays_one_pin_of_its_project_that_is_not_removed(
    project: Project, owner: User, source_pins: list[Pin]
) -> None:
    with pytest.raises(InvalidInputError, match="Two entries have the target step 2"):
        save_plan(project, owner, 0, (source_pins[0], 2), (source_pins[1], 2))
    for target in (0, -1, None, "x"):
        with pytest.raises(InvalidInputError):
            save_plan(project, owner, 0, (source_pins[0], target))  # type: ignore[arg-type]
    other = builders.project("code")
    with pytest.raises(NotFoundError, match="Pin [0-9]+ not found in code"):
        save_plan(other, owner, 0, (source_pins[0], 1))
    pins.remove_pin(source_pins[0], owner)
    with pytest.raises(InvalidInputError, match="was removed"):
        save_plan(project, owner, 0, (source_pins[0], 1))
    assert Revision.objects.count() == 0


@pytest.mark.parametrize(
    "wrong", [{"action": "nearest"}, {"on_mismatch": "crash"}, {"name": "a/b"}, {"name": "@"}, {"name": "x" * 81}]
)
def test_invalid_settings_and_names_of_plans_are_refused(project: Project, owner: User, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        plans.save_plan(project, wrong.pop("name", "default"), owner, if_match=0, **{"action": "cache", **wrong})  # type: ignore[arg-type]


def test_the_first_step_of_a_plan_is_that_of_the_trainer_of_its_pins(
    project: Project, owner: User, source_run: Run
) -> None:
    for step, form in enumerate(("slime-rollout", "gen_batch")):
        register_artifact(source_run, step, facts={**SHAPE, "format": form})
    counted_from_0, counted_from_1 = (pins.pin_step(source_run, step, owner)[0] for step in (0, 1))
    revision = save_plan(project, owner, 0, (counted_from_0, 0))
    assert loading_trainers.find_first_steps([counted_from_0.pk, counted_from_1.pk]) == {
        counted_from_0.pk: 0,
        counted_from_1.pk: 1,
    }
    assert loading_trainers.find_plan_trainer(revision) == "slime"
    with pytest.raises(InvalidInputError, match="`target_step` must be between 1 and"):
        save_plan(project, owner, 1, (counted_from_1, 0))
    with pytest.raises(InvalidInputError, match="`target_step` must be between 0 and"):
        save_plan(project, owner, 1, (counted_from_0, -1))


def test_a_pin_with_a_target_step_is_added_to_the_current_plan(
    project: Project, owner: User, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[0], 1), action="repeat_last")
    plans.pin_into_plan(source_pins[1].run, 2, owner, target_step=6)
    newest = plans.find_current_revision(project)
    assert newest and (newest.number, newest.action, plans.serialize_revision(newest)["targets"]) == (
        2,
        "repeat_last",
        {1: source_pins[0].pk, 6: source_pins[1].pk},
    )
    plans.pin_into_plan(source_pins[1].run, 2, owner, target_step=6)
    assert plans.find_current_revision(project) == newest
    with pytest.raises(InvalidInputError, match="replays another pin"):
        plans.pin_into_plan(source_pins[2].run, 3, owner, target_step=6)


def test_a_bound_run_that_has_begun_keeps_its_revision(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    first = save_plan(project, owner, 0, (source_pins[0], 1))
    assert bindings.bind_run(run).revision == first
    builders.attempt(run, "a")
    outcomes.record_replay_outcome(run, "a", 1, "hit")
    save_plan(project, owner, 1, (source_pins[1], 1))
    assert bindings.bind_run(run).revision == first
    assert bindings.bind_run(run, "default@2").revision == first
    assert Binding.objects.count() == 1


def test_a_run_that_has_not_begun_gets_the_revision_that_it_requested_last(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[0], 1))
    bindings.bind_run(run)
    second = save_plan(project, owner, 1, (source_pins[1], 1))
    assert bindings.bind_run(run).revision == second
    push_rows(run, 0, [build_row(0, n, 1.0) for n in range(2)], split="eval")
    assert bindings.bind_run(run, "default@1").revision == plans.find_revision(project, "default@1")
    push_rows(run, 1, [build_row(1, n, 1.0) for n in range(2)])
    assert bindings.bind_run(run).revision == plans.find_revision(project, "default@1")


def test_a_run_that_began_without_a_plan_goes_on_without_one(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    assert bindings.bind_run(run).revision is None
    push_rows(run, 1, [build_row(1, n, 1.0) for n in range(2)])
    save_plan(project, owner, 0, (source_pins[0], 2))
    assert bindings.bind_run(run).revision is None and bindings.resolve_run_revision(run) is None


def test_a_missing_plan_or_revision_is_named_in_the_error(project: Project, run: Run) -> None:
    for ref in ("nightly", "default@3", "nightly@1"):
        with pytest.raises(NotFoundError, match=f"Replay plan '{ref}' not found in math"):
            bindings.bind_run(run, ref)
    with pytest.raises(InvalidInputError):
        bindings.bind_run(run, "default@one")
    assert not Binding.objects.exists()


def test_each_entry_of_a_plan_is_compared_with_the_run(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    revision = save_plan(project, owner, 0, (source_pins[0], 2), (source_pins[1], 3), action="repeat")
    bindings.bind_run(run, "", {**SHAPE, "role": "rollout", "rows": 64, "model": "Qwen3-8B"})
    run.refresh_from_db()
    entries = compatibility.check_plan_compatibility(revision, compatibility.load_run_facts(run))
    assert resolve_steps(revision, range(1, 7)) == [(1, None), (2, 2), (3, 3), (4, 2), (5, 3), (6, 2)]
    assert [entry.entry.target_step for entry in entries] == [2, 3]
    strict = [
        (difference.fact, difference.pinned, difference.asking)
        for difference in entries[0].differences
        if difference.verdict == "refuse"
    ]
    assert strict == [("rows", 32, 64)] and entries[0].refused
    unknown = {difference.fact for difference in entries[0].differences if difference.verdict == "warn"}
    assert {"tokenizer", "model", "dataset", "versions"} <= unknown


def test_a_check_that_the_project_has_overridden_is_a_warning(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[0], 2))
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


def test_without_a_plan_no_step_is_replayed() -> None:
    assert compatibility.check_plan_compatibility(None, {}) == []
    assert resolve_steps(None, range(1, 3)) == [(1, None), (2, None)]


CONFIG = {
    "data": {"train_batch_size": 16, "max_prompt_length": 128, "max_response_length": 256},
    "actor_rollout_ref": {"rollout": {"n": 4}, "model": {"path": "Qwen/Qwen3-8B"}},
    "trainer": {"use_v1": False, "project_name": "p", "experiment_name": "e"},
}


def test_the_facts_of_a_run_come_from_its_files_its_config_and_its_own_report(run: Run) -> None:
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


def test_the_facts_of_a_run_come_from_checked_files_before_newer_unchecked_ones(run: Run) -> None:
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
def test_a_config_of_no_known_trainer_gives_no_facts(run: Run, config: Any) -> None:
    run.config = config
    assert compatibility.load_run_facts(run) == {}


def test_past_the_last_target_a_bound_run_generates_and_records(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    """In these steps, RolloutSkip V2 of verl with `cache` neither loaded nor wrote files."""
    revision = save_plan(project, owner, 0, (source_pins[0], 1))
    bindings.bind_run(run)
    assert resolve_steps(revision, range(1, 4)) == [(1, 1), (2, None), (3, None)]
    later = register_artifact(run, 3)
    assert pins.pin_step(run, 3, owner)[0].artifacts.get() == later


def test_bytes_of_a_bound_revision_are_kept_until_its_run_ends(
    project: Project, owner: User, run: Run, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[0], 1))
    bindings.bind_run(run)
    save_plan(project, owner, 1)
    pins.remove_pin(source_pins[0], owner)
    artifact = source_pins[0].artifacts.get()
    assert (
        artifact in Artifact.objects.in_use()
        and file_requests.list_requested_files(source_pins[0].run)[0].artifact == artifact.key
    )
    Run.objects.filter(pk=run.pk).update(outcome="finished")
    assert artifact not in Artifact.objects.in_use()


@pytest.mark.django_db(transaction=True)
def test_only_one_of_many_saves_at_the_same_time_succeeds(project: Project) -> None:
    people = [builders.member(project, f"p{number}", "maintainer") for number in range(6)]

    def try_to_save(by: User) -> bool:
        try:
            plans.save_plan(project, "default", by, if_match=0, action="repeat" if by.pk % 2 else "cache")
        except OutdatedError:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(try_to_save, people)) == [False] * 5 + [True]
    assert Revision.objects.count() == 1


def test_a_range_is_pinned_to_the_same_steps_in_one_revision(
    project: Project, source_run: Run, owner: User, source_pins: list[Pin]
) -> None:
    save_plan(project, owner, 0, (source_pins[2], 2))
    result = ranges.pin_range(source_run, 1, 5, owner)
    assert {step: pin.step for step, pin in result.targets.items()} == {1: 1, 3: 3}
    assert result.skipped.keys() == {2, 4, 5} and result.skipped[2].startswith(
        "Step 2 of the plan already replays another pin;"
    )
    assert result.revision and result.revision.number == 2
    assert dict(result.revision.entries.values_list("target_step", "pin__step")) == {1: 1, 2: 3, 3: 3}
    again = ranges.pin_range(source_run, 1, 3, owner)
    assert again.revision == result.revision
    moved = ranges.pin_range(source_run, 1, 3, owner, target=11, plan="other")
    assert {step: pin.step for step, pin in moved.targets.items()} == {11: 1, 12: 2, 13: 3}


@pytest.mark.parametrize(("first", "last"), [(3, 2), (1, 501), (7, 9)])
def test_an_invalid_range_or_one_without_files_is_refused_and_changes_nothing(
    project: Project, source_run: Run, owner: User, source_pins: list[Pin], first: int, last: int
) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        ranges.pin_range(source_run, first, last, owner)
    assert plans.find_current_revision(project) is None


def test_the_error_for_a_range_of_another_step_kind_names_the_kind(
    source_run: Run, owner: User, source_pins: list[Pin]
) -> None:
    Artifact.objects.update(step_kind="iteration")
    with pytest.raises(NotFoundError, match="of the kind iteration"):
        ranges.pin_range(source_run, 1, 3, owner)
