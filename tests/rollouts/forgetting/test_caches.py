"""The caches in memory of one machine do not keep what was forgotten on another one."""

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
def look(monkeypatch: pytest.MonkeyPatch, settings: Any) -> caches.DatabaseLook:
    """A process whose caches have a text, of a server with a bucket."""
    settings.STORAGE_URL = "s3://bucket"
    look = caches.DatabaseLook()
    monkeypatch.setattr(caches, "look", look)
    clear_forgotten_texts()
    load_text("answer")
    computed.clear()
    return look


def is_cached() -> bool:
    load_text("answer")
    return not computed


def finish_forgetting(project: Project) -> None:
    ForgottenPrompt.objects.update_or_create(project=project, key=KEY, defaults={"finished_at": timezone.now()})


def pass_time(look: caches.DatabaseLook) -> None:
    look.at -= caches.LOOK_SECONDS


def test_what_was_forgotten_elsewhere_leaves_the_caches_at_the_next_look(
    look: caches.DatabaseLook, project: Project
) -> None:
    finish_forgetting(project)
    pass_time(look)
    clear_forgotten_texts()
    assert not is_cached()


def test_the_caches_stay_if_nothing_was_forgotten(look: caches.DatabaseLook, project: Project) -> None:
    finish_forgetting(project)
    ForgottenPrompt.objects.update(finished_at=None)
    pass_time(look)
    clear_forgotten_texts()
    assert is_cached()


def test_the_same_prompt_forgotten_again_is_news(look: caches.DatabaseLook, project: Project) -> None:
    finish_forgetting(project)
    pass_time(look)
    clear_forgotten_texts()
    load_text("answer")
    computed.clear()
    ForgottenPrompt.objects.update(finished_at=timezone.now() + timedelta(seconds=1))
    pass_time(look)
    clear_forgotten_texts()
    assert not is_cached()


def test_a_copy_that_nobody_used_for_a_day_goes_although_no_file_is_added(
    look: caches.DatabaseLook, data_dir: Path
) -> None:
    old, used = (data_dir / "cache" / "bodies" / name for name in ("old.parquet", "used.parquet"))
    old.parent.mkdir(parents=True)
    for path, hours in ((old, 25), (used, 23)):
        path.write_bytes(b"text")
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    pass_time(look)
    clear_forgotten_texts()
    assert (old.exists(), used.exists()) == (False, True)


def test_the_database_is_asked_at_most_every_30_seconds(
    look: caches.DatabaseLook, project: Project, django_assert_num_queries: Any
) -> None:
    finish_forgetting(project)
    with django_assert_num_queries(0):
        clear_forgotten_texts()
    assert is_cached()


def test_a_server_on_one_disk_needs_no_query(
    look: caches.DatabaseLook, settings: Any, django_assert_num_queries: Any
) -> None:
    settings.STORAGE_URL = ""
    pass_time(look)
    with django_assert_num_queries(0):
        clear_forgotten_texts()
