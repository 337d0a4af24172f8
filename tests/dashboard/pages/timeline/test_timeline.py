"""The page of the timeline: the selected step in words, its slowest samples, staleness, and what is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.metrics import series
from rollouts.models import Project, Run
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


def log_steps(run: Run, count: int, slow: int = 0, **more: float) -> None:
    points = [
        MetricPoint(
            step,
            {"timing_s/step": 38.0, "timing_s/gen": 22.0, "timing_s/update_actor": 8.0, **more}
            if step != slow
            else {"timing_s/step": 76.0, "timing_s/gen": 60.0, "timing_s/update_actor": 8.0},
        )
        for step in range(1, count + 1)
    ]
    series.append_points(run, builders.attempt(run), points)
    Run.objects.filter(pk=run.pk).update(version=run.version + 1)
    run.refresh_from_db()


def log_samples(run: Run, step: int, rows: list[dict[str, Any]]) -> None:
    index_file(run, lines(*({"prompt": "q", **row} for row in rows)), step, format="native", source=f"s{step}")
    run.refresh_from_db()


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project)


def open_page(client: Client, run: Run, query: str = "") -> str:
    response = client.get(f"/runs/{run.uid}/timeline/{query}")
    assert response.status_code == 200
    return collapse_spaces(response.content.decode())


def test_a_sentence_says_what_took_most_of_the_step(run: Run, reader: Client) -> None:
    log_steps(run, 9, slow=4)
    page = open_page(reader, run)
    assert "generation took 22 s of 38 s." in page
    assert "<b>step 4, 76 s</b>" in page
    page = open_page(reader, run, "?step=4")
    assert "generation took 60 s of 76 s. 2.0 × the median step." in page
    assert re.search(r'href="[^"]*step=3" data-key="\["', page) and re.search(r'href="[^"]*step=5" data-key="\]"', page)
    assert 'aria-current="true" aria-label="step 4: 76 s"' in page


def test_a_step_without_times_opens_the_nearest(run: Run, reader: Client) -> None:
    log_steps(run, 3)
    assert ">Step 3<" in open_page(reader, run, "?step=900")
    assert ">Step 3<" in open_page(reader, run, "?step=nonsense")


def test_overlap_is_named_and_shown_in_percent(run: Run, reader: Client) -> None:
    values = {"perf/step_time": 40.0, "perf/rollout_time": 30.0, "perf/actor_train_time": 20.0}
    series.append_points(run, builders.attempt(run), [MetricPoint(1, dict(values))])
    page = open_page(reader, run)
    assert "generation took 30 s, 10 s of it while the trainer worked; the trainer waited 20 s." in page
    assert re.search(r"generation busy</dt><dd class=\"mono\">75 %", page)
    assert re.search(r"trainer busy</dt><dd class=\"mono\">50 %", page)
    assert re.search(r"both at once</dt><dd class=\"mono\">25 %", page)


def test_5000_steps_are_240_columns(run: Run, reader: Client) -> None:
    log_steps(run, 5000, slow=777)
    page = open_page(reader, run)
    assert page.partition('id="phase-bars"')[2].partition("</svg>")[0].count('<rect x="') == 240
    assert "A column is 21 steps" in page
    assert "step=777" in page


def test_the_slowest_samples_open_in_samples(run: Run, reader: Client) -> None:
    log_steps(run, 2)
    rows = [
        {
            "response": f"answer {n}",
            "timing": {"generation": 1.0 + n, "tool": 0.5, "reward": 0.1},
            "response_length": 100,
        }
        for n in range(12)
    ]
    log_samples(run, 2, [*rows, {"response": "<script>alert(1)</script>", "timing": {"total": 90}}])
    page = open_page(reader, run)
    assert "8 of 13; median 7.6 s" in page
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    slowest = run.steps.get(step=2).rows.order_by("-duration").first()
    assert slowest is not None and f"/runs/{run.uid}/steps/2/?sel={slowest.pk}" in page
    assert "generation 12 s, tools 0.5 s, reward 0.1 s" in page
    assert f'/runs/{run.uid}/steps/2/?sort=-duration">All by duration' in page


def test_a_new_blind_queue_changes_the_page_although_the_run_has_not_changed(
    run: Run, reader: Client, owner: User
) -> None:
    log_samples(run, 1, [{"response": "answer"}])
    before = reader.get(f"/runs/{run.uid}/timeline/").headers["ETag"]
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    assert reader.get(f"/runs/{run.uid}/timeline/").headers["ETag"] != before


def test_staleness_is_counted_by_versions_behind(run: Run, reader: Client) -> None:
    log_steps(run, 1)
    behind = [0, 1, 1, 2, 5, 7]
    log_samples(
        run,
        1,
        [{"response": f"r{index}", "policy_version": 9 - n, "trainer_version": 9} for index, n in enumerate(behind)],
    )
    page = open_page(reader, run)
    assert "mean 2.67, at most 7" in page
    assert "?q=staleness%3D1" in page and "3 or more: 2 samples" in page
    assert "always on-policy" not in page.partition('id="slowest-title"')[0].replace("synchronous", "")


def test_an_on_policy_step_says_so(run: Run, reader: Client) -> None:
    log_steps(run, 1)
    log_samples(run, 1, [{"response": "r", "policy_version": 4, "trainer_version": 4}])
    assert "<p>always on-policy</p>" in open_page(reader, run)


def test_a_run_without_phases_says_how_to_send_them(run: Run, reader: Client) -> None:
    page = open_page(reader, run)
    assert "This run sends no phases." in page
    for line in ("trainer.logger=", "RolloutdeckCallback()", "log_rollout", "track_with: rolloutdeck", "run.log("):
        assert line in page


def test_unknown_staleness_and_times_are_not_zero(run: Run, reader: Client) -> None:
    log_steps(run, 1)
    log_samples(run, 1, [{"response": "r"}])
    page = open_page(reader, run)
    assert "Not recorded at this step." in page
    assert "The samples of this step have no time of their own." in page


def test_strangers_do_not_see_the_timeline(run: Run, client: Client, stranger: User) -> None:
    client.force_login(stranger)
    assert client.get(f"/runs/{run.uid}/timeline/").status_code == 404


def test_the_overview_links_to_the_timeline(run: Run, reader: Client) -> None:
    assert f'href="/runs/{run.uid}/timeline/"' in reader.get(f"/runs/{run.uid}/").content.decode()


def find_center(pattern: str, page: str, per_percent: float = 1.0) -> float:
    """The center, in percent, of the one box that matches (x, width)."""
    ((x, width),) = re.findall(pattern, page)
    return round((float(x) + float(width) / 2) / per_percent, 1)


def test_a_step_has_the_same_position_in_the_strip_and_in_both_charts(run: Run, reader: Client) -> None:
    points = [
        MetricPoint(step, {"perf/step_time": 40.0, "perf/rollout_time": 30.0, "perf/actor_train_time": 20.0})
        for step in range(1, 25)
    ]
    series.append_points(run, builders.attempt(run), points)
    for step in (8, 16, 20):
        log_samples(run, step, [{"response": "r"}])
    page = open_page(reader, run, "?step=16")
    strip = find_center(r'<title>step 16</title><rect class="hit" x="([\d.]+)%" width="([\d.]+)%"', page)
    column = find_center(r'<title>step 16: 40 s</title><rect x="([\d.]+)" width="([\d.]+)"', page, 10)
    curve = find_center(r'<title>step 16 · [^<]*</title><rect x="([\d.]+)" width="([\d.]+)"', page, 10)
    selected_line = re.search(r'class="overlap-here"[^>]*> ?<line x1="([\d.]+)%"', page)
    assert selected_line and strip == column == curve == round(float(selected_line[1]), 1) == 64.6


def test_an_asynchronous_run_has_curves_of_overlap_and_waiting(run: Run, reader: Client) -> None:
    steps = [(40.0, 30.0, 20.0), (40.0, 40.0, 40.0), (40.0, 10.0, 20.0), (40.0, 30.0, 30.0)]
    points = [
        MetricPoint(number, {"perf/step_time": step, "perf/rollout_time": gen, "perf/actor_train_time": train})
        for number, (step, gen, train) in enumerate(steps, 1)
    ]
    series.append_points(run, builders.attempt(run), points)
    page = open_page(reader, run, "?step=2")
    assert "<title>step 1 · both at once 25 % · trainer waits 50 %</title>" in page
    assert "<title>step 2 · both at once 100 % · trainer waits 0 %</title>" in page
    assert "<title>step 3 · both at once 0 % · trainer waits –</title>" in page  # generation and training in turn
    overlap = re.findall(r'class="line-overlap" d="([^"]*)"', page)[0]
    assert overlap == "M125.0 45.0h0L375.0 0.0L625.0 60.0L875.0 30.0"
    assert re.findall(r'class="line-waiting" d="([^"]*)"', page)[0] == "M125.0 30.0h0L375.0 60.0M875.0 45.0h0"
    assert re.search(r"both at once</dt> ?<dd>100 %", page) and re.search(r"trainer waits</dt> ?<dd>0 %", page)


def test_a_synchronous_run_has_no_overlap_curves(run: Run, reader: Client) -> None:
    log_steps(run, 3)
    assert 'id="overlap"' not in open_page(reader, run)
