"""Samples of pinned steps that flags or the guidance rules select: which they are, and what a plan does with them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import InvalidInputError
from rollouts.guidance import save_guidance, selection
from rollouts.models import Artifact, Entry, Pin, Project, Run, Sample
from rollouts.pins import pins
from rollouts.replay import bindings, compatibility, effects, exclusion, loading_trainers, plans
from rollouts.replay.selection import PlanSelector
from rollouts.samples import TEXT_PROPERTY_BITS
from tests.rollouts.support.artifacts import register_artifact
from tests.rollouts.support.push import index_file, line
from tests.support import builders

pytestmark = pytest.mark.django_db

TRL = {"format": "trl-rollout", "serialisation": "json", "rows": 8, "prompts": 2, "samples_per_prompt": 4}
SCORES = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def pin_trl_step(
    run: Run, by: User, step: int = 1, files: int = 1, response: str = "{at} of {step}", call: int = 0, second: str = ""
) -> Pin:
    """A pinned step of TRL: two prompts with four responses each, `p0`'s first one right, all of `p1`. `second`: other
    responses to `p1`."""
    rows = [
        {
            "prompt": f"p{at // 4}",
            "response": (second if second and at >= 4 else response).format(at=at, step=step),
            "score": score,
            "group": str(at // 4),
            "index": at % 4,
        }
        for at, score in enumerate(SCORES)
    ]
    index_file(run, b"".join(map(line, rows)), step=step, source=f"call:{step}", format="native")
    names = {f"rollout-{file}.json": b'{"call": %d}' % (call + file) for file in range(files)}
    register_artifact(run, step, names, role="rollout", facts=TRL)
    return pins.pin_step(run, step, by)[0]


def get_sample(run: Run, position: int, step: int = 1) -> Sample:
    return Sample.objects.get(step__run=run, step__step=step, group=str(position // 4), index=position % 4)


def save_rules(project: Project, by: User, *rules: dict[str, Any]) -> int:
    rows = [{"key": f"rule{at}", "query": "is:flagged", "action": "mask", **rule} for at, rule in enumerate(rules)]
    return save_guidance(project, by, rows, "").number


def find_selection(pin: Pin, by: User, on_selected: str = "mask", selected_by: str = "rules") -> exclusion.PinExclusion:
    return exclusion.find_exclusions([pin], PlanSelector(on_selected, selected_by, by)).get(
        pin.pk, exclusion.NO_EXCLUSION
    )


def test_rules_select_prompts_or_responses_and_the_plan_says_what_happens(
    run: Run, project: Project, owner: User
) -> None:
    pin = pin_trl_step(run, owner)
    builders.flag_row(get_sample(run, 5), owner)
    version = save_rules(project, owner, {"target": "response", "action": "mask"}, {"action": "weight", "value": 2})
    found = find_selection(pin, owner)
    (rows,) = found.artifacts.values()
    assert (found.selected_count, found.prompts, found.version, found.not_found) == (1, 1, version, 0)
    assert (rows.records, rows.is_fully_selected) == ({"rollout-0.json": (5,)}, False)
    assert found.samples == {get_sample(run, 5).pk: ("rule0",)}
    save_rules(project, owner, {"action": "drop"}, {"query": "score>2"})
    found = find_selection(pin, owner, "drop")
    assert found.samples == dict.fromkeys((get_sample(run, at).pk for at in range(4, 8)), ("rule0",))
    (rows,) = found.artifacts.values()
    assert (rows.prompts, rows.is_fully_selected) == (0, False), "TRL keeps the rows of a dropped prompt"
    save_rules(project, owner, {"query": "score<2", "action": "drop"})
    assert next(iter(find_selection(pin, owner, "drop").artifacts.values())).is_fully_selected
    assert find_selection(pin, owner, selected_by="flags").samples == {get_sample(run, 5).pk: ("flagged bad",)}


def test_samples_without_a_text_are_not_taken_for_equal_responses(run: Run, project: Project, owner: User) -> None:
    pin = pin_trl_step(run, owner, response="")
    Sample.objects.update(facets=TEXT_PROPERTY_BITS["no-text"])
    builders.flag_row(get_sample(run, 5), owner)
    save_rules(project, owner, {"target": "response"})
    assert list(find_selection(pin, owner).samples) == [get_sample(run, 5).pk]


def test_rules_search_the_pinned_run_however_old_it_is(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = pin_trl_step(run, owner)
    builders.flag_row(get_sample(run, 5), owner)
    save_rules(project, owner, {"target": "response"})
    monkeypatch.setattr(selection, "MAX_RUNS", 1)
    builders.run(project, "newer")
    found = find_selection(pin, owner)
    assert (found.selected_count, found.is_complete) == (1, False)


def test_a_step_of_several_generations_has_its_rows_in_several_files(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner, files=2)
    for position in (2, 5):
        builders.flag_row(get_sample(run, position), owner)
    (rows,) = find_selection(pin, owner, selected_by="flags").artifacts.values()
    assert rows.records == {"rollout-0.json": (2,), "rollout-1.json": (1,)}


def test_a_flag_on_an_older_version_of_a_step_selects_no_row_of_the_new_one(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    old = get_sample(run, 5)
    builders.flag_row(old, owner)
    assert pin_trl_step(run, owner, response="other {at} of {step}", call=7) == pin
    old.refresh_from_db()
    assert not old.visible
    found = find_selection(pin, owner, selected_by="flags")
    assert found.selected_count == 1, "the pin has the files of the older version"
    pins.remove_pin(pin, owner)
    pin = pins.pin_step(run, 1, owner)[0]
    assert exclusion.find_exclusions([pin], PlanSelector("mask", "flags", owner)) == {}
    builders.flag_row(Sample.objects.visible().get(group="0", index=2), owner)
    found = find_selection(pin, owner, selected_by="flags")
    assert (found.selected_count, found.not_found) == (1, 0)
    assert next(iter(found.artifacts.values())).records == {"rollout-0.json": (2,)}


def test_what_is_selected_in_the_new_version_of_a_step_is_no_row_of_a_pin_of_the_older_one(
    run: Run, project: Project, owner: User
) -> None:
    pin = pin_trl_step(run, owner)
    assert pin_trl_step(run, owner, response="other {at} of {step}", call=7) == pin
    builders.flag_row(Sample.objects.visible().get(group="0", index=2), owner)
    assert exclusion.find_exclusions([pin], PlanSelector("mask", "flags", owner)) == {}
    save_rules(project, owner, {})
    found = find_selection(pin, owner)
    (rows,) = found.artifacts.values()
    assert (found.selected_count, found.not_found, rows.records) == (4, 0, {"rollout-0.json": (0, 1, 2, 3)})
    assert not Sample.objects.visible().filter(pk__in=found.samples).exists(), "the rows of the older version"


def test_a_sample_of_both_versions_of_a_step_is_a_row_of_a_pin_of_the_older_one(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    assert pin_trl_step(run, owner, second="other {at} of {step}", call=7) == pin
    for group in ("0", "1"):
        builders.flag_row(Sample.objects.visible().get(group=group, index=2), owner)
    found = find_selection(pin, owner, selected_by="flags")
    (rows,) = found.artifacts.values()
    assert (found.selected_count, found.not_found, rows.records) == (1, 0, {"rollout-0.json": (2,)})


def test_hidden_samples_leave_room_for_the_texts_of_visible_ones(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = pin_trl_step(run, owner)
    assert pin_trl_step(run, owner, response="same", call=7) == pin
    pins.remove_pin(pin, owner)
    pin = pins.pin_step(run, 1, owner)[0]
    builders.flag_row(Sample.objects.visible().get(group="0", index=2), owner)
    save_rules(project, owner, {"target": "response"})
    monkeypatch.setattr("rollouts.replay.selection.MAX_TEXTS", 4)
    found = find_selection(pin, owner)
    assert (found.selected_count, found.is_complete) == (4, False)


def test_a_newer_file_of_a_step_whose_samples_did_not_change_makes_no_pin_outdated(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    builders.flag_row(get_sample(run, 2), owner)
    register_artifact(run, 1, {"rollout-0.json": b"{}"}, role="rollout", facts=TRL)
    assert find_selection(pin, owner, selected_by="flags").selected_count == 1


def test_a_flagged_row_of_a_pinned_file_is_described_after_the_step_got_other_groups(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    old = get_sample(run, 5)
    builders.flag_row(old, owner)
    Sample.objects.filter(pk=old.pk).update(visible=False, group="gone")
    found = exclusion.PinExclusion(1, 0, samples={old.pk: ("flagged bad",)}, prompts=1)
    entry = compatibility.check_entry_compatibility(Entry(pin=pin, target_step=3), {}, (), found, "mask")
    effect = effects.describe_effects([entry])[3]
    assert (effect.samples, effect.prompt_count, effect.prompts) == (1, 1, ())


def describe_effect(pin: Pin, by: User, on_selected: str, limit: int = 200) -> effects.EntryEffect:
    found = find_selection(Pin.objects.prefetch_related("artifacts").get(pk=pin.pk), by, on_selected, "flags")
    entry = compatibility.check_entry_compatibility(Entry(pin=pin, target_step=3), {}, (), found, on_selected)
    return effects.describe_effects([entry], limit)[3]


def test_the_effect_says_what_remains_of_each_prompt(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    for position in (0, 4, 5):
        builders.flag_row(get_sample(run, position), owner)
    found = describe_effect(pin, owner, "mask")
    assert (found.text, found.rules, found.without_difference) == (
        "masked: 3 samples of 2 prompts", {"flagged bad": 3}, 1,
    )  # fmt: skip
    first, second = found.prompts
    assert (first.text, first.note, first.mean, first.remaining_mean, first.change) == (
        "1 of 4 masked", "the remaining scores are equal", 0.25, 0.0, -0.25,
    )  # fmt: skip
    assert (second.text, second.note) == ("2 of 4 masked", "equal scores, before and after")
    assert [bool(item.rules) for item in second.samples] == [True, True, False, False]
    for position in (6, 7):
        builders.flag_row(get_sample(run, position), owner)
    assert describe_effect(pin, owner, "mask").prompts[1].note == "nothing remains"
    cut = describe_effect(pin, owner, "drop", limit=1)
    assert (cut.text, cut.left_off, cut.without_difference) == ("dropped: 2 prompts with 5 samples selected", 1, 0)
    assert (cut.prompts[0].text, cut.prompts[0].note) == ("dropped: 1 of 4 selected", "")


def test_nothing_is_said_about_scores_that_are_unknown(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    Sample.objects.filter(group="1").update(score=None)
    builders.flag_row(get_sample(run, 5), owner)
    (prompt,) = describe_effect(pin, owner, "mask").prompts
    assert (prompt.text, prompt.note, prompt.mean) == ("1 of 4 masked", "", None)


def test_a_plan_that_regenerates_does_not_replay_a_step_with_a_selected_sample(run: Run, owner: User) -> None:
    pin = pin_trl_step(run, owner)
    builders.flag_row(get_sample(run, 0), owner)
    artifacts = list(pin.artifacts.all())
    reason = exclusion.explain_refusal(find_selection(pin, owner, "regenerate", "flags"), artifacts, "regenerate")
    assert reason == "samples flagged bad: 1; the plan generates the step again"
    assert describe_effect(pin, owner, "regenerate").regenerates_step
    assert exclusion.explain_refusal(find_selection(pin, owner, "mask", "flags"), artifacts, "mask") == ""


@pytest.mark.parametrize(
    ("facts", "role", "action", "supported"),
    [
        ({"format": "slime-rollout"}, "rollout", "drop", "keep, mask, regenerate"),
        ({"format": "roll-mock"}, "rollout", "regenerate", "keep, mask"),
        ({"format": "gen_batch"}, "async_rollout", "mask", "keep, regenerate"),
    ],
)
def test_what_a_trainer_does_not_support_is_refused_when_the_plan_is_saved_or_bound(
    run: Run, project: Project, owner: User, facts: dict[str, Any], role: str, action: str, supported: str
) -> None:
    artifact = register_artifact(run, 1, role=role, facts={"rows": 1})
    pin = pins.pin_step(run, 1, owner)[0]
    values: dict[str, Any] = {"action": "cache", "entries": [(pin, 1)], "on_selected": action}
    revision = plans.save_plan(project, "default", owner, if_match=0, **values)
    Artifact.objects.filter(pk=artifact.pk).update(facts=facts)
    with pytest.raises(InvalidInputError, match=f"cannot {action} selected samples. It supports: {supported}."):
        plans.save_plan(project, "default", owner, if_match=1, **values)
    with pytest.raises(InvalidInputError, match=supported):
        bindings.bind_run(builders.run(project, "next"), str(revision))
    assert loading_trainers.list_supported_actions([pin.pk]) == supported.split(", ")
    assert plans.save_plan(project, "default", owner, if_match=1, **{**values, "on_selected": "exclude"})
