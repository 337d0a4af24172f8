"""The place of the files at the first start."""

from __future__ import annotations

import pytest

from rollouts.models import StorageLocation
from rollouts.storage.location import load_location

pytestmark = pytest.mark.django_db


def test_two_processes_that_start_at_once_are_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    other = load_location()
    monkeypatch.setattr(StorageLocation.objects, "first", lambda: None)  # it looked before the other row was there
    assert load_location().server == other.server
    assert StorageLocation.objects.count() == 1
