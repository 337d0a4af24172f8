"""The charts of a run and the list of runs: by keyboard, and as links for other users."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.support.charts import UNPLACED, find_chart, log_metrics
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training, generations

pytestmark = NGINX


def test_a_link_to_charts_opens_the_same_charts_for_another_user(
    open_visit: Callable[..., Visit], training: Training, mate: Any
) -> None:
    other = training.start_another("charts-other")
    log_metrics(training, 1.0)
    log_metrics(other, 2.0)
    page = open_visit().go(f"/runs/{training.uid}/")
    count = page.locator("#chart-count")
    expect(count).to_have_text("5 of 5 charts")
    expect(page.locator(".constants summary")).to_have_text("constant: 1 metric")
    page.keyboard.press("v")  # loads the list before the URL changes
    expect(page.locator("#overlay a").first).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("up|down")
    expect(count).to_have_text("2 of 5 charts")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    page.locator("#smooth").fill("0.5")
    page.keyboard.press("v")
    page.locator("#over-words").fill(other.name)
    expect(page.locator("#overlay a:visible")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**runs=*")
    expect(find_chart(page, "actor/up").locator("i")).to_have_text(["20", "40"])
    page.locator("nav[aria-label=Axis] a", has_text="time").click()
    page.wait_for_url("**x=time*")
    for part in ("m=up|down", "log=1", "smooth=0.5", f"runs={other.uid}"):
        assert part in page.url.replace("%7C", "|"), part

    other_page = open_visit(mate).page
    other_page.goto(page.url)
    expect(other_page.locator("#chart-count")).to_have_text("2 of 5 charts")
    expect(other_page.locator("#log")).to_have_attribute("aria-pressed", "true")
    expect(other_page.locator("#smooth-value")).to_have_text("0.5")
    expect(other_page.locator(".run-chip")).to_have_count(2)
    expect(find_chart(other_page, "actor/up").locator("i")).to_have_text(["20", "40"])
    other_page.locator("#metrics").fill("(")
    expect(other_page.locator("#metrics-error")).to_contain_text("Invalid pattern:")
    expect(other_page.locator("#chart-count")).to_have_text("2 of 5 charts")


def test_a_closed_group_stays_closed_and_a_point_of_a_chart_leads_to_its_step(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    training.push_and_wait(20, 4)
    page = visit.go(f"/runs/{training.uid}/?show=table")
    cells = page.locator("tr[data-metric='actor/down'] td")
    expect(cells).to_have_text(["-20", "20", "-20", "-1"])
    page.locator("nav[aria-label=View] a", has_text="charts").click()
    page.locator("details.chart-group summary", has_text="actor").click()
    page.wait_for_url("**closed=actor")
    page.reload()
    expect(find_chart(page, "actor/up")).to_be_hidden()
    page.locator("details.chart-group summary", has_text="actor").click()
    curve = find_chart(page, "actor/up")
    expect(curve).to_have_attribute(
        "aria-label", "actor/up: 20. Press the arrow keys to move between steps, Enter to enlarge the chart."
    )
    curve.focus()
    page.keyboard.press("ArrowLeft")
    expect(curve).to_contain_text("20: 20")
    page.keyboard.press("ArrowLeft")
    expect(curve).to_contain_text("19: 19")
    expect(page.locator(".chart-tip")).to_contain_text("actor/up · step 19")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url("**chart=actor/up**")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#large aside header b")).to_have_text("step 20")
    page.keyboard.press("s")
    expect(page.locator("#strip .strip-name")).to_contain_text("step 20")


def test_the_table_of_metrics_keeps_open_sections_while_values_arrive(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    page = visit.go(f"/runs/{training.uid}/?show=table")
    page.locator(".constants summary").click()
    log_metrics(training, 1.0, steps=21)
    expect(page.locator("tr[data-metric='actor/up'] td").first).to_have_text("21")
    expect(page.locator(".constants dl")).to_be_visible()


def test_a_chart_of_several_metrics_names_its_lines_and_draws_one_run(visit: Visit, training: Training) -> None:
    other = training.start_another("charts-several")
    log_metrics(training, 1.0)
    log_metrics(other, 2.0, steps=15)
    page = visit.go(f"/runs/{training.uid}/?runs={other.uid}")
    expect(find_chart(page, "score").locator("i")).to_have_text(["1", "1"])
    seconds = find_chart(page, "seconds")
    expect(seconds.locator("i")).to_have_text(["50", "20"])
    expect(seconds).to_have_attribute("aria-label", re.compile("timing_s/step 50, timing_s/gen 20"))
    colours = seconds.locator("i").evaluate_all("all => all.map((value) => getComputedStyle(value).color)")
    assert len(set(colours)) == 2
    seconds.locator("select").select_option(other.uid)
    page.wait_for_url(f"**one={other.uid}**")
    expect(seconds.locator("i")).to_have_text(["45", "21"])
    seconds.locator(".u-over").hover(position={"x": 5, "y": 20})
    tip = page.locator(".chart-tip")
    expect(tip).to_contain_text("seconds · step 1")
    expect(tip.locator("span")).to_have_text(["timing_s/step31", "timing_s/gen21"])
    title, values = seconds.locator(".chart-name"), find_chart(page, "score").locator(".chart-values")
    assert "…" not in title.inner_text() + values.inner_text()


def test_reward_parts_that_only_samples_have_are_stacked(visit: Visit, training: Training) -> None:
    for step in (1, 2, 3):
        rows = generations(step, 4)
        for n, row in enumerate(rows):
            row["rewards"] = {"acc": float(n < step), "format": 0.5 * n}
            row["score"] = sum(row["rewards"].values())
        training.push_and_wait(step, 4, rows)
    page = visit.go(f"/runs/{training.uid}/")
    parts = find_chart(page, "reward parts")
    expect(parts).to_have_attribute("aria-label", re.compile(r"samples/parts/acc 0\.75, samples/parts/format 0\.75"))
    expect(parts.locator("i")).to_have_text(["0.75", "0.75"])
    # At the last step each part is 0.75: two areas of one height, one on the other.
    page.wait_for_load_state("networkidle")
    lower, upper = parts.evaluate(AREA_HEIGHTS)
    assert lower == pytest.approx(upper, abs=0.1) and lower > 0.3


# The two most frequent colours above the last step of a chart, as parts of the height of the plot area.
AREA_HEIGHTS = """box => {
  const canvas = box.querySelector("canvas"), over = box.querySelector(".u-over").getBoundingClientRect();
  const frame = canvas.getBoundingClientRect(), ratio = canvas.width / frame.width;
  const [x, y] = [(over.right - frame.left - 4) * ratio, (over.top - frame.top) * ratio].map(Math.round);
  const { data } = canvas.getContext("2d").getImageData(x, y, 1, Math.round(over.height * ratio));
  const counts = {};
  for (let at = 0; at < data.length; at += 4) {
    const colour = data.slice(at, at + 4).join();
    if (data[at + 3]) counts[colour] = (counts[colour] ?? 0) + 4 / data.length;
  }
  return Object.values(counts).sort((a, b) => b - a).slice(0, 2);
}"""


# How many pixels are drawn at each of these parts of the width of the plot area.
COLUMN_PIXELS = """(box, parts) => {
  const canvas = box.querySelector("canvas"), over = box.querySelector(".u-over").getBoundingClientRect();
  const frame = canvas.getBoundingClientRect(), ratio = canvas.width / frame.width;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const [top, bottom] = [over.top, over.bottom].map((y) => Math.round((y - frame.top) * ratio));
  return parts.map((part) => {
    const x = Math.round((over.left - frame.left + part * over.width) * ratio);
    const alphas = Array.from({ length: bottom - top }, (_, n) => data[4 * ((top + n) * canvas.width + x) + 3]);
    return alphas.filter(Boolean).length;
  });
}"""


# Where the canvas has the colour of flags, as parts of the height of the plot area: 1 is its lower edge.
FLAG_ROWS = """box => {
  const canvas = box.querySelector("canvas"), over = box.querySelector(".u-over").getBoundingClientRect();
  const { width, height } = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const probe = Object.assign(document.createElement("i"), {style: "color: var(--flagged)"});
  document.body.append(probe);
  const colour = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  const rows = new Set();
  for (let at = 0; at < data.length; at += 4)
    if (colour.every((part, n) => part === data[at + n])) rows.add(Math.floor(at / 4 / width));
  const top = canvas.getBoundingClientRect().top, ratio = canvas.getBoundingClientRect().height / height;
  return [...rows].map((row) => (top + row * ratio - over.top) / over.height);
}"""


def test_ticks_of_events_are_below_the_curves(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    training.push_and_wait(20, 4)
    sample = training.list_samples(20)[0]["id"]
    message = training.server.send_json("POST", "flags/", {"sample": sample})
    assert message.is_success, message.error_message
    page = visit.go(f"/runs/{training.uid}/")
    expect(find_chart(page, "actor/down").locator("canvas")).to_be_visible()
    rows = find_chart(page, "actor/down").evaluate(FLAG_ROWS)
    assert rows and min(rows) >= 1


def test_nan_values_are_a_gap_in_the_line_and_named_if_they_are_the_last(visit: Visit, training: Training) -> None:
    values = [1.87, 1.87, 1.87, 1.87, math.nan, math.nan, math.nan, 1.87, 1]
    log_share(training, values)
    page = visit.go(f"/runs/{training.uid}/")
    expect(find_chart(page, "share").locator("i")).to_have_text("1")
    page.wait_for_load_state("networkidle")
    line, gap = find_chart(page, "share").evaluate(COLUMN_PIXELS, [1.5 / 8, 4.5 / 8])
    assert gap < line
    log_share(training, [*values, math.nan])
    expect(find_chart(page, "share").locator("i")).to_have_text("NaN")


def log_share(training: Training, values: list[float]) -> None:
    points = [{"step": step, "values": {"share": value}} for step, value in enumerate(values, start=1)]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message


def test_a_metric_cannot_hide_its_name(visit: Visit, training: Training) -> None:
    """Characters that are invisible or turn the text around show their code, as in names of runs."""
    points = [{"step": step, "values": {"loss\u202egnp.exe": 1.0 * step}} for step in range(1, 4)]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message
    page = visit.go(f"/runs/{training.uid}/")
    expect(page.locator(".chart-name")).to_have_text(["loss<U+202E>gnp.exe"])
    page.goto(f"{page.url}?show=table")
    expect(page.locator(".metric-table tbody th")).to_have_text(["loss<U+202E>gnp.exe"])


def test_a_log_axis_names_the_values_that_it_cannot_show(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    shares = [0.109375, 0.5, 0.8203125]  # uPlot's own ticks of this range have no end
    log_share(training, shares)
    page = visit.go(f"/runs/{training.uid}/?log=1")
    find_chart(page, "share").scroll_into_view_if_needed()
    expect(find_chart(page, "share").locator("i")).to_have_text("0.82")
    log_share(training, [1e-306, 1.0, 0.75])  # the margin below would be 0
    expect(find_chart(page, "share").locator("i")).to_have_text("0.75")
    spike = find_chart(page, "actor/spike")
    spike.scroll_into_view_if_needed()
    expect(spike.locator(".chart-note")).to_have_text(UNPLACED)
    page.keyboard.press("l")
    expect(spike.locator(".chart-note")).to_be_hidden()


def test_charts_of_queries_are_added_shared_and_pinned_for_the_project(
    open_visit: Callable[..., Visit], training: Training, mate: Any
) -> None:
    log_metrics(training, 1.0)
    for step in (1, 2):
        training.push_and_wait(step, 4)
    visit = open_visit()
    page = visit.go(f"/runs/{training.uid}/")
    expect(find_chart(page, "actor/up")).to_be_visible()
    page.keyboard.press("n")
    form = page.locator("#add-chart")
    page.keyboard.type("is:nothing")
    page.keyboard.press("Enter")
    expect(form.locator("#add-chart-error")).to_contain_text("is:nothing")
    started = {"step_kind": "global_step", "steps": [], "values": [], "counts": [], "done": 1, "total": 2}
    answers = [{**started, "complete": False}]  # a long run: the key is not in the newest steps

    def answer(route: Route) -> None:
        if answers:
            route.fulfill(json=answers.pop())
        else:
            route.continue_()

    intercept(page, re.compile("query-curve.*nonsense"), answer)
    form.locator("[name=q]").fill("nonsense=1")
    page.keyboard.press("Enter")
    expect(form.locator("#add-chart-error")).to_contain_text("nonsense")
    visit.faults.clear()  # the refused queries
    form.locator("[name=q]").fill("score<0.1")
    form.evaluate("(form) => ['[type=submit]', '[data-cancel]'].forEach((part) => form.querySelector(part).click())")
    expect(form.locator("[type=submit]")).to_be_enabled()  # the query is checked
    page.keyboard.press("n")
    form.locator("[name=q]").fill("score<0.5")
    page.keyboard.press("Enter")
    expect(form).to_be_hidden()
    added = find_chart(page, "share of score<0.5")
    expect(added.locator("i")).to_have_text(["0.5"])
    expect(added).to_be_focused()
    assert page.url.count("ask=") == 1, "not the cancelled one"
    other_page = open_visit(mate).page
    other_page.goto(page.url)
    expect(find_chart(other_page, "share of score<0.5").locator("i")).to_have_text(["0.5"])
    other_page.keyboard.press("n")
    other_page.locator("#add-chart [name=among]").fill("score>=0 or /a|b/")
    other_page.locator("#add-chart [name=q]").fill("score<0.5")
    other_page.keyboard.press("Enter")
    expect(find_chart(other_page, "share of score<0.5 among score>=0 or /a|b/").locator("i")).to_have_text(["0.5"])
    training.push_and_wait(3, 8, generations(3, 8)[:4] + [{**row, "score": 0.9} for row in generations(3, 8)[4:]])
    expect(added.locator("i")).to_have_text(["0.5"])

    with page.expect_response("**/charts/") as saved:
        page.keyboard.press("p")
    assert saved.value.ok
    expect(page).not_to_have_url(re.compile("ask="))
    pinned = "details[data-group=pinned] figure"
    expect(page.locator(pinned)).to_have_count(1)
    find_chart(page, "actor/up").focus()
    with page.expect_response("**/charts/"):
        page.keyboard.press("p")
    with page.expect_response("**/charts/"):
        page.keyboard.press("<")
    with page.expect_response("**/charts/"):
        find_chart(page, "score").locator(".chart-name").drag_to(
            find_chart(page, "actor/up"), target_position={"x": 5, "y": 60}
        )
    with page.expect_response("**/charts/"):
        find_chart(page, "score").focus()
        page.keyboard.press("z")
    other_page.goto(page.url)
    expect(other_page.locator(f"{pinned} .chart-name")).to_have_text(["score", "actor/up", "share of score<0.5"])
    expect(find_chart(other_page, "score")).to_have_class(re.compile("wide"))
    page.keyboard.press("Enter")
    expect(page.locator("#large [data-arrange=pin]")).to_have_attribute("aria-pressed", "true")
    for key in ("score", "actor/up", "query:share|train||score<0.5"):
        page.goto(f"{page.url.split('?')[0]}?chart={key}")
        with page.expect_response("**/charts/"):
            page.locator("#large [data-arrange=pin]").click()
    page.keyboard.press("Escape")
    expect(page.locator(pinned)).to_have_count(0)


def test_selected_text_that_is_dragged_is_no_chart(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    page = visit.go(f"/runs/{training.uid}/")
    expect(find_chart(page, "actor/up").locator("i")).to_have_text("20")
    heading = page.locator("[data-charts] summary").first
    heading.evaluate("heading => getSelection().selectAllChildren(heading)")
    selected = page.evaluate("getSelection().toString()")
    page.evaluate("addEventListener('dragstart', (event) => (carried = event.dataTransfer.getData('text/plain')))")
    heading.drag_to(find_chart(page, "actor/up"), source_position={"x": 30, "y": 10})
    assert selected and page.evaluate("carried") == selected


def test_charts_pinned_by_others_are_kept_and_unsaved_pins_are_not_shown(visit: Visit, training: Training) -> None:
    own = Training(training.product, training.name, f"{training.project}-pins")  # no other test arranges its charts
    log_metrics(own, 1.0)
    address = f"projects/{own.project}/charts/"
    page = visit.go(f"/runs/{own.uid}/")
    pinned = page.locator("details[data-group=pinned] .chart-name")
    other_changes = [{"version": 0, "pinned": ["of-another-run", "actor/up"]}]

    def save_other_change_first(route: Route) -> None:
        if other_changes:
            own.server.send_json("PATCH", address, other_changes.pop())
        route.continue_()

    intercept(page, "**/charts/", save_other_change_first)
    find_chart(page, "actor/down").focus()
    later = "const later = document.querySelector('[data-arrange=later]');"
    page.evaluate(f"() => {{ {later} later.click(); later.click(); }}")
    expect(page.locator(".toast")).to_contain_text("Another user changed the charts of this project.")
    expect(pinned).to_have_text(["actor/up"])
    assert own.product.get(address)["order"] == [], "the second change is not sent either"
    find_chart(page, "actor/down").focus()
    for key in ("p", "<"):
        with page.expect_response("**/charts/"):
            page.keyboard.press(key)
    expect(pinned).to_have_text(["actor/down", "actor/up"])
    assert own.product.get(address)["pinned"] == ["of-another-run", "actor/down", "actor/up"]

    page.unroute_all()
    intercept(page, "**/charts/", lambda route: route.abort())
    find_chart(page, "actor/spike").focus()
    page.keyboard.press("p")
    expect(page.locator(".toast")).to_have_text("Server unreachable. Not saved; try again.")
    expect(pinned).to_have_count(2)
    page.unroute_all()
    with page.expect_response("**/charts/"):
        page.keyboard.press("p")
    assert own.product.get(address)["pinned"][-1] == "actor/spike"
    assert [fault for fault in visit.faults if not re.search("412|ERR_FAILED", fault)] == []
    visit.clear_faults()  # what was refused, and the request that failed


def test_groups_of_runs_are_drawn_as_mean_and_range_or_as_lines(visit: Visit, training: Training) -> None:
    other = training.start_another("charts-twin")
    for run, rate in ((training, 1.0), (other, 3.0)):
        log_metrics(run, rate)
        message = run.server.send_json("PATCH", f"runs/{run.uid}/", {"tags": ["twins"]})
        assert message.is_success, message.error_message
    page = visit.go(f"/runs/{training.uid}/")
    page.keyboard.press("v")
    page.locator("#overlay a", has_text="tag:twins").click()
    page.wait_for_url("**groups=tag:twins**")
    up = find_chart(page, "actor/up")
    expect(up.locator(".chart-values")).to_have_text("40")
    up.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#large tbody th")).to_have_text("twins, mean of 2")
    expect(page.locator("#large tbody td").nth(1)).to_have_text("2 – 40")
    page.keyboard.press("b")
    page.wait_for_url("**band=0**")
    expect(page.locator("#large tbody td.num:nth-child(2)")).to_have_text(["20", "60"])


def test_runs_are_selected_by_key_and_by_span_and_tagged_together(visit: Visit, training: Training) -> None:
    tag = f"spanned{training.project}"
    for name in ("span-a", "span-b", "span-c"):
        training.start_another(name)
    page = visit.go(f"/?sort=name&group=none&project={training.project}")
    page.locator("#q").fill("span-")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=span-**")
    boxes = page.locator("[data-pick]")
    expect(boxes).to_have_count(3)
    expect(page.locator(".run-name").first).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("1 selected")
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("")
    boxes.nth(0).click()
    boxes.nth(2).click(modifiers=["Shift"])
    expect(page.locator("[data-picked]")).to_have_text("3 selected")
    page.locator("#tag").fill(tag)
    page.keyboard.press("Enter")
    expect(page.locator(".banner")).to_contain_text(f"Tag {tag} added to 3 runs.")
    expect(page.locator("#q")).to_have_value("span-")
    page.locator("a.tag", has_text=tag).first.click()
    expect(page.locator("#q")).to_have_value(f"tag:{tag}")
    expect(page.locator(".run-name")).to_have_count(3)
