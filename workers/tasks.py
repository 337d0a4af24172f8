"""The Celery tasks. Each takes an id and calls one function.

A message may be lost or sent twice. The rows of the database say what is due.
"""

import logging
from contextlib import suppress
from typing import Any

import redis
from celery import shared_task
from celery.signals import worker_ready
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError

from rollouts import demo, indexing, pins, query  # the tasks have the names of the functions that they call
from rollouts.errors import RolloutError
from rollouts.indexing import evaluate_due_steps, find_projects_to_evaluate
from rollouts.ingest import recheck_concurrent_attempts
from rollouts.lib import ClockWatch, release_free_memory
from rollouts.maintenance import (
    compact_body_files,
    delete_orphan_blobs,
    delete_orphan_bodies,
    delete_orphan_images,
    delete_stale_uploads,
    delete_unpinned_bytes,
    empty_trash,
    find_due_artifacts,
    find_runs_with_due_metrics,
    find_splits_to_compact,
    measure_due_runs,
    release_dead_claims,
    take_overdue_dumps,
    take_waiting_dumps,
)
from rollouts.metrics import compact_metric_rows
from rollouts.models import Project
from rollouts.queues import extend_growing_queues, has_growing_queues
from rollouts.retention import apply_due_policies, delete_orphan_raw_files, has_due_policies
from rollouts.sharing import delete_expired_content
from rollouts.storage import StorageRefusedError, check_data_folder, delete_stale_shared_parts
from rollouts.telemetry import start_exporter
from workers import dispatch, liveness
from workers.memory import interrupt_at_limit

log = logging.getLogger(__name__)
clock = ClockWatch()


@shared_task
def index_dump(dump_id: int) -> None:
    """Indexes one dump. A failure is written to its row. If the failure may be temporary, the sweep tries again."""
    with suppress(RolloutError), interrupt_at_limit():
        indexing.index_dump(dump_id)


@shared_task
def help_search(scan_id: str) -> None:
    """Scans files of a search of another machine."""
    try:
        files = query.help_scan(scan_id)
    except (RolloutError, redis.RedisError) as error:
        log.warning("No help for the search %s: %s", scan_id, error)
    else:
        log.info("Scanned %d files of the search %s.", files, scan_id)


@shared_task
def check_artifact(artifact_id: int) -> None:
    """Checks that an artifact is safe for a trainer. If the bytes cannot be read, the sweep sends it again."""
    try:
        with interrupt_at_limit():
            dump_ids = pins.check_artifact(artifact_id)
    except RolloutError as error:
        log.warning("Artifact %s was not checked: %s", artifact_id, error)
        return
    for dump_id in dump_ids:
        dispatch.send_dump(dump_id)


@shared_task
def evaluate_correctness(project_id: int) -> None:
    """Evaluates a project's samples with its current correctness rule."""
    evaluate_due_steps(project_id)


@shared_task
def update_outdated_steps() -> None:
    """Computes new properties of steps that an older version indexed, for a few seconds."""
    indexing.update_outdated_steps()


@shared_task
def extend_queues() -> None:
    """Adds the samples of new steps to the review queues that grow."""
    extend_growing_queues()


@shared_task
def apply_retention() -> None:
    """Applies the retention policies for a few seconds."""
    apply_due_policies()


@shared_task
def load_demo(project_id: int, user_id: int) -> None:
    """Loads the demo data into a project. If the task is lost, the user presses the button again."""
    demo.load_demo(Project.objects.get(pk=project_id), User.objects.get(pk=user_id))


@shared_task
def compact_series(run_id: int) -> None:
    """Compacts a run's metric rows into blocks."""
    compact_metric_rows(run_id)


@shared_task
def compact_bodies(run_id: int, split: str) -> None:
    """Joins a run's small Parquet files, which takes the more memory the longer the run is."""
    compact_body_files(run_id, split)
    release_free_memory()


@shared_task
def sweep() -> None:
    """Sends overdue work again, starts due compactions, and removes expired data."""
    release_dead_claims()
    for dump_id in take_overdue_dumps():
        dispatch.send_now("index_dump", dump_id)
    for artifact_id in find_due_artifacts():
        dispatch.send_now("check_artifact", artifact_id)
    for project_id in find_projects_to_evaluate():
        dispatch.send_now("evaluate_correctness", project_id)
    if indexing.has_outdated_steps():
        dispatch.send_now("update_outdated_steps")
    if has_due_policies():
        dispatch.send_now("apply_retention")
    if has_growing_queues():
        dispatch.send_now("extend_queues")
    for run_id in find_runs_with_due_metrics():
        dispatch.send_now("compact_series", run_id)
    for run_id, split in find_splits_to_compact():
        dispatch.send_now("compact_bodies", run_id, split)
    recheck_concurrent_attempts()
    delete_stale_uploads()
    empty_trash()


@shared_task
def measure_disk_usage() -> None:
    """Measures a few runs that changed. Not in the sweep, since it reads the sizes of many files."""
    measure_due_runs()


@shared_task
def hourly_cleanup() -> None:
    """Runs the slow part of maintenance, once an hour and when a worker starts.

    It checks every file below bodies/, blobs/ and raw/, and deletes expired sessions. After a change of the clock a
    file that was just written can look old, and its row may not be there yet: then the next cleanup does it.
    """
    if clock.has_jumped():
        log.warning("The clock was changed. Files without a row are removed by the next cleanup.")
        return
    try:
        check_data_folder()  # another server may have taken it since this worker has started
    except StorageRefusedError as error:
        log.error("Nothing is cleaned up. %s", error)
        return
    delete_orphan_bodies()
    delete_unpinned_bytes()
    delete_orphan_blobs()
    delete_orphan_raw_files()
    delete_orphan_images()
    delete_stale_shared_parts()
    delete_expired_content()
    for run_id in find_runs_with_due_metrics(is_recent=False):
        dispatch.send_now("compact_series", run_id)
    call_command("clearsessions")


@worker_ready.connect
def start_worker(sender: Any, **_: Any) -> None:
    """Starts the reports and the exporter of this worker, then releases the claims of killed workers on this host,
    before the first sweep.

    The cleanup is due too: a server that runs for less than an hour each day would never run it.
    """
    liveness.start_reports(sender.hostname)
    if settings.METRICS_PORT:
        start_exporter(settings.METRICS_PORT)
    try:
        release_dead_claims()
        for dump_id in take_waiting_dumps():
            dispatch.send_now("index_dump", dump_id)
        dispatch.send_now("hourly_cleanup")
    except OperationalError as error:
        log.warning("The database does not answer yet (%s). The next sweep tries again.", error)
