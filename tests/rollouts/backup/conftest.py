from __future__ import annotations

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from rollouts.backup.database import SNAPSHOT


@pytest.fixture(autouse=True)
def allow_connections_to_copies(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's tests forbid connections that are opened later. A backup opens one to its copy of SQLite."""
    guarded = BaseDatabaseWrapper.ensure_connection

    def ensure_connection(self: BaseDatabaseWrapper) -> None:
        if self.alias == SNAPSHOT and self.connection is None:
            self.connect()
        else:
            guarded(self)

    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", ensure_connection)
