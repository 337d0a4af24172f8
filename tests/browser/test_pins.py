"""Pins and replay plans: pinned by key, planned, and edited by two people at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Members
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_sample_views import HOSTILE
from tests.browser.test_slow import HeldRequests

pytestmark = NGINX

HOST = "node7"


def register_artifact(training: Training, step: int, **origin: str) -> None:
    """Registers the file of a step, as the trainer's machine does that keeps it."""
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
    """Adds steps from 3 on to a plan. Every second one is replayed out of order, so that no lines fold."""
    for step in range(3, 3 + count):
        register_artifact(training, step)
        target = {"target_step": 100 - step} if step % 2 else {}
        values = {"run": training.uid, "first": step, "last": step, "plan": plan, **target}
        training.product.post("pins/range/", values)


@pytest.fixture
def artifact_run(training: Training) -> Training:
    """A run with two steps whose files are registered."""
    training.push_and_wait(1, 4)
    training.push_and_wait(2, 4)
    register_artifact(training, 1)
    register_artifact(training, 2)
    return training


@pytest.fixture
def maintainer(members: Members, training: Training) -> Any:
    """The cookies of a maintainer of the project."""
    return members.add(training.project, "pat", "maintainer")


def get_plan_path(training: Training, name: str) -> str:
    return f"/pins/?project={training.project}&plan={name}"


def add_to_plan(page: Page, training: Training, step: int) -> None:
    row = (
        page.locator("#pins tr")
        .filter(has_text=training.name)
        .filter(has=page.get_by_role("link", name=str(step), exact=True))
    )
    row.locator("a", has_text="Add").click()


def find_cells(page: Page, word: str) -> Any:
    return page.locator(f"#plan-strip g rect.cell-{word}, #plan-strip a rect.cell-{word}")


def test_a_step_is_pinned_by_key_planned_at_step_3_and_shown_in_the_strip(visit: Visit, artifact_run: Training) -> None:
    page = visit.go(f"/runs/{artifact_run.uid}/steps/2/")
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
    page.goto(visit.site.url + get_plan_path(artifact_run, "by-key"))
    page.evaluate("window.notReloaded = true")
    add_to_plan(page, artifact_run, 2)
    expect(find_cells(page, "unknown")).to_have_count(1)
    page.locator("#plan input[name=target]").fill("3")
    page.keyboard.press("Tab")
    expect(page.locator("#plan-strip")).to_contain_text(f"step 3: {artifact_run.name} step 2, unknown")
    expect(find_cells(page, "none")).to_have_count(11)
    page.get_by_label("repeat_last").check()
    expect(find_cells(page, "unknown")).to_have_count(10)
    assert page.evaluate("window.notReloaded")
    expect(page).to_have_url(re.compile("target=3"))
    assert "csrf" not in page.url and "page_user" not in page.url
    page.reload()
    expect(find_cells(page, "unknown")).to_have_count(10)
    page.get_by_role("button", name="Save as revision 1").click()
    expect(page.locator("main")).to_contain_text("Saved revision 1")
    expect(page).not_to_have_url(re.compile("base="))
    expect(page.locator(".commands")).to_contain_text("--plan by-key@1")
    expect(page.get_by_role("button", name="Save as revision 2")).to_be_disabled()


def is_preview(route: Route) -> bool:
    return "hx-current-url" in route.request.headers


def is_live_update(route: Route) -> bool:
    return route.request.headers.get("hx-target") == "plan" and not is_preview(route)


def test_changes_to_a_plan_are_kept_while_a_preview_loads(visit: Visit, training: Training) -> None:
    plan_steps(training, 2, "slow")
    pattern = re.compile(r"/pins/\?")
    updates = HeldRequests(visit.page, pattern, is_live_update)
    page = visit.go(get_plan_path(training, "slow"))
    updates.wait()  # after a connect, the page asks for what it may have missed
    previews = HeldRequests(page, pattern, is_preview)
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


def test_the_second_of_two_people_who_plan_at_once_sees_the_conflict_and_keeps_the_draft(
    open_visit: Callable[..., Visit], visit: Visit, maintainer: Any, artifact_run: Training
) -> None:
    page = visit.go(f"/runs/{artifact_run.uid}/steps/1/")
    page.keyboard.press("p")
    page.keyboard.press("Enter")
    expect(page.locator("#pin summary")).to_contain_text("pinned")
    own, other = (
        visit.go(get_plan_path(artifact_run, "at-once")),
        open_visit(maintainer).go(get_plan_path(artifact_run, "at-once")),
    )
    for plan_page, target in ((own, "4"), (other, "7")):
        add_to_plan(plan_page, artifact_run, 1)
        plan_page.locator("#plan input[name=target]").fill(target)
        plan_page.keyboard.press("Tab")
        expect(plan_page.locator("#plan-strip")).to_contain_text(f"step {target}: {artifact_run.name} step 1")
    own.get_by_role("button", name="Save as revision 1").click()
    expect(own.locator("main")).to_contain_text("Saved revision 1")
    expect(other.locator(".conflict")).to_contain_text("admin saved revision 1")
    expect(other.locator(".conflict")).to_contain_text(f"Their changes: step 4 now replays {artifact_run.name} step 1")
    expect(other.locator("#plan input[name=target]")).to_have_value("7")
    expect(other.locator("#plan button.primary")).to_be_disabled()
    other.get_by_role("link", name="Rebase my draft on revision 1").click()
    other.get_by_role("button", name="Save as revision 2").click()
    expect(other.locator("main")).to_contain_text("Saved revision 2")
    expect(own.locator(".history")).to_contain_text("step 7 now replays")
    expect(own.locator("#plan input[name=target]")).to_have_value("7")


def test_a_note_that_is_being_typed_is_kept_when_a_step_arrives(
    open_visit: Callable[..., Visit], visit: Visit, maintainer: Any, artifact_run: Training
) -> None:
    page = visit.go(f"/runs/{artifact_run.uid}/steps/latest/")
    page.keyboard.press("p")
    page.keyboard.type("half a no")
    artifact_run.push_and_wait(3, 4)
    expect(page.locator("#strip .strip-name")).to_contain_text("of 3")
    expect(page.locator("#pin summary")).to_contain_text("step 2")
    page.keyboard.type("te")
    expect(page.locator("#pin-note")).to_have_value("half a note")
    page.keyboard.press("Enter")
    other = open_visit(maintainer).go(f"/runs/{artifact_run.uid}/steps/2/")
    expect(other.locator("#pin summary")).to_contain_text("pinned")
    other.keyboard.press("p")
    expect(other.locator("#pin-box")).to_contain_text("half a note")


def test_pins_with_hostile_names_stay_text_at_every_width(visit: Visit, artifact_run: Training) -> None:
    hostile_name = HOSTILE["handlers"] + HOSTILE["htmx"] + HOSTILE["turned"].replace("\0", "").replace("\x1b", "")
    result = artifact_run.server.send_json(
        "POST", "runs/", {"project": artifact_run.project, "name": hostile_name[:190], "attempt": "a"}
    )
    assert result.is_success, result.error_message
    hostile = Training.__new__(Training)
    hostile.product, hostile.server, hostile.name, hostile.uid = (
        artifact_run.product,
        artifact_run.server,
        "x",
        result.json()["id"],
    )
    hostile.push_and_wait(1, 4)
    register_artifact(hostile, 1, host="<img src=x>", path="/d/<b>x</b>" + "M" * 300, command="<script>x</script>")
    page = visit.go(f"/runs/{hostile.uid}/steps/1/")
    page.keyboard.press("p")
    page.locator("#pin-note").fill(hostile_name)
    page.locator("#pin-target").fill("999")
    page.keyboard.press("Enter")
    expect(page.locator("#pin summary")).to_contain_text("pinned")
    for width in (1440, 800, 400):
        page.set_viewport_size({"width": width, "height": 900})
        for path in (
            f"/pins/?project={artifact_run.project}&steps=999",
            f"/runs/{hostile.uid}/steps/1/",
            f"/runs/{hostile.uid}/",
        ):
            page.goto(visit.site.url + path)
            expect(page.locator("main")).to_be_visible()
            assert measure_overflow(page) <= 0, (path, width)
            assert page.evaluate("window.__ran") is None
            assert page.locator("main img, main script, main iframe, [hx-trigger=load]").count() == 0
    page.goto(f"{visit.site.url}/pins/?project={artifact_run.project}")
    expect(page.locator("#pins")).to_contain_text(re.compile("<img src=x onerror="))
    page.get_by_role("button", name=re.compile("^Remove .* from the plan$")).last.click()
    page.get_by_role("button", name=re.compile("Save as revision")).click()
    expect(page.locator("main")).to_contain_text("Saved revision")


def test_a_range_is_pinned_by_one_form_and_folds_to_one_line(visit: Visit, training: Training) -> None:
    for step in range(1, 6):
        training.push_and_wait(step, 4)
        register_artifact(training, step)
    page = visit.go(get_plan_path(training, "range"))
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


def test_the_page_is_live_again_when_the_form_of_a_range_is_closed_without_an_answer(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    register_artifact(training, 1)
    page = visit.go(get_plan_path(training, "stopped"))
    page.keyboard.press("a")
    page.select_option("#range-run", training.uid)
    page.fill("#range-first", "1")
    page.fill("#range-last", "1")
    intercept(page, "**/pins/range/", lambda route: route.fulfill(status=204))  # as if the person had stopped it
    with page.expect_response("**/pins/range/"):
        page.keyboard.press("Enter")
    training.product.post("pins/", {"run": training.uid, "step": 1, "note": "from elsewhere"})
    page.wait_for_timeout(500)  # for the notification
    expect(page.locator("#pins")).not_to_contain_text("from elsewhere")
    page.keyboard.press("Escape")
    expect(page.locator("#pins")).to_contain_text("from elsewhere")
    visit.clear_faults()


def test_lines_removed_quickly_and_a_folded_range_leave_the_plan(visit: Visit, training: Training) -> None:
    """Each click stops the request of the click before it."""
    for step in range(1, 9):
        training.push_and_wait(step, 4)
        register_artifact(training, step)
    page = visit.go(get_plan_path(training, "removal"))
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


def test_forms_of_an_open_page_work_after_signing_in_again_in_another_tab(visit: Visit, artifact_run: Training) -> None:
    page = visit.go(f"/runs/{artifact_run.uid}/steps/1/")
    pins = visit.context.new_page()
    artifact_run.product.post("pins/", {"run": artifact_run.uid, "step": 2, "note": "one\ntwo"})
    pins.goto(f"{visit.site.url}/pins/?project={artifact_run.project}")
    visit.context.clear_cookies(name="rolloutdeck_csrf")
    other = visit.context.new_page()
    other.goto(visit.site.url)  # it gets another token
    page.keyboard.press("p")
    page.locator("#pin").get_by_role("button", name=re.compile("^Pin")).click()
    expect(page.locator("#pin")).to_contain_text("Unpin")
    pins.locator("#pins tr").filter(has_text=artifact_run.name).locator(".note summary").filter(has_text="two").click()
    note = pins.locator(".note details[open] textarea")
    expect(note).to_have_value("one\ntwo")
    note.fill("one\ntwo\nthree")
    pins.locator(".note details[open]").get_by_role("button", name="Save").click()
    expect(pins.locator(".note textarea").filter(has_text="three")).to_have_count(1)
    rows = artifact_run.product.get(f"pins/?project={artifact_run.project}")["results"]
    assert "one\ntwo\nthree" in [row["note"] for row in rows]
