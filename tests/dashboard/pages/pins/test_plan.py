"""The plan on its page: drafts, revisions, conflicts, and what it would do to the last run."""

from __future__ import annotations

import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.protocol import compatibility
from rollouts.models import AuditEntry, Flag, Pin, Project, Run, Sample
from rollouts.pins import pins
from rollouts.replay import plans
from tests.dashboard.pages.pins.support import FACTS, body, count_segments, panel, remote_artifact, saving
from tests.rollouts.support.verl_batches import V0, ready, worked
from tests.support import builders
from tests.support.html import squeeze

pytestmark = pytest.mark.one_database

GENERATED = r"<title>step \d+: generate</title>|</svg>\s*generate\b"  # a step of the preview, the legend


def test_a_draft_shows_what_it_would_do_before_it_is_saved(signed: Client, pin: Pin) -> None:
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&steps=12"
    page = body(signed, url)
    assert (count_segments(page, "hit"), count_segments(page, "none")) == (1, 11) and len(
        re.findall(GENERATED, page)
    ) == 12
    assert "step 3: replay grpo step 2" in page and "The run replays 1 step and generates 11." in page
    page = body(signed, url.replace("cache", "repeat_last"))
    assert (count_segments(page, "hit"), count_segments(page, "none")) == (10, 2)
    assert "The run replays 10 steps and generates 2." in page
    assert plans.find_current_revision(pin.project) is None


def test_a_plan_is_saved_and_its_revisions_are_told(signed: Client, pin: Pin) -> None:
    response = signed.post("/pins/plan/", saving(0, (pin.pk, 3)))
    assert (response.status_code, response.headers["Location"]) == (303, "/pins/?project=math")
    page = body(signed, "/pins/")
    assert "Saved revision 1" in page and "step 3 now replays grpo step 2" in page
    assert "rolloutdeck pull --project math --run NEXT-RUN" in page and "ROLLOUTDECK_PLAN=default@1" in page
    signed.post("/pins/plan/", saving(1, (pin.pk, 4), action="repeat"))
    assert "step 3 no longer replays grpo step 2" in body(signed, "/pins/")


def test_who_saves_second_is_told_and_loses_nothing(signed: Client, pin: Pin, run: Run, owner: User) -> None:
    plans.save_plan(pin.project, "default", owner, if_match=0, action="repeat", entries=[(pin, 7)])
    response = signed.post("/pins/plan/", saving(0, (pin.pk, 3)))
    page = body(signed, response.headers["Location"])
    assert "olga saved revision 1" in page
    assert "step 7 now replays grpo step 2" in page and "step 3 now replays grpo step 2" in page
    assert 'name="target"' in page and 'value="3"' in page
    assert re.search(r'value="save"[^>]*disabled', page)
    last = plans.find_current_revision(pin.project)
    assert last is not None and last.number == 1
    on_top = re.search(r'href="([^"]*)">Rebase my draft on revision 1', squeeze(page))
    assert on_top
    mine = parse_qs(urlsplit(on_top.group(1).replace("&amp;", "&")).query)
    assert mine["base"] == ["1"] and mine["target"] == ["3"]
    signed.post("/pins/plan/", saving(1, (pin.pk, 3)))
    last = plans.find_current_revision(pin.project)
    assert last is not None and (last.number, last.action) == (2, "cache")


def test_a_pin_is_added_behind_the_last_target_and_removed(signed: Client, pin: Pin) -> None:
    response = signed.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&add={pin.pk}")
    assert response.status_code == 302
    assert "target=5" in response.headers["Location"] and "target=6" in response.headers["Location"]
    htmx = {"HX-Request": "true", "HX-Target": "plan"}
    response = signed.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&remove=0", headers=htmx)
    assert response.headers["HX-Replace-Url"] == "/pins/?project=math"


def test_a_plan_of_a_trainer_that_counts_from_0_begins_there_and_names_it(
    signed: Client, pin: Pin, run: Run, keeper: User
) -> None:
    remote_artifact(
        run, 7, facts={**FACTS, "format": "slime-rollout"}, files={"7.pt": {"sha256": "7" * 64, "bytes": 9}}
    )
    first = pins.pin_step(run, 7, keeper)[0]
    page = body(signed, f"/pins/?base=0&action=cache&pin={first.pk}&target=0&steps=3")
    assert "the trainer does not learn from them" in page and "the prompt and all its responses are skipped" not in page
    assert "Plan preview: steps 0 to" in page and (count_segments(page, "hit"), count_segments(page, "none")) == (1, 3)
    assert "step 0: replay grpo step 7" in page
    added = signed.get(f"/pins/?base=0&action=cache&add={first.pk}").headers["Location"]
    assert parse_qs(urlsplit(added).query)["target"] == ["0"]
    signed.post("/pins/plan/", saving(0, (first.pk, 0), steps="3"))
    page = body(signed, "/pins/?project=math&steps=3")
    assert "--into replay --trainer slime --steps 4" in page and "ROLLOUTDECK_PLAN=default@1" in page
    assert "runtime_env" not in page  # verl's own way to hand it to its workers
    strip = signed.get(f"/api/v1/projects/math/replay-plan/?run={run.uid}&steps=2").json()["strip"]
    assert strip == [[0, 0], [1, None], [2, None]]
    remote_artifact(run, 8, facts={**FACTS, "format": "gen_batch"}, files={"8.dp": {"sha256": "8" * 64, "bytes": 9}})
    later = pins.pin_step(run, 8, keeper)[0]
    page = body(signed, f"/pins/?base=1&action=cache&pin={later.pk}&target=1")
    assert "Plan preview: steps 1 to" in page and "the prompt and all its responses are skipped" in page
    page = body(signed, f"/pins/?base=1&action=cache&pin={first.pk}&target=0&pin={later.pk}&target=0")
    assert page.count("enter a step number") == 1


def test_a_plan_of_a_trainer_that_generates_nothing_ends_at_the_first_step_without_a_file(
    signed: Client, pin: Pin, run: Run, keeper: User
) -> None:
    remote_artifact(run, 7, facts={**FACTS, "format": "roll-mock"}, files={"7.pkl": {"sha256": "7" * 64, "bytes": 9}})
    mock = pins.pin_step(run, 7, keeper)[0]
    page = body(signed, f"/pins/?base=0&action=cache&pin={mock.pk}&target=0&pin={mock.pk}&target=2&steps=3")
    assert (count_segments(page, "hit"), count_segments(page, "none")) == (1, 3) and not re.search(
        r": generate<|</svg>\s*generate\b", page
    )
    assert "Steps replayed: 1. The run ends at step 1" in page and "the run ends at the first step without one" in page
    assert "step 1: no file to load; the run ends here" in page
    assert "skip it" in page and "generate instead" not in page
    assert "step 2: not reached; the run ends at step 1" in page
    signed.post("/pins/plan/", saving(0, (mock.pk, 0)))
    assert "The trainer then generates nothing" in body(signed, "/pins/?project=math")
    full = body(signed, f"/pins/?base=1&action=repeat_last&pin={mock.pk}&target=0&steps=3")
    assert count_segments(full, "hit") == 4 and "not reached" not in full


def test_the_form_works_without_script(signed: Client, pin: Pin) -> None:
    response = signed.post("/pins/plan/", saving(0, (pin.pk, 3), do="", remove="0"))
    assert (response.status_code, response.headers["Location"]) == (303, "/pins/?project=math")
    response = signed.post("/pins/plan/", saving(0, (pin.pk, 3), do="look", action="repeat"))
    assert "action=repeat" in response.headers["Location"] and "csrf" not in response.headers["Location"]


@pytest.mark.parametrize("targets", [("",), ("x",), ("0",), ("3", "3"), ("9" * 25,), ("-1",)])
def test_targets_that_no_plan_can_have_are_told_and_not_saved(signed: Client, pin: Pin, targets: tuple[str]) -> None:
    data = saving(0) | {"pin": [pin.pk] * len(targets), "target": list(targets)}
    response = signed.post("/pins/plan/", data)
    page = body(signed, response.headers["Location"])
    assert "error-line" in page or "banner error" in page
    assert plans.find_current_revision(pin.project) is None


def test_differences_to_the_last_run_are_refuse_or_warn(signed: Client, pin: Pin, project: Project) -> None:
    request_data = builders.run(
        project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16, "model": "big"}
    )
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3")
    assert "Compatibility with run" in page and request_data.name in page
    table = page[page.index('aria-label="Differences"') :]
    assert table.index("rows") < table.index("model")
    assert table.count("INCOMPATIBLE</span>") == 1 and "Unknown on both sides, not compared" in table
    assert (count_segments(page, "hit"), count_segments(page, "refused")) == (0, 1)
    assert body(signed, f"/pins/?run=grpo&base=0&action=cache&pin={pin.pk}&target=3").count("INCOMPATIBLE</span>") == 0


def test_what_neither_the_pin_nor_the_run_tells_is_no_warning(signed: Client, pin: Pin, project: Project) -> None:
    known = dict.fromkeys(compatibility.REFUSE_FACTS, 1) | pin.artifacts.get().facts
    pin.artifacts.update(facts=known)
    builders.run(project, "next", uid="next", facts=known)
    page = body(signed, f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3")
    assert '<span class="mono">dataset, versions, rollout_correction</span>' in page
    assert "WARN" not in page and ">COMPATIBLE<" in squeeze(page)
    assert "No differences found between the pinned steps and next." in page


def test_a_tokenizer_that_nobody_tells_stays_a_warning(signed: Client, pin: Pin, project: Project) -> None:
    known = {fact: 1 for fact in compatibility.REFUSE_FACTS if fact != "tokenizer"} | pin.artifacts.get().facts
    pin.artifacts.update(facts=known)
    builders.run(project, "next", uid="next", facts=known)
    page = body(signed, f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3")
    assert "WARN 1" in page and ">COMPATIBLE<" not in squeeze(page)
    assert '<span class="mono">tokenizer</span>' in squeeze(page[page.index('aria-label="Differences"') :])


def test_a_run_that_has_told_only_its_config_is_compared_by_it(signed: Client, pin: Pin, project: Project) -> None:
    named = {"use_v1": False, "project_name": "math", "experiment_name": "next"}
    rollout = {"actor_rollout_ref": {"rollout": {"n": 2}}, "trainer": named}
    config = {**rollout, "data": {"train_batch_size": 16, "max_prompt_length": 8, "max_response_length": 8}}
    builders.run(project, "next", uid="next", framework="verl", config=config)
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3")
    table = page[page.index('aria-label="Differences"') :]
    assert re.search(r"INCOMPATIBLE.*?prompts</span>.*?>4<.*?>16<", table, re.DOTALL)


@pytest.mark.parametrize(("state", "said"), [("unsafe", "unsafe"), ("gone", "unavailable")])
def test_what_a_plan_cannot_load_is_not_drawn_as_replayed(signed: Client, pin: Pin, state: str, said: str) -> None:
    pin.artifacts.update(state=state)
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&on_mismatch=stop")
    assert (count_segments(page, "hit"), count_segments(page, "refused")) == (0, 1)
    assert f"incompatible (its files are {said}); the run stops" in page


def test_a_draft_without_what_is_flagged_says_what_it_means_to_the_run(
    signed: Client, project: Project, keeper: User
) -> None:
    run = builders.run(project, "source")
    artifact = ready(run, V0, facts={"role": "rollout", "prompts": 8, "rows": 32, "samples_per_prompt": 4})
    worked(run)
    pin = pins.pin_step(run, artifact.step, keeper)[0]
    request_data = builders.run(project, "next", uid="next", facts={**artifact.facts, "serialisation": "torch"})
    link = f"/pins/?run={request_data.uid}&base=0&action=cache&pin={pin.pk}&target=1"
    assert "INCOMPATIBLE" not in body(signed, f"{link}&exclude_flagged=1")
    sample = Sample.objects.filter(step__run=run, ordinal=5).get()
    Flag.objects.create(run=run, sample=sample.id, step=sample.step, user=keeper)
    assert "INCOMPATIBLE" not in body(signed, link)
    page = body(signed, f"{link}&exclude_flagged=1")
    assert "INCOMPATIBLE 2" in page and count_segments(page, "refused") == 1
    assert re.search(r"prompts.*?>7<.*?>8<", page, re.DOTALL)


def test_a_refusal_is_loosened_in_writing(signed: Client, pin: Pin, project: Project) -> None:
    builders.run(project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16})
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=3"
    assert "INCOMPATIBLE" in body(signed, url)
    signed.post("/settings/math/loosen/", {"fact": "rows", "note": " "})
    assert "INCOMPATIBLE" in body(signed, url)
    signed.post("/settings/math/loosen/", {"fact": "rows", "note": "the loader cuts"})
    page = body(signed, url)
    assert "INCOMPATIBLE" not in page and "the loader cuts" in page and "overridden" in page
    assert AuditEntry.objects.filter(verb="plan.loosen").count() == 1
    signed.post("/settings/math/loosen/", {"fact": "rows"})
    assert "INCOMPATIBLE" in body(signed, url)


def test_a_plan_that_the_api_made_very_long_is_shown_in_part_and_said_so(
    signed: Client, pin: Pin, keeper: User
) -> None:
    entries = [(pin, step) for step in range(1, 3001)]
    plans.save_plan(pin.project, "default", keeper, if_match=0, action="cache", entries=entries)
    started = time.process_time()
    page = panel(signed, "/pins/?project=math", "plan")
    assert time.process_time() - started < 12
    assert "Showing the first 500 entries. This plan has 2500 more; use the API to edit it." in page
