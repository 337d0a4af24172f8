"""Pins are created, edited and removed, and show how many of their bytes have arrived."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import ConflictError, InvalidInputError, NotFoundError
from rollouts.models import Artifact, AuditEntry, Pin, Run, Sample, Step
from rollouts.pins import file_requests, pins, status
from rollouts.replay import bindings, plans
from tests.dashboard.support.api_client import build_row, push_rows
from tests.rollouts.support.artifacts import build_manifest, encode_meta, register_artifact, upload_files
from tests.support import builders

pytestmark = pytest.mark.django_db

ORIGIN = {"host": "node-1", "path": "/dumps/3", "command": "rolloutdeck import /dumps"}


def create_pin(run: Run, owner: User, step: int = 3, **more: object) -> Pin:
    return pins.pin_step(run, step, owner, **more)[0]  # type: ignore[arg-type]


def set_artifact_states(run: Run, *wanted: str) -> None:
    """Sets the states of the run's artifacts, in the order of their registration."""
    for artifact, state in zip(run.artifacts.order_by("pk"), wanted, strict=True):
        Artifact.objects.filter(pk=artifact.pk).update(state=state)


def test_a_pin_holds_all_artifacts_of_its_step_and_nothing_else(run: Run, owner: User) -> None:
    known = register_artifact(run, 3)
    register_artifact(run, 4)
    register_artifact(run, 3, {"tokenizer.json": b"{}"}, role="tokenizer")
    row, created = pins.pin_step(run, 3, owner, note="the good one")
    assert (created, row.note, row.user, list(row.artifacts.all())) == (
        True,
        "the good one",
        owner,
        [known],
    )


def test_the_error_for_a_missing_step_names_the_step_kinds_of_the_run(run: Run, owner: User) -> None:
    with pytest.raises(NotFoundError, match=r"has no step 3 \(train\)\.$"):
        create_pin(run, owner)
    register_artifact(run, 3, step_kind="rollout_id")
    with pytest.raises(NotFoundError, match="Its step kinds are rollout_id; set `step_kind`"):
        create_pin(run, owner)
    assert create_pin(run, owner, step_kind="rollout_id").step == 3


def test_pinning_again_changes_the_note_only_if_one_is_given(run: Run, owner: User, mate: User) -> None:
    register_artifact(run, 3)
    first = create_pin(run, owner, note="a")
    again, created = pins.pin_step(run, 3, mate)
    assert (again.pk, created, again.note, again.user) == (first.pk, False, "a", owner)
    assert pins.pin_step(run, 3, mate, note="b")[0].note == "b"
    entry = AuditEntry.objects.get(verb="pin.create")
    assert entry.subject == f"step 3 of {run.name}"


def test_a_removed_pin_is_restored_when_its_step_is_pinned_again(run: Run, owner: User, mate: User) -> None:
    register_artifact(run, 3)
    row = pins.remove_pin(create_pin(run, owner), owner)
    assert row.removed_at and pins.remove_pin(row, owner).removed_at == row.removed_at
    again, new = pins.pin_step(run, 3, mate)
    assert (again.pk, new, again.removed_at, again.user) == (row.pk, True, None, mate)
    assert list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True)) == [
        "pin.create",
        "pin.remove",
        "pin.create",
    ]


def test_a_step_without_files_to_load_cannot_be_pinned_and_the_error_says_why(run: Run, owner: User) -> None:
    with pytest.raises(NotFoundError, match="This run has no step 3"):
        create_pin(run, owner)
    push_rows(run, 3, [build_row(3, n, 1.0) for n in range(2)])
    with pytest.raises(NotFoundError, match="Turn on the trainer's rollout dump and watch its folder"):
        create_pin(run, owner)
    Run.objects.filter(pk=run.pk).update(framework="trl")
    with pytest.raises(NotFoundError, match="rolloutdeck check --trainer trl"):
        create_pin(Run.objects.get(pk=run.pk), owner)
    register_artifact(run, 4)
    with pytest.raises(NotFoundError, match="Step 3 has no files that a trainer can load"):
        create_pin(run, owner)
    assert Pin.objects.count() == 0


def test_a_pin_of_a_launched_step_has_the_artifacts_of_watched_files(run: Run, owner: User) -> None:
    push_rows(run, 3, [build_row(3, n, 1.0) for n in range(2)], attempt="launch")
    known = register_artifact(run, 3, attempt="files")
    row = create_pin(run, owner)
    assert (row.attempt.key, list(row.artifacts.all())) == ("launch", [known])


def test_after_a_resume_each_launch_has_its_own_pin_and_the_newest_one_is_the_default(run: Run, owner: User) -> None:
    old = register_artifact(run, 3, {"meta.json": encode_meta(3), "a.json": b"1"}, attempt="first")
    new = register_artifact(run, 3, {"meta.json": encode_meta(3), "a.json": b"2"}, attempt="second")
    default, older = create_pin(run, owner), create_pin(run, owner, attempt="first")
    assert [list(row.artifacts.all()) for row in (default, older)] == [[new], [old]]
    with pytest.raises(NotFoundError, match="no attempt 'third'"):
        create_pin(run, owner, attempt="third")


def test_a_pin_keeps_the_files_it_was_made_with_until_they_are_gone(run: Run, owner: User) -> None:
    old = register_artifact(run, 3, {"a.json": b"1"})
    row = create_pin(run, owner)
    new = register_artifact(run, 3, {"a.json": b"2"})
    assert list(create_pin(run, owner).artifacts.all()) == [old]
    register_artifact(run, 3, {"a.json": b"1"}, gone="rewritten")
    assert list(create_pin(run, owner).artifacts.all()) == [new]
    assert Pin.objects.get() == row


def register_prompt_files(run: Run, *indices: int) -> list[Artifact]:
    values = {"role": "async_rollout", "step_kind": "feed_index"}
    return [register_artifact(run, index, {"meta.json": encode_meta(index)}, **values) for index in indices]


def push_groups(run: Run, step: int, *groups: str) -> None:
    push_rows(run, step, [build_row(step, n, 1.0) for n in range(len(groups))])
    rows = Sample.objects.filter(step__run=run, step__step=step).order_by("ordinal")
    for row, group in zip(rows, groups, strict=True):
        Sample.objects.filter(pk=row.pk).update(group=group)


def test_where_each_prompt_has_its_own_files_a_step_is_pinned_with_those_it_was_trained_on(
    run: Run, owner: User
) -> None:
    feeds = register_prompt_files(run, 7, 8, 9)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_7", "uid_sample_0_9", "uid_sample_1_12")
    row = create_pin(run, owner)
    assert list(row.artifacts.order_by("step")) == [feeds[0], feeds[2]]
    pin_status = status.load_pin_status(row)
    assert (pin_status.available, pin_status.prompts, pin_status.state) == (2, 3, "waiting")
    late = register_prompt_files(run, 12)
    assert list(create_pin(run, owner).artifacts.order_by("step")) == [feeds[0], feeds[2], *late]


def test_later_files_of_the_prompts_of_a_pinned_step_are_added_to_its_pin(run: Run, owner: User) -> None:
    [first] = register_prompt_files(run, 7)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_9")
    row = create_pin(run, owner)
    other, matching, duplicate = (
        *register_prompt_files(run, 8),
        *register_prompt_files(run, 9),
        register_artifact(run, 9, {"a.json": b"1"}, role="async_rollout"),
    )
    assert [pins.add_artifact_to_pins(item) for item in (other, matching, duplicate)] == [[], [row], []]
    assert list(row.artifacts.order_by("step")) == [first, matching]
    pins.remove_pin(row, owner)
    row.artifacts.remove(matching)
    assert pins.add_artifact_to_pins(matching) == []


def test_a_repeated_report_adds_late_files_that_the_first_one_did_not(
    run: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples of the step may arrive after the files of its prompts."""
    [first] = register_prompt_files(run, 7)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_9")
    row = create_pin(run, owner)
    [late] = register_prompt_files(run, 9)
    assert list(row.artifacts.all()) == [first]
    manifest = build_manifest({"meta.json": encode_meta(9)}, 9, role="async_rollout", step_kind="feed_index")
    received: list[int] = []
    monkeypatch.setattr(pins, "notify_run_changed", lambda run, **what: received.append(what["step"]))
    for _time in range(2):
        assert pins.register_artifact(run, "files", manifest) == (late, False)
    assert list(row.artifacts.order_by("step")) == [first, late]
    assert received == [9]


def test_late_files_of_a_prompt_replace_those_that_are_gone(run: Run, owner: User) -> None:
    [first] = register_prompt_files(run, 7)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_9")
    row = create_pin(run, owner)
    values = {"role": "async_rollout", "step_kind": "feed_index"}
    gone = register_artifact(run, 9, {"a.json": b"1"}, gone="rewritten", **values)
    [late] = register_prompt_files(run, 9)
    assert [pins.add_artifact_to_pins(item) for item in (gone, late)] == [[], [row]]
    Artifact.objects.filter(pk=late.pk).update(state="gone")
    newer = register_artifact(run, 9, {"a.json": b"2"}, **values)
    assert pins.add_artifact_to_pins(newer) == [row]
    assert list(row.artifacts.order_by("step")) == [first, newer]


def test_late_files_of_another_attempt_are_not_added_to_a_pin(run: Run, owner: User) -> None:
    register_prompt_files(run, 7)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_9")
    row = create_pin(run, owner)
    values = {"role": "async_rollout", "step_kind": "feed_index"}
    late = [
        register_artifact(run, 9, {"a.json": name.encode()}, attempt=name, **values) for name in ("b", row.attempt.key)
    ]
    assert [pins.add_artifact_to_pins(item) for item in late] == [[], [row]]


def test_a_step_that_is_pinned_again_changes_no_file_of_a_run_that_replays_the_removed_pin(
    run: Run, owner: User
) -> None:
    old = register_artifact(run, 3)
    row = create_pin(run, owner)
    plans.save_plan(run.project, "default", owner, if_match=0, action="cache", entries=[(row, 1)])
    bindings.bind_run(builders.run(run.project, "bound"))
    plans.save_plan(run.project, "default", owner, if_match=1, action="cache", entries=[])
    pins.remove_pin(row, owner)
    assert pins.pin_step(run, 3, owner) == (row, True), "the files are the same"
    pins.remove_pin(row, owner)
    new = register_artifact(run, 3, {"meta.json": encode_meta(3), "other.json": b"{}"})
    again, is_new = pins.pin_step(run, 3, owner)
    assert is_new and again != row and list(again.artifacts.all()) == [new]
    row.refresh_from_db()
    assert list(row.artifacts.all()) == [old] and row.removed_at
    assert old in Artifact.objects.in_use()
    assert pins.pin_step(run, 3, owner) == (again, False)


def test_a_step_whose_prompts_have_no_files_cannot_be_pinned(run: Run, owner: User) -> None:
    register_prompt_files(run, 7)
    push_groups(run, 3, "uid_sample_0_8", "uid_sample_0_9")
    with pytest.raises(NotFoundError, match="None of the 2 prompts of step 3"):
        create_pin(run, owner)


def test_a_pin_in_a_plan_cannot_be_removed_before_it_is_removed_from_the_plan(run: Run, owner: User) -> None:
    register_artifact(run, 3)
    row, _ = plans.pin_into_plan(run, 3, owner, target_step=5)
    with pytest.raises(ConflictError, match="used by the replay plan default. Remove it from the plan first"):
        pins.remove_pin(row, owner)
    plans.save_plan(run.project, "default", owner, if_match=1, action="cache", entries=[])
    assert pins.remove_pin(row, owner).removed_at


def test_a_note_is_valid_text_and_its_change_is_in_the_audit_log(run: Run, owner: User) -> None:
    register_artifact(run, 3)
    row = create_pin(run, owner)
    assert pins.update_pin_note(row, owner, "line one\nline two").note == "line one\nline two"
    assert AuditEntry.objects.get(verb="pin.note").detail == {"note": "line one\nline two"}
    for wrong in ("\x00", "\ud800", "x" * 10_001):
        with pytest.raises(InvalidInputError):
            pins.update_pin_note(row, owner, wrong)


def test_the_pin_of_a_step_is_found_until_it_is_removed(run: Run, owner: User) -> None:
    push_rows(run, 3, [build_row(3, n, 1.0) for n in range(2)])
    register_artifact(run, 3)
    step = Step.objects.get()
    assert pins.find_pin(step) is None
    row = create_pin(run, owner)
    assert pins.find_pin(step) == row
    pins.remove_pin(row, owner)
    assert pins.find_pin(step) is None


def test_the_status_of_a_pin_has_the_uploaded_share_and_the_senders_of_the_rest(run: Run, owner: User) -> None:
    files = {"a.json": b"1" * 40, "b.json": b"2" * 60}
    artifact = register_artifact(run, 3, files, origin=ORIGIN)
    row = create_pin(run, owner)
    before = status.load_pin_status(row)
    assert (before.state, before.percent, before.bytes) == ("waiting", 0, 100)
    [sender] = before.senders
    assert (sender.host, sender.path, sender.command) == tuple(ORIGIN.values())
    assert not sender.is_polling and sender.asked_at is None
    upload_files(artifact, {"a.json": files["a.json"]})
    file_requests.list_requested_files(run, "node-1")
    during = status.load_pin_status(row)
    assert (during.state, during.percent, during.senders[0].is_polling) == ("uploading", 40, True)
    upload_files(artifact, {"b.json": files["b.json"]})
    after = status.load_pin_status(row)
    assert (after.state, after.percent, after.senders) == ("uploading", 100, ())


def test_a_sender_that_has_not_asked_for_a_minute_is_not_polling(run: Run, owner: User) -> None:
    register_artifact(run, 3, origin=ORIGIN)
    row = create_pin(run, owner)
    requested = timezone.now() - timedelta(seconds=61)
    Run.objects.update(pollers={"node-1": requested.isoformat()})
    [sender] = status.load_pin_status(row).senders
    assert not sender.is_polling and sender.asked_at == requested


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (("ready", "ready"), "ready"),
        (("ready", "waiting"), "uploading"),
        (("ready", "unsafe"), "ready"),
        (("gone", "unsafe"), "unsafe"),
        (("gone", "gone"), "gone"),
        (("gone", "ready"), "ready"),
    ],
)
def test_the_state_of_a_pin_of_several_prompts_depends_on_its_usable_files(
    run: Run, owner: User, reported: tuple[str, str], shown: str
) -> None:
    register_prompt_files(run, 7, 8)
    push_groups(run, 3, "uid_sample_0_7", "uid_sample_0_8")
    row = create_pin(run, owner)
    set_artifact_states(run, *reported)
    pin_status = status.load_pin_status(row)
    assert pin_status.state == shown
    assert pin_status.available == sum(state in ("ready", "waiting") for state in reported)


@pytest.mark.parametrize(
    ("states", "combined"),
    [
        (["waiting", "gone"], "waiting"),
        (["waiting", "unsafe"], "waiting"),
        (["waiting", "ready"], "uploading"),
        (["uploading", "waiting", "gone"], "uploading"),
        (["ready", "unsafe"], "ready"),
        (["unsafe", "gone"], "unsafe"),
    ],
)
def test_a_pin_uploads_only_if_bytes_have_arrived(states: list[str], combined: str) -> None:
    assert status.combine_states([Artifact(state=state) for state in states]) == combined
