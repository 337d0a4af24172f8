"""The palette: what it finds for members and strangers; the keyboard shortcuts: in the help, and switched off."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.common import keyboard
from rollouts.models import Project, Run, Sample
from tests.dashboard.support.api_client import create_filled_run
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project, "qwen2.5-3b_grpo_lr1e-6")


def search_palette(client: Client, q: str = "", **more: str) -> list[dict[str, Any]]:
    response = client.get("/go/", {"q": q, **more})
    assert response.status_code == 200
    return list(response.json()["results"])


def test_runs_are_found_by_some_letters_of_their_names(run: Run, client: Client, mate: User) -> None:
    builders.run(run.project, "gspo")
    client.force_login(mate)
    assert {item["name"] for item in search_palette(client)} == {"qwen2.5-3b_grpo_lr1e-6", "gspo"}
    assert [item["url"] for item in search_palette(client, "q3grpo")] == [f"/runs/{run.uid}/"]
    assert [item["name"] for item in search_palette(client, "math gspo")] == ["gspo"]
    assert search_palette(client, "nothing like it") == []


def test_a_number_goes_to_that_step_of_the_open_run(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    (step,) = search_palette(client, "2", run=run.uid)[:1]
    assert (step["name"], step["url"]) == ("step 2", f"/runs/{run.uid}/steps/2/")
    assert step["detail"].startswith("train · 4 samples · mean")
    assert [item["kind"] for item in search_palette(client, "77", run=run.uid)] == []
    assert search_palette(client, "lat", run=run.uid)[0]["url"] == f"/runs/{run.uid}/steps/latest/"


def test_the_id_of_a_sample_leads_to_it(run: Run, client: Client, mate: User) -> None:
    sample = Sample.objects.filter(step__run=run).first()
    assert sample
    client.force_login(mate)
    matches = [item for item in search_palette(client, sample.pk[:12]) if item["kind"] == "sample"]
    assert [item["url"] for item in matches] == [f"/samples/{sample.pk}/"]


def test_a_stranger_gets_no_results(run: Run, client: Client, stranger: User) -> None:
    sample = Sample.objects.filter(step__run=run).first()
    assert sample
    assert client.get("/go/").headers["Location"].startswith("/sign-in/")
    client.force_login(stranger)
    assert [search_palette(client, q, run=run.uid) for q in ("", "qwen", "1", "latest", sample.pk)] == [[]] * 5


@pytest.mark.parametrize("q", ["\0", "x" * 5000, "9" * 40, "−1", "((", "٣", "%", "\ud800"])
def test_odd_search_texts_are_answered(run: Run, client: Client, mate: User, q: str) -> None:
    client.force_login(mate)
    assert (
        client.get("/go/", {"q": q.encode("utf-8", "replace"), "run": q.encode("utf-8", "replace")}).status_code == 200
    )


def test_two_hundred_runs_take_as_many_queries_as_one(
    run: Run, client: Client, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for n in range(200):
        builders.run(run.project, f"run-{n}", uid=f"uid-{n}")
    client.force_login(mate)
    with django_assert_max_num_queries(8):
        result = search_palette(client, "run 7", run=run.uid)
    assert len(result) == 38 and all("7" in item["name"] for item in result)
    assert len(search_palette(client)) == 60


def test_names_that_contain_the_words_come_before_names_that_contain_their_letters(
    run: Run, client: Client, mate: User
) -> None:
    names = ["g-r-p-o", "my-grpo", "other", "lr_grpo"]
    for n, name in enumerate(names):
        builders.run(run.project, name, uid=f"uid-{n}")
    client.force_login(mate)
    matches = [item["name"] for item in search_palette(client, "grpo")]
    assert matches[-1] == "g-r-p-o" and set(matches[:-1]) == {"my-grpo", "lr_grpo", run.name}


def test_every_key_of_the_table_is_in_the_help_of_every_page() -> None:
    for page in ("step", "group", "runs", "settings", None):
        rendered = [
            key
            for section in (*keyboard.build_page_sections(page), *keyboard.build_other_pages_sections(page))
            for key in section.keys
        ]
        assert sorted(key.keys + key.description for key in rendered) == sorted(
            key.keys + key.description for key in keyboard.SHORTCUTS
        ), page


PATHS = (
    "/", "/live/", "/compare/", "/compare/?of={run}@1,{run}@2", "/pins/", "/findings/", "/settings/", "/runs/{run}/",
    "/runs/{run}/steps/2/", "/runs/{run}/steps/all/", "/runs/{run}/prompts/{prompt}/",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_key_of_a_page_is_in_its_help(run: Run, client: Client, mate: User, path: str) -> None:
    sample = Sample.objects.filter(step__run=run, step__step=2)[0]
    client.force_login(mate)
    answer = client.get(path.format(run=run.uid, prompt=sample.prompt_key))
    assert answer.status_code == 200
    page = html.unescape(answer.content.decode())
    page_keys = {key for key in re.findall(r'data-key="([^"]+)"', page) if not key.isdigit()}
    valid = keyboard.find_page_shortcuts(re.findall(r'data-page="(\w*)"', page)[0])
    assert page_keys <= {item for key in valid for item in key.keys.split()}


def test_single_keys_can_be_switched_off_and_on(client: Client, mate: User) -> None:
    client.force_login(mate)
    assert 'data-keys="off"' not in client.get("/").content.decode()
    client.post("/keys/", {"keys": "off", "next": "/settings/"})
    off = client.get("/settings/").content.decode()
    assert 'data-keys="off"' in off and "Single-key shortcuts are off" in off
    client.post("/keys/", {"keys": "on", "next": "/settings/"})
    assert 'data-keys="off"' not in client.get("/").content.decode()
    client.post("/keys/", {"keys": '"><script>'})
    assert "keys" not in client.cookies or client.cookies["keys"].value == ""


def test_a_page_is_sent_again_after_the_keys_were_switched(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    address = f"/runs/{run.uid}/"
    etag = client.get(address).headers["ETag"]
    assert client.get(address, headers={"If-None-Match": etag}).status_code == 304
    client.post("/keys/", {"keys": "off"})
    assert client.get(address, headers={"If-None-Match": etag}).status_code == 200
