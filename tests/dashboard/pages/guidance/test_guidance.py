"""The page of a project's guidance rules, and what trainers read of them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from rollouts.guidance import load_guidance, save_guidance
from rollouts.models import Project
from tests.dashboard.support.api_client import create_filled_run, get_first_sample
from tests.support import builders

PATH = "/settings/math/guidance/"
FORM: dict[str, Any] = {
    "base": "0", "row": ["0", "1"], "baseline": "exclude", "key:0": "bad", "query:0": "is:flagged",
    "action:0": "mask", "key:1": "half", "query:1": "score<0.5", "action:1": "weight", "value:1": "0.5",
}  # fmt: skip


def test_the_form_previews_saves_and_shows_errors_at_their_field(project: Project, owner: User, client: Client) -> None:
    sample = get_first_sample(create_filled_run(project))
    client.force_login(owner)
    assert "This project has no rules" in client.get(PATH).content.decode()
    builders.flag(sample.pk, owner)
    preview = client.post(PATH, FORM | {"do": "preview"}).content.decode()
    assert "1 prompt" in preview and "Nothing is saved yet" in preview and "version 0" not in preview
    assert load_guidance(project).number == 0
    wrong = client.post(PATH, FORM | {"do": "save", "value:1": "much", "query:0": "score>"})
    assert wrong.status_code == 400 and "score&gt;" in wrong.content.decode() and "error-line" in wrong.content.decode()
    assert client.post(PATH, FORM | {"do": "save"}).status_code == 302
    version = load_guidance(project)
    assert (version.baseline, [rule.key for rule in version.rules]) == ("exclude", ["bad", "half"])
    outdated = client.post(PATH, FORM | {"do": "save", "key:0": "other"})
    assert outdated.status_code == 400 and "now version 1" in outdated.content.decode()
    assert "This project has no rules" not in outdated.content.decode(), "those of version 1 act"
    client.post(PATH, FORM | {"do": "save", "base": "1", "remove:0": "on"})
    assert [rule.key for rule in load_guidance(project).rules] == ["half"]
    earlier = client.get(f"{PATH}?version=1").content.decode()
    assert ">bad<" in earlier and "This is version 1." in earlier and "Trainings use version 2." in earlier
    assert "Trainings use version" not in client.get(PATH).content.decode()
    assert "Trainings use version 2." in client.post(PATH, FORM | {"do": "preview"}).content.decode()


def test_the_form_keeps_all_digits_of_the_values_of_other_rules(project: Project, owner: User, client: Client) -> None:
    rules = [
        {"key": "small", "query": "score<1", "action": "weight", "value": 0.12345678},
        {"key": "large", "query": "score<1", "action": "reward", "value": 999999.5},
        {"key": "whole", "query": "score<1", "action": "reward", "value": -2},
    ]
    save_guidance(project, owner, rules, "")
    client.force_login(owner)
    page = client.get(PATH).content.decode()
    for value in ("0.12345678", "999999.5", "-2"):
        assert f'value="{value}"' in page


def test_an_example_fills_a_rule_and_saves_nothing(project: Project, owner: User, mate: User, client: Client) -> None:
    save_guidance(project, owner, [{"key": "bad", "query": "score<1", "action": "mask"}], "")
    client.force_login(owner)
    assert 'href="?example=hack#rules"' in client.get(PATH).content.decode()
    page = client.get(f"{PATH}?example=hack").content.decode()
    assert 'value="bad"' in page and 'value="reason:reward-hack"' in page and "Nothing is saved yet" in page
    assert len(load_guidance(project).rules) == 1
    client.force_login(mate)
    assert "Use this example" not in client.get(PATH).content.decode(), "only maintainers have the form"


def test_a_trainer_gets_keys_and_no_text_and_a_304_until_something_changes(
    project: Project, owner: User, client: Client
) -> None:
    sample = get_first_sample(create_filled_run(project))
    save_guidance(project, owner, [{"key": "bad", "query": "is:flagged", "action": "mask"}], "")
    secret = builders.token(owner, "ingest", "read", on=project)
    path, headers = "/api/v1/projects/math/guidance/selection/", {"Authorization": f"Bearer {secret}"}
    first = client.get(path, headers=headers)
    assert (first.json()["version"], first.json()["prompts"]) == (1, {})
    unchanged = client.get(path, headers={**headers, "If-None-Match": first["ETag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    builders.flag(sample.pk, owner)
    second = client.get(path, headers={**headers, "If-None-Match": first["ETag"]})
    assert second.status_code == 200 and second.json()["prompts"] == {sample.prompt_key: [0]}
    rules = client.get("/api/v1/projects/math/guidance/", headers=headers).json()["rules"]
    assert rules[0]["query"] == "is:flagged"
