"""What was reused, step by step, on the overview of a run."""

from __future__ import annotations

import re

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from rollouts.metrics import series
from rollouts.models import Pin, Project, Run, Sample
from rollouts.replay import bindings, outcomes, plans
from rollouts.samples.record import MetricPoint
from tests.dashboard.pages.pins.support import get_panel
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


def test_the_overview_shows_what_was_reused_step_by_step(maintainer_client: Client, pin: Pin, project: Project) -> None:
    next_run = builders.run(project, "later", uid="later")
    plans.save_plan(project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 1)])
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 1, "hit", pin=pin.pk, rows=8, seconds=1.5)
    outcomes.record_replay_outcome(next_run, "a", 2, "miss")
    outcomes.record_replay_outcome(next_run, "a", 3, "refused", pin=pin.pk, reason="rows: 8 pinned, 16 asked")
    page = get_panel(maintainer_client, "/runs/later/", "reuse")
    assert "1 of 3 steps replayed" in page
    assert 'href="/runs/grpo/steps/2/?attempt=files"' in page and "default@1" in page
    assert "rows: 8 pinned, 16 asked" in page and "time saved: unknown" in page


def test_a_replayed_step_leads_to_its_source(maintainer_client: Client, pin: Pin, project: Project) -> None:
    next_run = builders.run(project, "later", uid="later")
    for step, outcome in ((1, "hit"), (2, "miss"), (3, "refused")):
        index_file(next_run, lines(generation(step=step)), step)
        outcomes.record_replay_outcome(
            next_run, "files", step, outcome, pin=pin.pk, reason="rows differ" if step == 3 else ""
        )
    first, second, third = (get_panel(maintainer_client, f"/runs/later/steps/{step}/", "pin") for step in (1, 2, 3))
    assert "↺ replayed: grpo step 2" in first and 'href="/runs/grpo/steps/2/?attempt=files"' in first
    assert "replay" not in second.partition("<details")[0]
    assert "replay refused: grpo step 2" in third and "rows differ" in third


def test_many_replayed_steps_take_as_many_queries_as_one(maintainer_client: Client, pin: Pin, project: Project) -> None:
    next_run = builders.run(project, "later", uid="later")
    counts = []
    for steps in (range(1), range(1, 3), range(3, 30)):  # the first request fills caches
        for step in steps:
            outcomes.record_replay_outcome(next_run, "files", step, "hit", pin=pin.pk)
        with CaptureQueriesContext(connection) as queries:
            get_panel(maintainer_client, "/runs/later/", "reuse")
        counts.append(len(queries))
    assert counts[2] == counts[1]


def test_a_sample_of_a_replayed_step_says_where_it_came_from(
    maintainer_client: Client, pin: Pin, project: Project
) -> None:
    next_run = builders.run(project, "later", uid="later")
    for step, outcome in ((1, "hit"), (2, "miss"), (3, "refused")):
        index_file(next_run, lines(generation(step=step)), step)
        outcomes.record_replay_outcome(next_run, "files", step, outcome, pin=pin.pk)
    sample_ids = [Sample.objects.get(step__run=next_run, step__step=step).pk for step in (1, 2, 3)]
    first, second, third = (get_panel(maintainer_client, f"/samples/{pk}/", "sample") for pk in sample_ids)
    link = r'<a class="tag reused clip" href="/runs/grpo/steps/2/\?attempt=files"[^>]*>↺ grpo step 2</a>'
    assert re.search(link, collapse_spaces(first))
    assert "tag reused" not in second and "tag reused" not in third
    prefetched = maintainer_client.get("/samples/", {"of": ",".join(sample_ids)}).json()
    assert ["tag reused" in prefetched[pk] for pk in sample_ids] == [True, False, False]


def test_a_run_without_a_plan_has_no_reuse_strip(maintainer_client: Client, run: Run) -> None:
    assert get_panel(maintainer_client, "/runs/grpo/", "reuse").strip() == ""


def test_the_prefix_cache_of_the_engine_is_shown_separately_with_its_own_name(
    maintainer_client: Client, run: Run
) -> None:
    points = [MetricPoint(step=step, values={"rollout/prefix_cache_hit_rate": step / 10}) for step in range(1, 6)]
    series.append_points(run, run.attempts.get(), points)
    page = get_panel(maintainer_client, "/runs/grpo/", "reuse")
    assert "KV prefix-cache hit rate" in page and "rollout/prefix_cache_hit_rate" in page
    assert "steps replayed" not in page
