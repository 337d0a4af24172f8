"""The plan on its page: drafts, revisions, targets, and the download command."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Pin, Project, Run
from rollouts.pins import pins
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import (
    FACTS,
    GENERATED,
    build_plan_form,
    count_segments,
    create_remote_artifact,
    get_page,
    get_panel,
    list_entries,
)
from tests.support import builders
from tests.support.html import collapse_spaces

pytestmark = pytest.mark.one_database


def test_a_draft_shows_what_it_would_do_before_it_is_saved(maintainer_client: Client, pin: Pin) -> None:
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&steps=12"
    page = get_page(maintainer_client, url)
    assert (count_segments(page, "unknown"), count_segments(page, "none")) == (1, 11)
    assert len(re.findall(GENERATED, page)) == 11
    assert "step 3: grpo step 2, unknown: depends on the prompts" in page
    assert 'aria-label="unknown: depends on the prompts: 1; will generate: 11"' in page
    page = get_page(maintainer_client, url.replace("cache", "repeat_last"))
    assert (count_segments(page, "unknown"), count_segments(page, "none")) == (10, 2)
    assert plans.find_current_revision(pin.project) is None


def test_no_run_is_compared_by_default_and_the_page_says_how_to_check(
    maintainer_client: Client, pin: Pin, run: Run
) -> None:
    """The page once said FITS about a run that it chose itself, and that run then refused the plan."""
    page = collapse_spaces(get_page(maintainer_client, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3"))
    assert "FITS" not in page and "COMPATIBLE" not in page and "Settings that differ" not in page
    assert "unknown: depends on the prompts" in page and "Prompts are not checked yet." in page
    assert "rolloutdeck plan --project math --run NEXT-RUN --prompts prompts.jsonl" in page
    assert not re.search(
        r"<option[^>]*selected", page[page.index('id="run"') : page.index("</select>", page.index('id="run"'))]
    )


def test_the_page_opens_the_only_saved_plan_if_it_is_not_the_default(
    maintainer_client: Client, pin: Pin, owner: User
) -> None:
    assert 'aria-current="true">default' in collapse_spaces(get_page(maintainer_client, "/pins/"))
    plans.pin_into_plan(pin.run, pin.step, owner, target_step=3, plan="warm")
    page = collapse_spaces(get_page(maintainer_client, "/pins/"))
    assert 'aria-current="true">warm' in page and "step 3: grpo step 2" in page


def test_selected_lines_move_to_a_new_plan_once(maintainer_client: Client, pin: Pin, maintainer: User) -> None:
    entries = [(pin, step) for step in (1, 2, 3, 4)]
    settings = {"action": "repeat", "on_mismatch": "stop", "on_selected": "exclude"}
    plans.save_plan(pin.project, "default", maintainer, if_match=0, entries=entries, **settings)
    page = collapse_spaces(get_page(maintainer_client, "/pins/"))
    assert re.findall(r'class="pick" name="pick" value="(\d)"', page) == ["0", "1", "2", "3"]
    form = build_plan_form(1, *((pin.pk, step) for step in (1, 2, 3, 4)), do="move", pick=["1", "2,3"], **settings)
    assert maintainer_client.post("/pins/plan/", form).headers["Location"] == "/pins/?project=math"
    assert list_entries("default") == [(1, pin.pk)] and list_entries("default-2") == [
        (2, pin.pk),
        (3, pin.pk),
        (4, pin.pk),
    ]
    moved = plans.find_current_revision(pin.project, "default-2")
    assert moved and (moved.action, moved.on_mismatch, moved.on_selected) == ("repeat", "stop", "exclude")
    maintainer_client.post("/pins/plan/", form)  # a second click
    assert plans.list_plan_names(pin.project) == ["default", "default-2"]
    response = maintainer_client.post("/pins/plan/", build_plan_form(2, (pin.pk, 1), do="move"))
    assert "Select the lines to move." in get_page(maintainer_client, response.headers["Location"])


def test_enter_in_a_field_only_updates_the_preview(maintainer_client: Client, pin: Pin) -> None:
    """On Enter, a browser submits the form with its first button."""
    page = collapse_spaces(get_page(maintainer_client, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3"))
    form = page[page.index('id="plan-form"') :]
    first = re.search(r"<button([^>]*)>", form)
    assert first and 'value="look"' in first[1]


def test_a_plan_is_saved_and_the_changes_of_its_revisions_are_shown(maintainer_client: Client, pin: Pin) -> None:
    response = maintainer_client.post("/pins/plan/", build_plan_form(0, (pin.pk, 3)))
    assert (response.status_code, response.headers["Location"]) == (303, "/pins/?project=math")
    page = get_page(maintainer_client, "/pins/")
    assert "Saved revision 1" in page and "step 3 now replays grpo step 2" in page
    assert "rolloutdeck pull --project math --run NEXT-RUN" in page and "ROLLOUTDECK_PLAN=default@1" in page
    maintainer_client.post("/pins/plan/", build_plan_form(1, (pin.pk, 4), action="repeat"))
    assert "step 3 no longer replays grpo step 2" in get_page(maintainer_client, "/pins/")


def test_the_second_of_two_saves_is_refused_and_its_draft_is_kept(
    maintainer_client: Client, pin: Pin, run: Run, owner: User
) -> None:
    plans.save_plan(pin.project, "default", owner, if_match=0, action="repeat", entries=[(pin, 7)])
    response = maintainer_client.post("/pins/plan/", build_plan_form(0, (pin.pk, 3)))
    page = get_page(maintainer_client, response.headers["Location"])
    assert "olga saved revision 1" in page
    assert "step 7 now replays grpo step 2" in page and "step 3 now replays grpo step 2" in page
    assert 'name="target"' in page and 'value="3"' in page
    assert re.search(r'value="save"[^>]*disabled', page)
    last = plans.find_current_revision(pin.project)
    assert last is not None and last.number == 1
    rebase_link = re.search(r'href="([^"]*)">Rebase my draft on revision 1', collapse_spaces(page))
    assert rebase_link
    rebased_query = parse_qs(urlsplit(rebase_link.group(1).replace("&amp;", "&")).query)
    assert rebased_query["base"] == ["1"] and rebased_query["target"] == ["3"]
    maintainer_client.post("/pins/plan/", build_plan_form(1, (pin.pk, 3)))
    last = plans.find_current_revision(pin.project)
    assert last is not None and (last.number, last.action) == (2, "cache")


def test_a_pin_is_added_after_the_last_target_and_removed(maintainer_client: Client, pin: Pin) -> None:
    response = maintainer_client.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&add={pin.pk}")
    assert response.status_code == 302
    assert "target=5" in response.headers["Location"] and "target=6" in response.headers["Location"]
    htmx = {"HX-Request": "true", "HX-Target": "plan"}
    response = maintainer_client.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&remove=0", headers=htmx)
    assert response.headers["HX-Replace-Url"] == "/pins/?project=math"
    pins = "".join(f"&pin={pin.pk}&target={step}" for step in (5, 6, 7))
    response = maintainer_client.get(f"/pins/?base=0&action=cache{pins}&remove=0,2", headers=htmx)
    assert re.findall(r"target=\d+", response.headers["HX-Replace-Url"]) == ["target=6"]


def test_a_plan_for_a_trainer_that_counts_from_0_begins_at_step_0(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    create_remote_artifact(
        run, 7, facts={**FACTS, "format": "slime-rollout"}, files={"7.pt": {"sha256": "7" * 64, "bytes": 9}}
    )
    first = pins.pin_step(run, 7, maintainer)[0]
    page = get_page(maintainer_client, f"/pins/?base=0&action=cache&pin={first.pk}&target=0&steps=3")
    assert "slime does not support here: drop the prompt." in page
    assert "Plan preview: steps 0 to" in page and (count_segments(page, "unknown"), count_segments(page, "none")) == (
        1,
        3,
    )
    assert "step 0: grpo step 7, unknown: depends on the settings" in page
    added = maintainer_client.get(f"/pins/?base=0&action=cache&add={first.pk}").headers["Location"]
    assert parse_qs(urlsplit(added).query)["target"] == ["0"]
    maintainer_client.post("/pins/plan/", build_plan_form(0, (first.pk, 0), steps="3"))
    page = get_page(maintainer_client, "/pins/?project=math&steps=3")
    assert "--into replay --trainer slime" in page and "ROLLOUTDECK_PLAN=default@1" in page
    assert "runtime_env" not in page  # the way of verl to pass the variable to its workers
    strip = maintainer_client.get(f"/api/v1/projects/math/replay-plan/?run={run.uid}&steps=2").json()["strip"]
    assert strip == [[0, 0], [1, None], [2, None]]
    create_remote_artifact(
        run, 8, facts={**FACTS, "format": "gen_batch"}, files={"8.dp": {"sha256": "8" * 64, "bytes": 9}}
    )
    verl_pin = pins.pin_step(run, 8, maintainer)[0]
    page = get_page(maintainer_client, f"/pins/?base=1&action=cache&pin={verl_pin.pk}&target=1")
    assert "Plan preview: steps 1 to" in page and "does not support here" not in page
    page = get_page(maintainer_client, f"/pins/?base=1&action=cache&pin={first.pk}&target=0&pin={verl_pin.pk}&target=0")
    assert page.count("enter a step number") == 1


def test_the_form_works_without_script(maintainer_client: Client, pin: Pin) -> None:
    response = maintainer_client.post("/pins/plan/", build_plan_form(0, (pin.pk, 3), do="", remove="0"))
    assert (response.status_code, response.headers["Location"]) == (303, "/pins/?project=math")
    response = maintainer_client.post("/pins/plan/", build_plan_form(0, (pin.pk, 3), do="look", action="repeat"))
    assert "action=repeat" in response.headers["Location"] and "csrf" not in response.headers["Location"]


@pytest.mark.parametrize("targets", [("",), ("x",), ("0",), ("3", "3"), ("9" * 25,), ("-1",)])
def test_invalid_targets_are_explained_and_not_saved(maintainer_client: Client, pin: Pin, targets: tuple[str]) -> None:
    data = build_plan_form(0) | {"pin": [pin.pk] * len(targets), "target": list(targets)}
    response = maintainer_client.post("/pins/plan/", data)
    page = get_page(maintainer_client, response.headers["Location"])
    assert "error-line" in page or "banner error" in page
    assert plans.find_current_revision(pin.project) is None


def test_the_download_command_names_all_steps_of_the_plan(
    maintainer_client: Client, pin: Pin, maintainer: User
) -> None:
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="cache", entries=[(pin, 50)])
    page = get_panel(maintainer_client, "/pins/?project=math&steps=20", "plan")
    assert "--into replay --trainer verl" in page and "--steps" not in page
    plans.save_plan(pin.project, "default", maintainer, if_match=1, action="repeat", entries=[(pin, 50)])
    assert "--steps 50" in get_panel(maintainer_client, "/pins/?project=math&steps=20", "plan")


def test_a_pin_of_another_project_in_the_url_reveals_nothing(
    maintainer_client: Client, pin: Pin, project: Project
) -> None:
    other = builders.run(builders.project("other"), "secret")
    create_remote_artifact(other, 7, facts={**FACTS, "format": "slime-rollout"})
    foreign = pins.pin_step(other, 7, builders.member(other.project, "eve", "owner"))[0]
    page = get_page(maintainer_client, f"/pins/?project=math&base=0&pin={foreign.pk}&target=0")
    assert "slime" not in page and "Plan preview: steps 1 to" in page
