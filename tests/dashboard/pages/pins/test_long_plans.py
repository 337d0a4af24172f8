"""Plans of very many steps on their page: they can be changed as other plans, and no entry is lost."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Pin, Revision
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import build_plan_form, get_page, get_panel

pytestmark = pytest.mark.one_database


def test_a_plan_of_500_steps_is_changed_and_saved_from_the_page(
    maintainer_client: Client, pin: Pin, maintainer: User
) -> None:
    plans.save_plan(
        pin.project, "default", maintainer, if_match=0, action="cache", entries=[(pin, step) for step in range(1, 501)]
    )
    entries = [(pin.pk, step) for step in range(2, 502)]
    assert maintainer_client.post("/pins/plan/", build_plan_form(1, *entries)).status_code == 303
    revision = plans.find_current_revision(pin.project, "default")
    assert revision and revision.number == 2 and revision.entries.count() == 500


def test_a_plan_with_more_entries_than_the_page_shows_keeps_them_all(
    maintainer_client: Client, pin: Pin, maintainer: User
) -> None:
    entries = [(pin, step) for step in range(1, 601)]
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="cache", entries=entries)
    page = get_panel(maintainer_client, "/pins/?project=math", "plan")
    assert 'name="cut" value="1"' in page and "pin=" not in page, "no link has a part of the plan"
    pairs = "".join(f"&pin={pin.pk}&target={step}" for step in range(1, 601))
    assert "Save as revision" in page and "disabled" in page
    assert 'name="cut" value="1"' in get_panel(maintainer_client, f"/pins/?project=math&base=1{pairs}", "plan")
    shown = build_plan_form(1, *[(pin.pk, step) for step in range(1, 501)], cut="1")
    page = get_page(maintainer_client, maintainer_client.post("/pins/plan/", shown).headers["Location"])
    assert "The page shows only a part of this plan." in page
    maintainer_client.post("/pins/plan/", {**shown, "do": "", "move": "0,1"})
    sizes = {row.plan.name: row.entries.count() for row in Revision.objects.newest()}
    assert sizes["default"] == 598 and sum(sizes.values()) == 600


def test_a_draft_is_not_lost_if_the_plan_becomes_too_long_for_the_page(
    maintainer_client: Client, pin: Pin, maintainer: User
) -> None:
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="cache", entries=[(pin, 1)])
    long = [(pin, step) for step in range(1, 601)]
    plans.save_plan(pin.project, "default", maintainer, if_match=1, action="cache", entries=long)
    location = maintainer_client.post("/pins/plan/", build_plan_form(1, (pin.pk, 7))).headers["Location"]
    assert "target=7" in location and "step 7 now replays" in get_page(maintainer_client, location)
    revision = plans.find_current_revision(pin.project, "default")
    assert revision and revision.number == 2


def test_a_very_long_plan_of_the_api_is_shown_in_part_with_a_note(
    maintainer_client: Client, pin: Pin, maintainer: User
) -> None:
    entries = [(pin, step) for step in range(1, 3001)]
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="cache", entries=entries)
    started = time.process_time()
    page = get_panel(maintainer_client, "/pins/?project=math", "plan")
    assert time.process_time() - started < 12
    assert (
        "This plan has 3,000 entries; the first 50 are shown. A plan of more than 500 is changed with the API." in page
    )
    # Fields that cannot be edited are disabled.
    fields = re.findall(r'<input[^>]*name="(?:action|on_selected)"[^>]*>', page)
    assert len(fields) > 5 and all(" disabled" in field for field in fields)
    absent = ('name="target"', 'name="remove"', 'name="pick"')
    assert not [text for text in absent if text in page] and len(page) < 200_000
