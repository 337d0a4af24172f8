"""The doorbell rings behind the commit, and costs nothing where Redis is down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from rollouts.indexing import indexer
from rollouts.live import notifications
from rollouts.models import Dump, Run, Sample
from tests.rollouts.support.push import generation, lines, push

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def down(settings: Any, tmp_path: Path) -> None:
    """No Redis where the settings say."""
    layer = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": {"hosts": [f"unix://{tmp_path}/none.sock"]}}}


def test_without_redis_a_dump_is_indexed_and_a_change_is_kept(run: Run, down: None) -> None:
    dump = push(run, lines(generation()))
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, Sample.objects.count()) == (Dump.State.INDEXED, 1)
    before = Run.objects.get(pk=run.pk).version
    with transaction.atomic():
        notifications.notify_run_changed(run)
    assert Run.objects.get(pk=run.pk).version == before + 1


def test_a_ring_that_fails_in_any_other_way_fails_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "send", lambda ring: 1 / 0)
    with transaction.atomic():
        notifications.notify_run_changed(run)
    notifications.notify_topics("runs")
