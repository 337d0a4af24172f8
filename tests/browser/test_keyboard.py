"""The keyboard: palette, key sequences, other layouts, keys that are switched off, copied links."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training, generations
from tests.browser.test_group import group
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = NGINX


@pytest.fixture
def step_page(visit: Visit, training: Training) -> Page:
    """A page that shows step 2 of 2."""
    for step in (1, 2):
        training.push_and_wait(step, 6)
    return visit.go(f"/runs/{training.uid}/steps/2/")


def dispatch_key(page: Page, **event: Any) -> None:
    """Sends a key event as another keyboard or an input method reports it."""
    page.evaluate(
        "init => document.body.dispatchEvent(new KeyboardEvent('keydown', {bubbles: true, cancelable: true, ...init}))",
        event,
    )


def test_keys_lead_from_the_list_of_runs_to_a_flag_and_back(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6, [*group("a", [0.0, 0.5, 1.0]), *group("b", [0.1, 0.6, 0.9])])
    page = visit.go("/")
    page.keyboard.press("Control+k")
    page.keyboard.type(training.name)
    expect(page.locator("#palette [aria-selected]", has_text=training.name)).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{training.uid}/")
    page.keyboard.press("o")
    expect(page.locator("#going")).to_contain_text("Samples")
    page.keyboard.press("s")
    page.wait_for_url("**/steps/latest/")
    first, second = list_row_ids(page)[:2]
    page.keyboard.press("j")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    page.keyboard.press("k")
    expect(page.locator(f"#sample article[data-id='{first}']")).to_be_visible()
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator(f"#rows tr[data-id='{first}'] .tag.flag")).to_be_visible()
    page.keyboard.press("g")
    expect(page.locator(".board-column")).to_have_count(3)
    page.keyboard.press("d")
    expect(page.locator(".board-column del, .board-column ins").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    for names in (page.locator(".foot-keys span"), page.locator("#help > div dd")):  # only what does something here
        expect(names.filter(has_text="diff")).to_be_visible()
        expect(names.filter(has_text=re.compile(r"\bexpand\b"))).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#rows")).to_be_visible()
    page.keyboard.press("o")
    page.keyboard.press("r")
    expect(page.locator("#runs")).to_be_visible()


@pytest.mark.parametrize(
    ("asked", "best"),
    [
        ("grpo", ["grpo_long", "my-grpo", "lr_grpo"]),
        ("gl", ["grpo_long", "gspo-lr3e-6"]),
        ("team gspo", ["gspo-lr3e-6"]),
    ],
)
def test_the_palette_shows_the_run_that_matches_best_first(step_page: Page, asked: str, best: list[str]) -> None:
    names = ["lr3e_g-r-p-o", "grpo_long", "gspo-lr3e-6", "my-grpo", "other", "lr_grpo"]
    result = {"results": [{"kind": "run", "name": name, "detail": "team", "url": "/"} for name in names]}
    intercept(step_page, "**/go/?*", lambda route: route.fulfill(json=result))
    step_page.keyboard.press("Control+k")
    step_page.keyboard.type(asked)
    runs = step_page.locator("#palette-list .palette-row", has=step_page.locator(".kind", has_text="run"))
    expect(runs.locator("bdi").first).to_have_text(best[0])
    assert runs.locator("bdi").all_inner_texts()[: len(best)] == best


def test_a_run_is_listed_before_actions_whose_description_has_its_name(step_page: Page) -> None:
    result = {"results": [{"kind": "run", "name": "my-reason", "detail": "team", "url": "/"}]}
    intercept(step_page, "**/go/?*", lambda route: route.fulfill(json=result))
    step_page.keyboard.press("Control+k")
    step_page.keyboard.type("reason")  # in the description of the flag
    expect(step_page.locator("#palette-list .palette-row").nth(1)).to_be_visible()
    expect(step_page.locator("#palette-list .palette-row bdi").first).to_have_text("my-reason")


def test_the_palette_goes_to_a_step_and_does_what_the_page_can(step_page: Page, training: Training) -> None:
    page = step_page
    page.get_by_role("button", name="Go to").click()
    page.keyboard.type("1")
    expect(page.locator("#palette [aria-selected]")).to_contain_text("step 1")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{training.uid}/steps/1/**")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type("json view: all fields")
    expect(page.locator("#palette [aria-selected]")).to_contain_text("json")
    page.keyboard.press("Enter")
    expect(page.locator("[data-view=json]")).to_have_attribute("aria-current", "true")
    page.keyboard.press("Control+k")
    page.keyboard.type("nothing is called so")
    expect(page.locator("#palette-status")).to_contain_text("No results for “nothing is called so”")
    page.locator("#palette-box").fill("keyboard")
    expect(page.locator("#palette [aria-selected]")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Enter")
    expect(page.locator("#help")).to_be_visible()


def test_keys_work_by_position_in_a_keyboard_layout_without_latin_letters(step_page: Page) -> None:
    page, ids = step_page, list_row_ids(step_page)
    dispatch_key(page, key="о", code="KeyJ")  # a Russian keyboard's o
    expect(page.locator(f"#rows tr[data-id='{ids[1]}']")).to_have_attribute("aria-selected", "true")
    dispatch_key(page, key=",", code="Slash", shiftKey=True)
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    dispatch_key(page, key="j", code="KeyC")  # Dvorak: what is typed counts
    expect(page.locator(f"#rows tr[data-id='{ids[2]}']")).to_have_attribute("aria-selected", "true")
    dispatch_key(page, key="j", code="KeyJ", isComposing=True)
    dispatch_key(page, key="Process", code="KeyJ", keyCode=229)
    dispatch_key(page, key="k", code="KeyK")
    expect(page.locator(f"#rows tr[data-id='{ids[1]}']")).to_have_attribute("aria-selected", "true")


def test_single_keys_do_nothing_when_they_are_switched_off(step_page: Page, visit: Visit) -> None:
    page, address = step_page, step_page.url.removeprefix(visit.site.url)
    visit.go("/settings/#keys")
    page.locator("#keys button[value=off]").click()
    expect(page.locator("#keys button[value=off]")).to_have_attribute("aria-pressed", "true")
    visit.go(address)
    before = list_selected_ids(page)
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.keyboard.press("Control+k")  # answers still, and after the others
    expect(page.locator("#palette")).to_be_visible()
    assert list_selected_ids(page) == before and page.locator("#going").count() == 0
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Next sample in the list").click()
    expect(page.locator("#rows tr").nth(1)).to_have_attribute("aria-selected", "true")


def test_a_copied_link_opens_to_the_same_rows_selection_and_view(
    visit: Visit, training: Training, open_visit: Callable[..., Visit], mate: Any
) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for step in (1, 2):
        training.push_and_wait(step, 8, generations(step, 8))
    page = visit.go(f"/runs/{training.uid}/steps/latest/?q=score<0.7&sort=-score")
    page.keyboard.press("j")
    page.keyboard.press("i")
    expect(page.locator("[data-view=json]")).to_have_attribute("aria-current", "true")
    page.wait_for_url("**sel=**view=json**")
    seen, chosen = list_row_ids(page), list_selected_ids(page)
    page.keyboard.press("y")
    expect(page.locator(".toast")).to_contain_text("Link copied")
    link = str(page.evaluate("navigator.clipboard.readText()"))
    assert "/steps/2/" in link
    page.evaluate("navigator.clipboard.writeText('')")
    page.get_by_role("contentinfo").get_by_role("button", name="link y").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == link)
    page.keyboard.press("Y")
    expect(page.locator(".toast")).to_contain_text("latest step")
    assert "/steps/latest/" in str(page.evaluate("navigator.clipboard.readText()"))
    training.push_and_wait(3, 8, generations(3, 8))
    other = open_visit(mate).go(link.removeprefix(visit.site.url))
    assert (list_row_ids(other), list_selected_ids(other)) == (seen, chosen) and len(seen) > 2
    expect(other.locator("[data-view=json]")).to_have_attribute("aria-current", "true")


def test_space_presses_what_is_announced_as_a_button(step_page: Page) -> None:
    chip = step_page.locator(".chip[role=button]").first
    chip.focus()
    step_page.keyboard.press("Space")
    expect(step_page.locator(".chip[role=button][aria-pressed=true]")).to_have_count(1)


def test_a_sample_that_a_key_opens_is_named_for_screen_readers(step_page: Page) -> None:
    status = step_page.locator("#sample-status")
    expect(status).to_have_text("")
    step_page.keyboard.press("j")
    expect(status).to_contain_text("train step 2 · score")


def test_a_script_that_is_not_loaded_shows_an_error_that_says_what_to_do(
    step_page: Page, visit: Visit, training: Training
) -> None:
    message = "could not be loaded. Reload the page"
    for script in ("palette/palette.js", "run/charts/index.js"):
        intercept(step_page, f"**/{script}", lambda route: route.abort())
    step_page.keyboard.press("Control+k")
    expect(step_page.locator(".toast")).to_contain_text(message)
    expect(step_page.locator("#palette")).to_be_hidden()
    page = visit.go(f"/runs/{training.uid}/")
    expect(page.locator("[data-charts]")).to_contain_text(message)
    visit.clear_faults()
