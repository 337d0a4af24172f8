"""The Celery process. The database rows say what is due: if a task is lost, the sweep sends it again."""

import gc
import os
import subprocess
import sys
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, task_prerun, worker_init, worker_process_init

from rolloutdeck.up import end_with_parent
from workers.beat import BeatRestart

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

PARENT_PID = os.getpid()  # the pool and beat are forked from the process that imports this module first
app = Celery("rolloutdeck")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["workers"])
app.steps["worker"].add(BeatRestart)


@worker_init.connect
def refuse_wrong_storage(**_: Any) -> None:
    """Ends this process if the server's files are elsewhere than the settings say. A bucket is tried out in another
    process: the threads of its library do not survive a fork."""
    from django.conf import settings
    from django.db import DatabaseError, connections

    from rollouts.storage import StorageRefusedError, check_storage

    if settings.STORAGE_URL:
        command = [sys.executable, "-m", "django", "check_storage"]
        if subprocess.run(command).returncode:
            sys.exit(1)
        return
    try:
        check_storage()
    except StorageRefusedError as error:
        sys.exit(str(error))
    except DatabaseError:  # the first task fails with the same error
        pass
    finally:
        connections.close_all()


@worker_init.connect
def share_memory(**_: Any) -> None:
    """Keeps what is loaded now out of the garbage collection. In a forked process it would touch every object, so that
    the system copies what the processes share."""
    gc.collect()
    gc.freeze()


@worker_process_init.connect
@beat_embedded_init.connect
def end_with_worker(**_: Any) -> None:
    """Ends the pool and beat when their worker is killed. Otherwise two beats would run after a restart."""
    end_with_parent(PARENT_PID)


@task_prerun.connect
def clear_forgotten_prompts(**_: Any) -> None:
    from rollouts.forgetting import clear_forgotten_texts  # needs Django's settings

    clear_forgotten_texts()


@worker_process_init.connect
def limit_memory(**_: Any) -> None:
    from workers.memory import limit_process_memory  # imports the domain, which the web process does not need here

    limit_process_memory()


@worker_process_init.connect
def release_memory(**_: Any) -> None:
    from rollouts.lib import start_memory_release

    start_memory_release()
