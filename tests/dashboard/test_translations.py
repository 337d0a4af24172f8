"""The Chinese interface: its catalogues are complete and in use, and users get the language that they chose."""

from __future__ import annotations

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.dashboard.support.api_client import ApiClient
from tests.dashboard.support.translations import Entry, read_entries
from tests.support.html import collapse_spaces

ROOT = Path(__file__).parents[2]
FOLDER = Path("dashboard/locale/zh_Hans/LC_MESSAGES")
DOMAINS = ("django", "djangojs")
CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}


@pytest.fixture(scope="module")
def extracted_catalogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogues as `manage.py makemessages` makes them of a copy of the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("dashboard", "rollouts", "workers", "rolloutdeck", "templates", "static/js"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "manage.py", copy)
    values = {**os.environ, "ROLLOUTDECK_DATA": str(copy / "data")}
    subprocess.run([sys.executable, "manage.py", "makemessages"], cwd=copy, env=values, check=True, capture_output=True)
    return copy / FOLDER


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_catalogue_has_every_text_and_no_other(extracted_catalogues: Path, domain: str) -> None:
    """If this fails: run `make messages`, translate, and run it again."""
    used, held = (
        {(item.text, item.plural) for item in read_entries(path / f"{domain}.po")}
        for path in (extracted_catalogues, ROOT / FOLDER)
    )
    assert used - held == set()
    assert held - used == set()


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_text_is_translated_with_its_placeholders(domain: str) -> None:
    def is_wrong(first: Entry) -> bool:
        return first.fuzzy or not all(first.translations) or first.placeholders_differ()

    assert [item.text for item in read_entries(ROOT / FOLDER / f"{domain}.po") if is_wrong(item)] == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_compiled_catalogue_equals_its_source(tmp_path: Path, domain: str) -> None:
    """If this fails: run `make messages`."""
    subprocess.run(["msgfmt", "--check", "-o", tmp_path / "mo", ROOT / FOLDER / f"{domain}.po"], check=True)
    created, held = (read_messages(path) for path in (tmp_path / "mo", ROOT / FOLDER / f"{domain}.mo"))
    assert held == created


def read_messages(path: Path) -> dict[object, str]:
    with path.open("rb") as file:
        result: dict[object, str] = dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]
    result.pop("")  # the header: who made it, and when
    return result


@pytest.mark.django_db
def test_a_page_has_the_language_of_the_browser_until_the_user_chooses_one(client: Client) -> None:
    for asks, chosen, lang in (
        ({}, "", "en"),
        (CHINESE, "", "zh-hans"),
        (CHINESE, "en", "en"),
        ({}, "zh-hans", "zh-hans"),
    ):
        client.cookies.clear()
        if chosen:
            client.post("/language/", {"language": chosen})
        page = client.get("/sign-in/", headers=asks).content.decode()
        assert f'<html lang="{lang}"' in page
        assert ("登录" in page) == (lang == "zh-hans")


def test_choosing_a_language_returns_to_the_page_and_can_be_undone(client: Client, mate: User) -> None:
    client.force_login(mate)
    response = client.post("/language/", {"language": "zh-hans", "next": "/live/?rest=1"})
    assert response.headers["Location"] == "/live/?rest=1"
    page = client.get("/settings/").content.decode()
    assert 'lang="zh-hans" aria-pressed="true"' in collapse_spaces(page)
    client.post("/language/", {"language": "auto"})
    assert '<html lang="en"' in client.get("/settings/").content.decode()
    assert client.post("/language/", {"language": "zh-hans", "next": "https://example.com/"}).headers["Location"] == "/"


@pytest.mark.django_db
def test_scripts_get_their_texts_from_a_url_that_can_be_cached(client: Client) -> None:
    assert "/language/" not in client.get("/sign-in/").content.decode().partition("</head>")[0]
    head = client.get("/sign-in/", headers=CHINESE).content.decode().partition("</head>")[0]
    address = head.partition('src="/language/')[2].partition('"')[0]
    assert address.startswith("zh-hans.js?v=")
    response = client.get(f"/language/{address}")
    assert response.headers["Content-Type"].startswith("text/javascript")
    assert "immutable" in response.headers["Cache-Control"] and "public" in response.headers["Cache-Control"]
    result = response.content.decode()
    assert '"Copied": "已复制"' in result
    assert "Available" not in result, "Django's own texts are for its admin pages"
    assert client.get("/language/xx.js").status_code == 404


def test_api_errors_are_in_english(mate: User) -> None:
    answer = ApiClient.with_token(mate, "read")("GET", "runs/nobody/", headers=CHINESE)
    assert answer.json()["error"]["message"] == "Run 'nobody' not found, or you have no access to it."


def test_a_cached_page_is_sent_again_in_another_language(client: Client, mate: User) -> None:
    client.force_login(mate)
    etag = client.get("/live/").headers["ETag"]
    assert client.get("/live/", headers={"If-None-Match": etag}).status_code == 304
    assert client.get("/live/", headers={"If-None-Match": etag, **CHINESE}).status_code == 200
