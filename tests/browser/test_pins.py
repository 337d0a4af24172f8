"""Pinning a step by one key, planning where it is replayed, and two people who plan at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Members
from tests.browser.support.measure import Visit, overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_sample_views import HOSTILE
from tests.browser.test_slow import Held

pytestmark = NGINX

HOST = "node7"


def register_artifact(training: Training, step: int, **origin: str) -> None:
    """The trainer's machine tells that it keeps what the step generated."""
    values = {
        "attempt": "a",
        "step": step,
        "role": "rollout",
        "files": {"gen_batch.dp": {"sha256": f"{step:064x}", "bytes": 1000}},
        "facts": {"rows": 4, "max_response_length": 64},
        "origin": {"host": HOST, "path": f"/dumps/{step}", "command": f"rolloutdeck import /dumps/{step}", **origin},
    }
    message = training.server.send_json("PUT", f"runs/{training.uid}/artifacts/", values)
    assert message.is_success, message.error_message


def plan_steps(training: Training, count: int, plan: str) -> None:
    """Steps from 3 on, pinned and in a plan. Every second one is replayed out of order, so that no lines fold."""
    for step in range(3, 3 + count):
        register_artifact(training, step)
        target = {"target_step": 100 - step} if step % 2 else {}
        values = {"run": training.uid, "first": step, "last": step, "plan": plan, **target}
        training.product.post("pins/range/", values)


@pytest.fixture
def stepped(training: Training) -> Training:
    training.pushed(1, 4)
    training.pushed(2, 4)
    register_artifact(training, 1)
    register_artifact(training, 2)
    return training


@pytest.fixture
def planner(members: Members, training: Training) -> Any:
    """The cookies of a maintainer of the project."""
    return members.add(training.project, "pat", "maintainer")


def plan_of(training: Training, name: str) -> str:
    return f"/pins/?project={training.project}&plan={name}"


def add(page: Page, training: Training, step: int) -> None:
    row = (
        page.locator("#pins tr")
        .filter(has_text=training.name)
        .filter(has=page.get_by_role("link", name=str(step), exact=True))
    )
    row.locator("a", has_text="Add").click()


def cells(page: Page, word: str) -> Any:
    return page.locator(f"#plan-strip g rect.cell-{word}, #plan-strip a rect.cell-{word}")


def test_a_step_is_pinned_by_key_planned_at_step_3_and_the_strip_shows_it(visit: Visit, stepped: Training) -> None:
    page = visit.go(f"/runs/{stepped.uid}/steps/2/")
    page.keyboard.press("p")
    expect(page.locator("#pin-note")).to_be_focused()
    page.keyboard.type("keep this")
    page.keyboard.press("Enter")
    expect(page.locator("#pin summary")).to_contain_text("pinned waiting")
    page.keyboard.press("p")
    page.get_by_role("link", name="Go to pins and plan").click()
    expect(page.locator("#pins")).to_contain_text("keep this")
    expect(page.locator("#pins")).to_contain_text(f"{HOST} has not polled for 60 s")
    expect(page.locator("#pins pre").first).to_contain_text("rolloutdeck import /dumps/2")
    page.goto(visit.site.url + plan_of(stepped, "by-key"))
    page.evaluate("window.notReloaded = true")
    add(page, stepped, 2)
    expect(cells(page, "unknown")).to_have_count(1)
    page.locator("#plan input[name=target]").fill("3")
    page.keyboard.press("Tab")
    expect(page.locator("#plan-strip")).to_contain_text(f"step 3: {stepped.name} step 2, unknown")
    expect(cells(page, "none")).to_have_count(11)
    page.get_by_label("repeat_last").check()
    expect(cells(page, "unknown")).to_have_count(10)
    assert page.evaluate("window.notReloaded")
    expect(page).to_have_url(re.compile("target=3"))
    assert "csrf" not in page.url
    page.reload()
    expect(cells(page, "unknown")).to_have_count(10)
    page.get_by_role("button", name="Save as revision 1").click()
    expect(page.locator("main")).to_contain_text("Saved revision 1")
    expect(page).not_to_have_url(re.compile("base="))
    expect(page.locator(".commands")).to_contain_text("--plan by-key@1")
    expect(page.get_by_role("button", name="Save as revision 2")).to_be_disabled()


def is_preview(route: Route) -> bool:
    return "hx-current-url" in route.request.headers


def is_live_update(route: Route) -> bool:
    return route.request.headers.get("hx-target") == "plan" and not is_preview(route)


def test_what_is_typed_chosen_or_saved_while_a_preview_loads_is_kept(visit: Visit, training: Training) -> None:
    plan_steps(training, 2, "slow")
    pattern = re.compile(r"/pins/\?")
    updates = Held(visit.page, pattern, is_live_update)
    page = visit.go(plan_of(training, "slow"))
    updates.wait()  # after a connect, the page asks for what it may have missed
    previews = Held(page, pattern, is_preview)
    page.get_by_label("repeat_last").check()
    previews.wait()
    with page.expect_response(pattern):
        updates.release()
    page.wait_for_timeout(100)  # for the swap
    assert page.get_by_label("repeat_last").is_checked()
    targets = page.locator("#plan-lines input[name=target]")
    targets.nth(0).fill("5")
    page.keyboard.press("ArrowDown")
    expect(targets.nth(1)).to_be_focused()
    page.keyboard.type("8")
    previews.release()
    expect(page.locator("#plan-strip")).to_contain_text(f"step 5: {training.name}")
    assert targets.nth(1).input_value() == "8" and page.get_by_label("repeat_last").is_checked()
    page.keyboard.press("Control+Enter")
    expect(page.locator("main")).to_contain_text("Saved revision 3")
    expect(page.locator("#plan-strip")).to_contain_text(f"step 8: {training.name}")
    page.get_by_label("cache").check()
    page.keyboard.press("Control+Enter")  # before the answer enables the button
    expect(page.locator("main")).to_contain_text("Saved revision 4")
    visit.faults[:] = [fault for fault in visit.faults if "htmx:" not in fault]  # htmx logs requests that it stops


def test_of_two_people_who_plan_at_once_the_second_is_told_and_keeps_what_they_did(
    person: Callable[..., Visit], visit: Visit, planner: Any, stepped: Training
) -> None:
    page = visit.go(f"/runs/{stepped.uid}/steps/1/")
    page.keyboard.press("p")
    page.keyboard.press("Enter")
    expect(page.locator("#pin summary")).to_contain_text("pinned")
    mine, theirs = visit.go(plan_of(stepped, "at-once")), person(planner).go(plan_of(stepped, "at-once"))
    for pin, target in ((mine, "4"), (theirs, "7")):
        add(pin, stepped, 1)
        pin.locator("#plan input[name=target]").fill(target)
        pin.keyboard.press("Tab")
        expect(pin.locator("#plan-strip")).to_contain_text(f"step {target}: {stepped.name} step 1")
    mine.get_by_role("button", name="Save as revision 1").click()
    expect(mine.locator("main")).to_contain_text("Saved revision 1")
    expect(theirs.locator(".conflict")).to_contain_text("admin saved revision 1")
    expect(theirs.locator(".conflict")).to_contain_text(f"Their changes: step 4 now replays {stepped.name} step 1")
    expect(theirs.locator("#plan input[name=target]")).to_have_value("7")
    expect(theirs.locator("#plan button.primary")).to_be_disabled()
    theirs.get_by_role("link", name="Rebase my draft on revision 1").click()
    theirs.get_by_role("button", name="Save as revision 2").click()
    expect(theirs.locator("main")).to_contain_text("Saved revision 2")
    expect(mine.locator(".history")).to_contain_text("step 7 now replays")
    expect(mine.locator("#plan input[name=target]")).to_have_value("7")


def test_what_a_person_types_survives_what_others_do(
    person: Callable[..., Visit], visit: Visit, planner: Any, stepped: Training
) -> None:
    page = visit.go(f"/runs/{stepped.uid}/steps/latest/")
    page.keyboard.press("p")
    page.keyboard.type("half a no")
    stepped.pushed(3, 4)
    expect(page.locator("#strip .strip-name")).to_contain_text("of 3")
    expect(page.locator("#pin summary")).to_contain_text("step 2")
    page.keyboard.type("te")
    expect(page.locator("#pin-note")).to_have_value("half a note")
    page.keyboard.press("Enter")
    other = person(planner).go(f"/runs/{stepped.uid}/steps/2/")
    expect(other.locator("#pin summary")).to_contain_text("pinned")
    other.keyboard.press("p")
    expect(other.locator("#pin-box")).to_contain_text("half a note")


def test_pins_with_hostile_names_stay_text_at_every_width(visit: Visit, stepped: Training) -> None:
    trap = HOSTILE["handlers"] + HOSTILE["htmx"] + HOSTILE["turned"].replace("\0", "").replace("\x1b", "")
    result = stepped.server.send_json("POST", "runs/", {"project": stepped.project, "name": trap[:190], "attempt": "a"})
    assert result.is_success, result.error_message
    hostile = Training.__new__(Training)
    hostile.product, hostile.server, hostile.name, hostile.uid = (
        stepped.product,
        stepped.server,
        "x",
        result.json()["id"],
    )
    hostile.pushed(1, 4)
    register_artifact(hostile, 1, host="<img src=x>", path="/d/<b>x</b>" + "M" * 300, command="<script>x</script>")
    page = visit.go(f"/runs/{hostile.uid}/steps/1/")
    page.keyboard.press("p")
    page.locator("#pin-note").fill(trap)
    page.locator("#pin-target").fill("999")
    page.keyboard.press("Enter")
    expect(page.locator("#pin summary")).to_contain_text("pinned")
    for width in (1440, 800, 400):
        page.set_viewport_size({"width": width, "height": 900})
        for path in (
            f"/pins/?project={stepped.project}&steps=999",
            f"/runs/{hostile.uid}/steps/1/",
            f"/runs/{hostile.uid}/",
        ):
            page.goto(visit.site.url + path)
            expect(page.locator("main")).to_be_visible()
            assert overflow(page) <= 0, (path, width)
            assert page.evaluate("window.__ran") is None
            assert page.locator("main img, main script, main iframe, [hx-trigger=load]").count() == 0
    page.goto(f"{visit.site.url}/pins/?project={stepped.project}")
    expect(page.locator("#pins")).to_contain_text(re.compile("<img src=x onerror="))
    page.get_by_role("button", name=re.compile("^Remove .* from the plan$")).last.click()
    page.get_by_role("button", name=re.compile("Save as revision")).click()
    expect(page.locator("main")).to_contain_text("Saved revision")


def test_a_range_is_pinned_by_one_form_and_folds_to_one_line(visit: Visit, training: Training) -> None:
    for step in range(1, 6):
        training.pushed(step, 4)
        register_artifact(training, step)
    page = visit.go(plan_of(training, "range"))
    page.keyboard.press("a")
    expect(page.locator("#range-run")).to_be_focused()
    page.select_option("#range-run", training.uid)
    page.fill("#range-first", "1")
    page.fill("#range-last", "5")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("5 steps are in the plan.")
    fold = page.locator("#plan tr.fold")
    expect(fold).to_contain_text("1–5")
    targets = page.locator("#plan input[name=target]")
    expect(targets.first).to_be_hidden()
    fold.locator(".unfold").check()
    expect(targets.first).to_be_visible()
    targets.first.fill("9")
    page.keyboard.press("Tab")
    expect(page.locator("#plan-strip")).to_contain_text(f"step 9: {training.name} step 1, unknown")


def test_lines_removed_quickly_and_a_folded_range_leave_the_plan(visit: Visit, training: Training) -> None:
    """Each click stops the request of the click before it."""
    for step in range(1, 9):
        training.pushed(step, 4)
        register_artifact(training, step)
    page = visit.go(plan_of(training, "removal"))
    page.keyboard.press("a")
    page.select_option("#range-run", training.uid)
    page.fill("#range-first", "1")
    page.fill("#range-last", "8")
    page.keyboard.press("Enter")
    fold = page.locator("#plan tr.fold")
    expect(fold).to_contain_text("1–8")
    fold.locator(".unfold").check()
    page.evaluate("for (const n of [0, 1, 2]) document.querySelector(`#plan [name=remove][value='${n}']`).click()")
    expect(fold).to_contain_text("4–8")
    expect(page.locator("#plan input[name=target]")).to_have_count(5)
    fold.get_by_role("button", name="Remove steps 4 to 8 from the plan").click()
    expect(page.locator("#plan")).to_contain_text("The plan is empty.")
    page.get_by_role("button", name="Save as revision 2").click()
    expect(page.locator("main")).to_contain_text("Saved revision 2.")
    visit.faults[:] = [fault for fault in visit.faults if "htmx:" not in fault]  # htmx logs requests that it stops
