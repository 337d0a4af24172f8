"""The admin account that the first start creates."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError

from dashboard.management.commands import bootstrap

pytestmark = pytest.mark.django_db


def test_two_processes_that_start_at_once_have_one_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    other = User.objects.create_superuser(bootstrap.ADMIN)
    answers = iter([None, other])  # it is created after this process has looked
    monkeypatch.setattr(bootstrap, "find_admin", lambda: next(answers))
    assert bootstrap.find_or_create_admin() == other
    assert User.objects.count() == 1


def test_an_existing_user_named_admin_does_not_become_admin() -> None:
    User.objects.create_user(bootstrap.ADMIN)
    with pytest.raises(CommandError, match="rolloutdeck account admin --admin yes"):
        bootstrap.find_or_create_admin()
    assert not User.objects.filter(is_superuser=True).exists()
