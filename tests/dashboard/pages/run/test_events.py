"""The row of events on a run's overview."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.run import events as event_row
from rollouts.metrics import compact_metric_rows, series
from rollouts.models import Pin, Project, Replay, Run, Sample, Step
from rollouts.runs import events
from rollouts.samples.record import MetricPoint
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def run(project: Project) -> Run:
    """Ten steps of metrics, samples at two of them."""
    run = builders.run(project)
    series.append_points(
        run, builders.attempt(run), [MetricPoint(step, {"loss": 1.0}, "global_step", 1.0) for step in range(1, 11)]
    )
    for step in (2, 6):
        index_file(run, lines(generation(step=step)), step)
    return run


def flag_step(run: Run, step: int, user: User) -> None:
    builders.flag(Sample.objects.get(step__run=run, step__step=step).pk, user)


def create_pin(run: Run, step: int, user: User, **more: object) -> Pin:
    attempt = builders.attempt(run)
    return Pin.objects.create(project=run.project, run=run, attempt=attempt, step=step, user=user, **more)


def get_page(client: Client, run: Run) -> str:
    return html.unescape(client.get(f"/runs/{run.uid}/").content.decode())


def test_a_run_without_events_has_no_row(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    assert events.load_run_events(run) is None
    assert "events-row" not in get_page(client, run)


def test_flags_pins_and_replayed_steps_link_to_their_steps(run: Run, client: Client, mate: User) -> None:
    flag_step(run, 2, mate)
    create_pin(run, 6, mate)
    create_pin(run, 7, mate, removed_at=timezone.now())
    for step, outcome in ((8, "hit"), (9, "miss")):
        Replay.objects.create(run=run, attempt=builders.attempt(run), step=step, outcome=outcome)
    client.force_login(mate)
    rendered = get_page(client, run)
    listed = re.findall(r'<a href="([^"]*)">(step [^<]*)</a>', collapse_spaces(rendered))
    assert listed == [
        (f"/runs/{run.uid}/nearest/8/", "step 8: replayed"),
        (f"/runs/{run.uid}/nearest/6/", "step 6: pinned"),
        (f"/runs/{run.uid}/steps/2/?q=is:flagged", "step 2: 1 flag"),
    ]
    for link, message in listed:
        assert (f'<a href="{link}" tabindex="-1"><title>{message}</title>' in collapse_spaces(rendered)) == (
            "8" not in message
        )
        assert client.get(link, follow=True).status_code == 200
    assert 'data-ticks="flagged@2 pinned@6 "' in rendered


def test_the_row_shows_the_number_of_flagged_samples(run: Run, client: Client, mate: User) -> None:
    flag_step(run, 2, mate)
    Step.objects.filter(run=run, step=2).update(flags=3)
    client.force_login(mate)
    assert re.search(r"flagged\s*<b>3</b>", get_page(client, run))


def test_a_step_has_the_same_position_in_all_strips_and_a_replay_is_drawn_once(
    run: Run, client: Client, mate: User
) -> None:
    flag_step(run, 6, mate)
    for step in (2, 6, 14):
        Replay.objects.create(run=run, attempt=builders.attempt(run), step=step, outcome="hit")
    client.force_login(mate)
    rendered = collapse_spaces(get_page(client, run))

    def center(x: str, width: str) -> float:
        return round(float(x) + float(width) / 2, 1)

    bar = re.search(r'<title>step 6 · [^<]*</title><rect class="hit" x="([\d.]+)%" width="([\d.]+)%"', rendered)
    cell = re.search(
        r'<title>step 6: replayed[^<]*</title><rect class="hit-area" x="([\d.]+)%" width="([\d.]+)%"', rendered
    )
    mark = re.search(r'<title>step 6: 1 flag</title><rect x="([\d.]+)%"', rendered)
    assert bar and cell and mark
    assert center(*bar.groups()) == center(*cell.groups()) == round(float(mark[1]), 1) == round(100 * 7 / 17, 1)
    assert 'class="reuse"' not in rendered.split('class="strip-bars"')[1].split("</svg>")[0]


def test_a_restart_is_shown_at_the_first_step_that_it_recorded(run: Run) -> None:
    series.append_points(
        run, builders.attempt(run, "again"), [MetricPoint(step, {"loss": 2.0}, "global_step", 1.0) for step in (5, 6)]
    )
    builders.attempt(run, "silent so far")
    result = events.load_run_events(run)
    assert result is not None
    assert [(event.kind, event.step, event.count) for event in result.events] == [("restarted", 5, 2)]
    assert (result.first_step, result.last_step) == (1, 10)
    assert compact_metric_rows(run.pk, min_rows=1) == 12
    assert events.load_run_events(run) == result


def test_a_failure_is_shown_at_the_last_step_of_the_run(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(outcome="failed")
    run.refresh_from_db()
    result = events.load_run_events(run)
    assert result is not None and [(event.kind, event.step) for event in result.events] == [("failed", 10)]


def test_many_events_share_slots_and_say_how_many_they_are(run: Run, mate: User) -> None:
    attempt = builders.attempt(run)
    Replay.objects.bulk_create(Replay(run=run, attempt=attempt, step=n, outcome="hit") for n in range(1, 1001))
    create_pin(run, 6, mate)
    result = events.load_run_events(run)
    assert result is not None
    rendered = event_row.build_event_row(run, result)
    assert (
        len(rendered["marks"]) == event_row.EVENT_SLOTS
        and len(rendered["rows"]) == event_row.MAX_LISTED_EVENTS
        and rendered["more"]
    )
    text = collapse_spaces(render_to_string("run/events.html", {"event_row": rendered}))
    assert f"Showing the latest {event_row.MAX_LISTED_EVENTS}." in text
    assert rendered["marks"][0].title == "step 6: pinned · steps 1 to 11: 11 replayed"
    assert rendered["marks"][0].link.endswith("/nearest/6/")
    assert ("pinned", 6) in rendered["ticks"] and len(rendered["ticks"]) == event_row.CHART_TICK_SLOTS + 1
    assert [rendered["ticks"][0], rendered["ticks"][-1]] == [("replayed", 1), ("replayed", 1000)]


def test_both_splits_of_a_step_are_shown_as_one_step(run: Run, mate: User) -> None:
    index_file(run, lines(generation(step=6)), 6, split="eval", source="val/6.jsonl")
    for split in ("train", "eval"):
        builders.flag(Sample.objects.get(step__run=run, step__step=6, step__split=split).pk, mate)
        create_pin(run, 6, mate, split=split)
    result = events.load_run_events(run)
    assert result is not None
    assert [item.title for item in event_row.build_event_row(run, result)["marks"]] == [
        "step 6: 2 flags · step 6: pinned"
    ]


def test_a_run_with_several_kinds_of_events_takes_eleven_queries(
    run: Run, mate: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    flag_step(run, 2, mate)
    series.append_points(run, builders.attempt(run, "again"), [MetricPoint(5, {"loss": 2.0}, "global_step", 1.0)])
    Run.objects.filter(pk=run.pk).update(outcome="failed")
    run.refresh_from_db()
    with django_assert_num_queries(11):
        result = events.load_run_events(run)
    assert result is not None
    assert [(event.kind, event.step) for event in result.events] == [("flagged", 2), ("restarted", 5), ("failed", 10)]


def test_flags_of_validation_open_its_steps(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(generation(step=3)), 3, split="eval", source="val/3.jsonl")
    flag_step(run, 3, mate)
    client.force_login(mate)
    assert f'href="/runs/{run.uid}/steps/3/?split=eval&q=is:flagged"' in get_page(client, run)
