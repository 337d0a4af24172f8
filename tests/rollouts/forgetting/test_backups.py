"""A forgotten prompt is in no backup, and the rest of a backup can be restored."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from rollouts.backup import create_backup, iterate_backups
from rollouts.backup.database import SNAPSHOT
from rollouts.backup.restore import restore_files
from rollouts.forgetting import forget_in_backups
from rollouts.models import Project, Run
from rollouts.storage import use_folder
from tests.rollouts.forgetting.canary import KEY, NEEDLES, build_body, contains_any, iterate_contents, store_canary
from tests.rollouts.support.push import index_file
from tests.support.stored import list_stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.one_database]


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


def test_the_text_is_in_no_backup_and_the_other_data_can_be_restored(
    project: Project, run: Run, owner: User, tmp_path: Path, data_dir: Path
) -> None:
    store_canary(project, run, owner)
    folder, restored = tmp_path / "backups", tmp_path / "restored"
    create_backup(folder)
    index_file(run, build_body(30), 30)
    create_backup(folder)
    server = connection.settings_dict["NAME"]
    result = forget_in_backups(folder, project.slug, KEY)
    assert len(result.changed) == 2 and result.incomplete == [] and result.files > 0
    assert connection.settings_dict["NAME"] == server and list_stored("raw/")
    assert [name for name, content in iterate_contents(folder) if contains_any(content, NEEDLES)] == []
    for manifest in iterate_backups(folder):
        assert manifest.forgotten == [f"{project.slug}/{KEY}"]
        shutil.rmtree(restored, ignore_errors=True)
        with use_folder(restored):
            assert restore_files(manifest, folder / "files", lambda *_: None) == []
        copy = sqlite3.connect(folder / manifest.name / manifest.database)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (samples,) = copy.execute("SELECT count(*) FROM rollouts_sample").fetchone()
        assert samples == manifest.rows["rollouts_sample"] > 20
        copy.close()
    assert forget_in_backups(folder, project.slug, KEY).changed == []
