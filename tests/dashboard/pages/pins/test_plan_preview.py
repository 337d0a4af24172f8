"""What the page of pins says a plan will do, or did, in the chosen run."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.protocol import compatibility
from rollouts.guidance import save_guidance
from rollouts.models import Artifact, AuditEntry, Pin, Project, Run, Sample
from rollouts.pins import pins
from rollouts.replay import bindings, outcomes, plans
from tests.dashboard.pages.pins.support import (
    FACTS,
    build_plan_form,
    count_segments,
    create_remote_artifact,
    get_page,
    get_panel,
    list_entries,
)
from tests.rollouts.support.push import generation, index_file, lines
from tests.rollouts.support.verl_batches import V0, create_ready_artifact, index_waiting_dumps
from tests.support import builders
from tests.support.html import collapse_spaces

pytestmark = pytest.mark.one_database


def test_prompts_are_compared_with_the_chosen_run(maintainer_client: Client, pin: Pin, run: Run) -> None:
    index_file(run, lines(*(generation("another", str(n), step=4) for n in range(8))), 4)
    index_file(run, lines(*(generation(response=str(n), step=5) for n in range(8))), 5)
    Artifact.objects.update(facts={**FACTS, "rows": 2})
    page = collapse_spaces(
        get_page(maintainer_client, f"/pins/?run=grpo&base=0&action=cache&pin={pin.pk}&target=4&pin={pin.pk}&target=5")
    )
    assert "step 4: grpo step 2, will generate: the prompts differ from those of step 4 in grpo" in page
    assert "step 5: grpo step 2, will replay: step 5 of grpo has the same prompts" in page
    assert (count_segments(page, "hit"), count_segments(page, "miss")) == (1, 1)


def test_conflicts_inside_a_plan_are_shown_without_any_run(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    """A plan with two roles was once saved without a warning, and `pull` left a step out."""
    create_remote_artifact(run, 7, files={"7.dp": {"sha256": "7" * 64, "bytes": 9}})
    create_remote_artifact(
        run, 8, facts={**FACTS, "rows": 16, "prompts": 8}, files={"8.dp": {"sha256": "8" * 64, "bytes": 9}}
    )
    same, other = (pins.pin_step(run, step, maintainer)[0] for step in (7, 8))
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=1&pin={same.pk}&target=2&pin={other.pk}&target=3"
    page = collapse_spaces(get_page(maintainer_client, url))
    assert "1 conflict.</b>Step 3 cannot be in one plan with the others." in page
    assert "8 prompts × 2 responses per step; the plan has 4 prompts × 2 responses" in page
    assert (count_segments(page, "unknown"), count_segments(page, "conflict")) == (2, 1)
    links = [link.replace("&amp;", "&") for link in re.findall(r'class="button small" href="([^"]*)"', page)]
    removed = next(link for link in links if "target=1&" in link and "target=3" not in link)
    assert "1 conflict" not in get_page(maintainer_client, removed)
    button = re.search(r'name="move" value="([\d,]+)">Move to a new plan', page)
    assert button and button[1] == "2"
    form = build_plan_form(0, (pin.pk, 1), (same.pk, 2), (other.pk, 3), do="", move=button[1])
    page = collapse_spaces(get_page(maintainer_client, maintainer_client.post("/pins/plan/", form).headers["Location"]))
    assert "1 conflict" not in page and "Saved default@1." in page
    assert 'Moved 1 step to the new plan<a href="/pins/?project=math&amp;plan=default-2">default-2</a>' in page
    assert list_entries("default") == [(1, pin.pk), (2, same.pk)] and list_entries("default-2") == [(3, other.pk)]


def test_after_the_run_each_line_shows_its_outcome(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User, owner: User
) -> None:
    entries = [(pin, 2), (pin, 4), (pin, 9)]
    plans.save_plan(pin.project, "default", owner, if_match=0, action="cache", entries=entries)
    next_run = builders.run(pin.project, "again", uid="again")
    bindings.bind_run(next_run)
    outcomes.record_replay_outcome(next_run, "a", 2, "hit", rows=2, seconds=0.01)
    outcomes.record_replay_outcome(next_run, "a", 4, "refused", reason="its prompts <b>differ</b>")
    page = collapse_spaces(get_page(maintainer_client, "/pins/?project=math"))
    assert "outcome in again" in page and page.count("was: unknown: depends on the prompts") == 2
    assert re.search(r"again</a> ?uses this plan and is at step \d+: ?<b>1 replayed, 1 refused, 0 generated</b>", page)
    assert (
        re.search(r'value="again" selected>again \(uses this plan\)', page)
        and "Settings that differ from again" in page
    )
    page_without = collapse_spaces(get_page(maintainer_client, "/pins/?project=math&run=none"))
    assert "is at step" in page_without and "Settings that differ from again" not in page_without
    assert re.search(r'outcome-replayed">replayed</span>', page)
    assert re.search(r'outcome-refused">refused</span><span class="muted">its prompts &lt;b&gt;differ', page)
    assert 'outcome-not_reached">not reached' in page
    assert "again (uses this plan)" in page
    answer = maintainer_client.get("/api/v1/projects/math/replay-plan/?run=again").json()
    assert [(row["preview"]["state"], row["outcome"]["state"]) for row in answer["entries"]] == [
        ("unknown", "replayed"), ("unknown", "refused"), ("unknown", "not_reached"),
    ]  # fmt: skip


def test_consecutive_entries_with_the_same_preview_are_folded_into_one_line(
    maintainer_client: Client, run: Run, maintainer: User
) -> None:
    for step in range(3, 9):
        create_remote_artifact(run, step)
    new_pins = [pins.pin_step(run, step, maintainer)[0] for step in range(3, 9)]
    query = "&".join(f"pin={new_pin.pk}&target={step}" for step, new_pin in enumerate(new_pins, 11))
    page = collapse_spaces(get_page(maintainer_client, f"/pins/?base=0&action=cache&{query}"))
    assert "11–16" in page and "step 3–8" in page and page.count('class="member"') == 6
    page = collapse_spaces(
        get_page(maintainer_client, f"/pins/?base=0&action=cache&{query.replace('target=13', 'target=30')}")
    )
    assert "11–16" not in page and 'class="member"' not in page


def test_a_plan_of_a_trainer_that_generates_nothing_ends_at_the_first_step_without_a_file(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    create_remote_artifact(
        run, 7, facts={**FACTS, "format": "roll-mock"}, files={"7.pkl": {"sha256": "7" * 64, "bytes": 9}}
    )
    mock = pins.pin_step(run, 7, maintainer)[0]
    page = get_page(
        maintainer_client, f"/pins/?base=0&action=cache&pin={mock.pk}&target=0&pin={mock.pk}&target=2&steps=3"
    )
    assert (count_segments(page, "unknown"), count_segments(page, "none")) == (1, 3) and not re.search(
        r": will generate<|</svg>\s*will generate\b", page
    )
    assert (
        "Steps with a file to load: 1. The run ends at step 1" in page
        and "the run ends at the first step without one" in page
    )
    assert "step 1: no file to load; the run ends here" in page
    assert "skip it" in page and "generate instead" not in page
    assert "step 2: not reached; the run ends at step 1" in page
    assert (
        page.count('tag preview-unknown">') == 1
        and '<span class="tag preview-will_generate">not reached</span>' in page
    )
    maintainer_client.post("/pins/plan/", build_plan_form(0, (mock.pk, 0)))
    assert "The trainer then generates nothing" in get_page(maintainer_client, "/pins/?project=math")
    full = get_page(maintainer_client, f"/pins/?base=1&action=repeat_last&pin={mock.pk}&target=0&steps=3")
    assert count_segments(full, "unknown") == 4 and "not reached" not in full


def test_differences_to_the_chosen_run_are_listed_with_their_verdict(
    maintainer_client: Client, pin: Pin, project: Project
) -> None:
    builders.run(project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16, "model": "big"})
    page = get_page(maintainer_client, f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3")
    assert "Settings that differ from next" in collapse_spaces(page)
    table = page[page.index('aria-label="Differences"') :]
    assert table.index("rows") < table.index("model")
    assert table.count("INCOMPATIBLE</span>") == 1
    assert (count_segments(page, "hit"), count_segments(page, "miss")) == (0, 1)
    assert "step 3: grpo step 2, will generate: rows: 8 pinned, 16 in next" in page
    assert (
        get_page(maintainer_client, f"/pins/?run=grpo&base=0&action=cache&pin={pin.pk}&target=3").count(
            "INCOMPATIBLE</span>"
        )
        == 0
    )


@pytest.mark.parametrize("unknown", ["tokenizer", "dataset"])
def test_facts_that_the_run_does_not_report_take_one_line(
    maintainer_client: Client, pin: Pin, project: Project, unknown: str
) -> None:
    known = dict.fromkeys(compatibility.COMPATIBILITY_FACTS, 1) | pin.artifacts.get().facts
    known |= {"rollout_correction": False, unknown: None}
    pin.artifacts.update(facts=known)
    builders.run(project, "next", uid="next", facts=known)
    page = collapse_spaces(get_page(maintainer_client, f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3"))
    assert f'does not report it:<span class="mono">{unknown}</span>' in page
    assert "WARN" not in page and 'aria-label="Differences"' not in page
    assert "No setting that both know differs between the pinned steps and next." in page


def test_a_run_that_reported_only_its_config_is_compared_by_it(
    maintainer_client: Client, pin: Pin, project: Project
) -> None:
    named = {"use_v1": False, "project_name": "math", "experiment_name": "next"}
    rollout = {"actor_rollout_ref": {"rollout": {"n": 2}}, "trainer": named}
    config = {**rollout, "data": {"train_batch_size": 16, "max_prompt_length": 8, "max_response_length": 8}}
    builders.run(project, "next", uid="next", framework="verl", config=config)
    page = get_page(maintainer_client, f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3")
    table = page[page.index('aria-label="Differences"') :]
    assert re.search(r"INCOMPATIBLE.*?prompts</span>.*?>4<.*?>16<", table, re.DOTALL)


@pytest.mark.parametrize(("state", "message"), [("unsafe", "unsafe"), ("gone", "unavailable")])
def test_steps_that_a_plan_cannot_load_are_not_shown_as_replayed(
    maintainer_client: Client, pin: Pin, state: str, message: str
) -> None:
    pin.artifacts.update(state=state)
    page = get_page(maintainer_client, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&on_mismatch=stop")
    assert (count_segments(page, "hit"), count_segments(page, "miss")) == (0, 1)
    assert f"will generate: its files are {message}; the run stops" in page


def test_a_draft_that_excludes_flagged_samples_shows_the_effect_on_the_run(
    maintainer_client: Client, project: Project, maintainer: User
) -> None:
    run = builders.run(project, "source")
    artifact = create_ready_artifact(
        run, V0, facts={"role": "rollout", "prompts": 8, "rows": 32, "samples_per_prompt": 4}
    )
    index_waiting_dumps(run)
    pin = pins.pin_step(run, artifact.step, maintainer)[0]
    next_run = builders.run(project, "next", uid="next", facts={**artifact.facts, "serialisation": "torch"})
    link = f"/pins/?run={next_run.uid}&base=0&action=cache&pin={pin.pk}&target=1"
    assert "INCOMPATIBLE" not in get_page(maintainer_client, f"{link}&exclude_flagged=1")
    sample = Sample.objects.filter(step__run=run, ordinal=5).get()
    builders.flag_row(sample, maintainer)
    assert "INCOMPATIBLE" not in get_page(maintainer_client, link)
    page = get_page(maintainer_client, f"{link}&exclude_flagged=1")
    assert page.count("INCOMPATIBLE</span>") == 2 and count_segments(page, "miss") == 1
    assert re.search(r"prompts.*?>7<.*?>8<", page, re.DOTALL)
    assert "dropped: 1 of 4 selected" in page and "flagged bad 1" in page
    save_guidance(
        project, maintainer, [{"key": "odd", "query": "is:flagged", "action": "mask", "target": "response"}], ""
    )
    masked = get_page(maintainer_client, f"{link}&on_selected=mask&selected_by=rules")
    assert "INCOMPATIBLE" not in masked and "1 of 4 masked" in masked
    assert re.search(r"masked: 1 sample of 1 prompt\b.*?odd 1", masked, re.DOTALL)


def test_a_refusal_is_loosened_only_with_a_note(maintainer_client: Client, pin: Pin, project: Project) -> None:
    builders.run(project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16})
    url = f"/pins/?run=next&base=0&action=cache&pin={pin.pk}&target=3"
    assert "INCOMPATIBLE" in get_page(maintainer_client, url)
    maintainer_client.post("/settings/math/loosen/", {"fact": "rows", "note": " "})
    assert "INCOMPATIBLE" in get_page(maintainer_client, url)
    maintainer_client.post("/settings/math/loosen/", {"fact": "rows", "note": "the loader cuts"})
    page = get_page(maintainer_client, url)
    assert "INCOMPATIBLE" not in page and "the loader cuts" in page and "overridden" in page
    assert AuditEntry.objects.filter(verb="plan.loosen").count() == 1
    maintainer_client.post("/settings/math/loosen/", {"fact": "rows"})
    assert "INCOMPATIBLE" in get_page(maintainer_client, url)


def test_repeated_steps_whose_prompts_are_not_compared_are_unknown(
    maintainer_client: Client, pin: Pin, run: Run, maintainer: User
) -> None:
    Artifact.objects.update(facts={**FACTS, "rows": 2})
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="repeat_last", entries=[(pin, 2)])
    page = get_panel(maintainer_client, f"/pins/?project=math&run={run.uid}&steps=5", "plan")
    assert (count_segments(page, "hit"), count_segments(page, "unknown")) == (1, 3)
    assert "the prompts of this step were not compared" in page
