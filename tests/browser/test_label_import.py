"""Labels of a file that the page of exports imports."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training

pytestmark = DIRECT


def test_rows_are_sent_unchanged_and_those_not_imported_can_be_downloaded(
    visit: Visit, training: Training, tmp_path: Path
) -> None:
    training.push_and_wait(1, 2)
    place = {"run": training.name, "split": "train", "step": 1, "index": 0, "name": "review", "value": "ok"}
    big = 2**53 + 1  # a number that JavaScript cannot hold
    lines = [{**place, "group": "0"}, {**place, "group": big, "problem": "of the last import"}]
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + "no JSON\n")
    page = visit.go(f"/export/?project={training.project}")
    box = page.locator(".label-import")
    box.locator("input[type=file]").set_input_files(file)
    visit.context.set_offline(True)
    box.get_by_role("button", name="Import").click()
    expect(box.get_by_role("status")).to_contain_text("The server does not answer.")
    visit.context.set_offline(False)
    box.get_by_role("button", name="Import").click()
    expect(box.get_by_role("status")).to_have_text("3 rows: 1 new, 0 changed, 0 unchanged, 2 not imported.")
    with page.expect_download() as download:
        box.get_by_role("link").click()
    left = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert left[0]["group"] == big and left[0]["problem"].startswith("unmatched")
    assert left[1] == {"line": "no JSON", "problem": "invalid: This is not JSON."}
    visit.context.clear_cookies()
    box.get_by_role("button", name="Import").click()
    expect(box.get_by_role("status")).to_contain_text("You are signed out.")
    visit.clear_faults()
