"""The Celery process. Tasks are hints: what is due stands in rows, and the sweep sends it again."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, worker_process_init

from rolloutdeck.up import end_with_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

PARENT_PID = os.getpid()  # the pool and the clock are forked from the process that imports this first
app = Celery("rolloutdeck")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["workers"])


@worker_process_init.connect
@beat_embedded_init.connect
def end_with_worker(**_: Any) -> None:
    """The pool and the clock end with a killed worker, else two clocks would tick once it is started again."""
    end_with_parent(PARENT_PID)
