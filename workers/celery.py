"""The Celery process. The database rows say what is due: if a task is lost, the sweep sends it again."""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, task_prerun, worker_process_init

from rolloutdeck.up import end_with_parent
from workers.beat import BeatRestart

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

PARENT_PID = os.getpid()  # the pool and beat are forked from the process that imports this module first
app = Celery("rolloutdeck")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["workers"])
app.steps["worker"].add(BeatRestart)


@worker_process_init.connect
@beat_embedded_init.connect
def end_with_worker(**_: Any) -> None:
    """Ends the pool and beat when their worker is killed. Otherwise two beats would run after a restart."""
    end_with_parent(PARENT_PID)


@task_prerun.connect
def clear_forgotten_prompts(**_: Any) -> None:
    from rollouts.lib import clear_outdated  # needs Django's settings

    clear_outdated()


@worker_process_init.connect
def limit_memory(**_: Any) -> None:
    from workers.memory import limit_process_memory  # imports the domain, which the web process does not need here

    limit_process_memory()
