"""The box that pins a step: who may use it, and why it refuses."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Pin, Project, Run
from rollouts.pins import pins
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import build_pin_form, build_plan_form, create_remote_artifact, get_page
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


def test_a_step_is_pinned_from_its_page_and_its_samples_show_the_pin(maintainer_client: Client, run: Run) -> None:
    assert "pin step 2" in get_page(maintainer_client, "/runs/grpo/steps/latest/")
    response = maintainer_client.post("/runs/grpo/pins/", build_pin_form(note="why", next="/runs/grpo/steps/2/"))
    assert (response.status_code, response.headers["Location"]) == (303, "/runs/grpo/steps/2/")
    pin = Pin.objects.get()
    assert (pin.step, pin.note, pin.user.username) == (2, "why", "kim")
    sample = run.steps.get(step=2).rows.first()
    for url in ("/runs/grpo/steps/2/", f"/samples/{sample.pk}/"):
        assert "Step 2 is pinned" in get_page(maintainer_client, url)
    assert "pin step 1" in get_page(maintainer_client, "/runs/grpo/steps/1/")


def test_pinning_a_pinned_step_without_a_note_keeps_its_note(maintainer_client: Client, pin: Pin) -> None:
    maintainer_client.post("/runs/grpo/pins/", build_pin_form(note=""))
    pin.refresh_from_db()
    assert pin.note == "half of the groups still have variance"


def test_a_pin_can_be_added_to_the_plan_at_once(maintainer_client: Client, run: Run, project: Project) -> None:
    maintainer_client.post("/runs/grpo/pins/", build_pin_form(target_step="3"))
    revision = plans.find_current_revision(project)
    assert revision is not None
    assert list(revision.entries.values_list("target_step", "pin__step")) == [(3, 2)]


@pytest.mark.parametrize("target", ["x", "-1", "3.5", "٣", "9" * 30])
def test_an_invalid_target_step_is_explained_in_the_box(maintainer_client: Client, run: Run, target: str) -> None:
    response = maintainer_client.post(
        "/runs/grpo/pins/", build_pin_form(target_step=target), headers={"HX-Request": "true", "HX-Target": "pin"}
    )
    assert "The target step must be a whole number" in response.content.decode()
    assert not Pin.objects.exists()


def test_the_box_is_sent_as_a_panel_to_a_script(maintainer_client: Client, run: Run) -> None:
    response = maintainer_client.post(
        "/runs/grpo/pins/", build_pin_form(), headers={"HX-Request": "true", "HX-Target": "pin"}
    )
    page = response.content.decode()
    assert "⚲ pinned" in collapse_spaces(page) and "<html" not in page
    removed = maintainer_client.post(
        f"/pins/{Pin.objects.get().pk}/remove/", headers={"HX-Request": "true", "HX-Target": "pin"}
    )
    assert "pin step 2" in removed.content.decode()


def test_a_step_without_files_says_why_it_cannot_be_pinned(maintainer_client: Client, run: Run) -> None:
    index_file(run, lines(generation(step=3)), 3)
    assert "Step 3 cannot be pinned yet" in get_page(maintainer_client, "/runs/grpo/steps/3/")
    run_without_files = builders.run(run.project, "bare", uid="bare")
    index_file(run_without_files, lines(generation()), 1)
    assert "rollout dump and watch its folder" in get_page(maintainer_client, "/runs/bare/steps/1/")


def test_the_page_of_all_steps_has_no_pin_box(maintainer_client: Client, run: Run) -> None:
    assert "pin-box" not in get_page(maintainer_client, "/runs/grpo/steps/all/")


@pytest.mark.parametrize(
    "fields",
    [{"step": "99"}, {"step": "x"}, {"step": "1" * 30}, {"attempt": "\0"}, {"split": "nope"}, {"step_kind": ""}],
)
def test_a_missing_step_cannot_be_pinned(maintainer_client: Client, run: Run, fields: dict[str, str]) -> None:
    assert maintainer_client.post("/runs/grpo/pins/", build_pin_form() | fields).status_code == 404


def test_an_annotator_reads_pins_and_changes_none(client: Client, mate: User, pin: Pin) -> None:
    client.force_login(mate)
    page = get_page(client, "/pins/")
    assert "half of the groups" in page
    assert "Add to plan" not in page and "Save as revision" not in page
    forms = {
        "/runs/grpo/pins/": build_pin_form(1),
        f"/pins/{pin.pk}/note/": {"note": "x"},
        f"/pins/{pin.pk}/remove/": {},
        "/pins/plan/": build_plan_form(0, (pin.pk, 3)),
        "/settings/math/loosen/": {"fact": "rows", "note": "x"},
    }
    assert {url: client.post(url, data).status_code for url, data in forms.items()} == dict.fromkeys(forms, 403)


def test_a_stranger_sees_no_pins_and_cannot_change_them(client: Client, stranger: User, pin: Pin) -> None:
    client.force_login(stranger)
    assert "You are not a member of any project yet" in get_page(client, "/pins/")
    assert client.get("/pins/?project=math").status_code == 404
    forms = {
        "/runs/grpo/pins/": build_pin_form(1),
        f"/pins/{pin.pk}/note/": {"note": "x"},
        f"/pins/{pin.pk}/remove/": {},
        "/pins/plan/": build_plan_form(0, (pin.pk, 3)),
        "/settings/math/loosen/": {"fact": "rows", "note": "x"},
    }
    assert {url: client.post(url, data).status_code for url, data in forms.items()} == dict.fromkeys(forms, 404)


def test_a_pin_of_another_project_cannot_be_added_to_a_plan(
    maintainer_client: Client, maintainer: User, pin: Pin
) -> None:
    other = builders.project("other")
    builders.member(other, "ole", "owner")
    other_run = builders.run(other, uid="theirs")
    index_file(other_run, lines(generation()), 1)
    create_remote_artifact(other_run, 1)
    foreign = pins.pin_step(other_run, 1, User.objects.get(username="ole"), note="secret note")[0]
    page = get_page(maintainer_client, f"/pins/?base=0&action=cache&pin={foreign.pk}&target=3")
    assert "secret note" not in page and "theirs" not in page
    maintainer_client.post("/pins/plan/", build_plan_form(0, (foreign.pk, 3), (pin.pk, 4)))
    revision = plans.find_current_revision(pin.project)
    assert revision is not None
    assert list(revision.entries.values_list("pin", flat=True)) == [pin.pk]


def test_the_default_target_is_the_same_step_and_is_explained(
    maintainer_client: Client, run: Run, maintainer: User
) -> None:
    page = collapse_spaces(get_page(maintainer_client, f"/runs/{run.uid}/steps/1/"))
    assert re.search(r'id="pin-target"[^>]* value="1"', page) and "Use the same step: a run with the same data" in page
    assert f"/pins/?project=math&amp;range={run.uid}&amp;from=1#add-steps" in page
    other = pins.pin_step(run, 2, maintainer)[0]
    plans.save_plan(run.project, "default", maintainer, if_match=0, action="cache", entries=[(other, 1)])
    page = collapse_spaces(get_page(maintainer_client, f"/runs/{run.uid}/steps/1/"))
    assert re.search(r'id="pin-target"[^>]* value=""', page)
    assert "The plan already replays grpo step 2 at step 1." in page


def test_the_form_of_a_range_selects_the_run_that_was_pinned_last(maintainer_client: Client, pin: Pin) -> None:
    newer = builders.run(pin.project, "newer", uid="newer")
    index_file(newer, lines(generation()), 1)
    create_remote_artifact(newer, 1)
    options = re.findall(
        r"( selected)?>((?:newer|grpo) · [^<]*)<", collapse_spaces(get_page(maintainer_client, "/pins/?project=math"))
    )
    assert (" selected", "grpo · steps 1 to 2") in options and ("", "newer · step 1") in options


def test_a_range_of_steps_is_pinned_by_a_form(maintainer_client: Client, run: Run) -> None:
    form = {"run": run.uid, "first": "1", "last": "4", "target": "", "plan": "night"}
    response = maintainer_client.post("/pins/range/", form)
    page = get_page(maintainer_client, response.headers["Location"])
    assert "plan=night" in response.headers["Location"] and "2 steps are in the plan. 2 steps were skipped" in page
    response = maintainer_client.post("/pins/range/", form | {"first": "x", "target": "40"})
    page = get_page(maintainer_client, response.headers["Location"])
    assert "Enter whole step numbers" in page and re.search(r'<details class="add-steps[^>]* open', page)
    fields = [re.search(rf'name="{name}"[^>]*value="([^"]*)"', page) for name in ("first", "last", "target")]
    assert [field and field[1] for field in fields] == ["x", "4", "40"], "what was typed stays"


def test_a_range_without_files_names_the_only_step_that_has_files(maintainer_client: Client, project: Project) -> None:
    run = builders.run(project, "one", uid="one")
    index_file(run, lines(generation()), 7)
    create_remote_artifact(run, 7)
    response = maintainer_client.post("/pins/range/", {"run": "one", "first": "1", "last": "2", "plan": "night"})
    assert "Step with files: 7." in get_page(maintainer_client, response.headers["Location"])


def test_a_range_of_a_run_with_files_per_prompt_counts_training_steps(
    maintainer_client: Client, project: Project
) -> None:
    run = builders.run(project, "async", uid="async")
    for step in (1, 2):
        rows = [{"prompt": "p", "response": "r", "group": f"uid_sample_0_{70 + step * 2 + feed}"} for feed in range(2)]
        index_file(run, lines(*rows), step, format="native")
        for feed in range(2):
            create_remote_artifact(run, 70 + step * 2 + feed, role="async_rollout", step_kind="feed_index")
    assert "async · steps 1 to 2" in collapse_spaces(get_page(maintainer_client, "/pins/?project=math"))
    maintainer_client.post("/pins/range/", {"run": "async", "first": "1", "last": "2", "target": "", "plan": "default"})
    found = Pin.objects.filter(run=run).order_by("step")
    assert [(pin.step_kind, pin.step, pin.prompts) for pin in found] == [("global_step", 1, 2), ("global_step", 2, 2)]


def test_a_range_is_added_to_the_default_plan_even_if_only_another_plan_was_saved(
    maintainer_client: Client, run: Run, pin: Pin, maintainer: User
) -> None:
    plans.save_plan(run.project, "demo", maintainer, if_match=0, action="cache", entries=[(pin, 2)])

    def read_plan_field(page: str) -> list[str]:
        return re.findall(r'<input id="range-plan" name="plan"[^>]* value="([^"]*)"', collapse_spaces(page))

    page = get_page(maintainer_client, "/pins/?project=math")
    assert read_plan_field(page) == ["default"] and "step 2" in page and "This page shows the plan demo." in page
    response = maintainer_client.post("/pins/range/", {"run": run.uid, "first": "1", "last": "2", "plan": "default"})
    default = plans.find_current_revision(run.project)
    assert default and [entry.target_step for entry in default.entries.order_by("target_step")] == [1, 2]
    assert "plan=default" in response.headers["Location"]
    page = get_page(maintainer_client, "/pins/?project=math&plan=demo")
    assert read_plan_field(page) == ["demo"] and "This page shows the plan" not in page
