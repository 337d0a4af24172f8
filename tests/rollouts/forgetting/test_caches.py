"""The memory caches of one machine do not keep texts that were forgotten on another machine."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from rollouts.forgetting import caches, clear_forgotten_texts
from rollouts.lib import cached
from rollouts.models import ForgottenPrompt, Project

pytestmark = pytest.mark.django_db
KEY = "a" * 26
computed: list[str] = []


@cached(10)
def load_text(name: str) -> str:
    computed.append(name)
    return f"text of {name}"


@pytest.fixture
def database_look(monkeypatch: pytest.MonkeyPatch, settings: Any) -> caches.DatabaseLook:
    """A process whose caches have a text, of a server with a bucket."""
    settings.STORAGE_URL = "s3://bucket"
    database_look = caches.DatabaseLook()
    monkeypatch.setattr(caches, "look", database_look)
    clear_forgotten_texts()
    load_text("answer")
    computed.clear()
    return database_look


def is_cached() -> bool:
    load_text("answer")
    return not computed


def finish_forgetting(project: Project) -> None:
    ForgottenPrompt.objects.update_or_create(project=project, key=KEY, defaults={"finished_at": timezone.now()})


def make_look_due(database_look: caches.DatabaseLook) -> None:
    database_look.at -= caches.LOOK_SECONDS


def test_caches_are_cleared_after_another_machine_has_forgotten_a_prompt(
    database_look: caches.DatabaseLook, project: Project
) -> None:
    finish_forgetting(project)
    make_look_due(database_look)
    clear_forgotten_texts()
    assert not is_cached()


def test_the_caches_stay_if_nothing_was_forgotten(database_look: caches.DatabaseLook, project: Project) -> None:
    finish_forgetting(project)
    ForgottenPrompt.objects.update(finished_at=None)
    make_look_due(database_look)
    clear_forgotten_texts()
    assert is_cached()


def test_caches_are_cleared_again_after_the_same_prompt_is_forgotten_again(
    database_look: caches.DatabaseLook, project: Project
) -> None:
    finish_forgetting(project)
    make_look_due(database_look)
    clear_forgotten_texts()
    load_text("answer")
    computed.clear()
    ForgottenPrompt.objects.update(finished_at=timezone.now() + timedelta(seconds=1))
    make_look_due(database_look)
    clear_forgotten_texts()
    assert not is_cached()


def test_a_cached_body_file_that_was_not_used_for_a_day_is_deleted(
    database_look: caches.DatabaseLook, data_dir: Path
) -> None:
    old, used = (data_dir / "cache" / "bodies" / name for name in ("old.parquet", "used.parquet"))
    old.parent.mkdir(parents=True)
    for path, hours in ((old, 25), (used, 23)):
        path.write_bytes(b"text")
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    make_look_due(database_look)
    clear_forgotten_texts()
    assert (old.exists(), used.exists()) == (False, True)


def test_the_database_is_queried_at_most_every_30_seconds(
    database_look: caches.DatabaseLook, project: Project, django_assert_num_queries: Any
) -> None:
    finish_forgetting(project)
    with django_assert_num_queries(0):
        clear_forgotten_texts()
    assert is_cached()


def test_a_server_on_one_disk_needs_no_query(
    database_look: caches.DatabaseLook, settings: Any, django_assert_num_queries: Any
) -> None:
    settings.STORAGE_URL = ""
    make_look_due(database_look)
    with django_assert_num_queries(0):
        clear_forgotten_texts()
