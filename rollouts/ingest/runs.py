"""Runs: found by id or name, or created. Safe to call twice with the same input."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import UID_PATTERN
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest.attempts import register_attempt
from rollouts.ingest.launches import LaunchKey, find_shared_attempt, parse_launch_key
from rollouts.lib import parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Project, Run, RunAlias


def open_run(
    project: Project,
    *,
    uid: str = "",
    name: str = "",
    framework: str = "",
    config: dict[str, Any] | None = None,
    attempt: str = "",
    resume: str = "",
    host: str = "",
    job: str = "",
    tags: list[str] | None = None,
    waited: timedelta = timedelta(0),
    owner: User | None = None,
    default_name: bool = False,
) -> tuple[Run, bool]:
    """Returns the run of this uid or name, created for its `owner` if it is new, and whether it was created.

    A known uid, or an alias of a run, is that run. An existing name continues only with `resume="allow"`, or if the run
    was created before its first attempt (by `pull`). Then a new uid becomes an alias of that run. Otherwise the new run
    is called `name-2`, `name-3`, … The processes of a launch share a run, see `launches`.
    `waited` is the time that the request spent in a spool. `default_name`: no name was requested.
    Raises InvalidInputError if a value is malformed, NotFoundError if the run is in the trash or in another project.
    """
    check_run_identity(uid, resume)
    defaults = {
        "framework": parse_text(framework, "framework", max_chars=40),
        "config": redact_secrets(config or {}),
        "tags": parse_tags(tags),
        "owner": owner,
    }
    requested_name = parse_text(name, "name", max_chars=190).strip() or f"run-{(uid or uuid4().hex)[:8]}"
    process = parse_launch_key(attempt, "" if default_name else requested_name)
    start = partial(register_attempt, key=attempt, host=host, job=job, waited=waited)
    if process:
        start.keywords["name"] = process.name

    def can_continue(existing_run: Run) -> bool:
        if resume or not attempt or not is_awaiting_attempt(existing_run):
            return resume == "allow"
        start(existing_run, config=config)
        return True

    with transaction.atomic() if process else nullcontext():
        shared = find_launched_run(project, uid, process, timezone.now() - waited) if process else None
        run, created = (
            (shared, False) if shared else find_or_create(project, uid, requested_name, can_continue, defaults)
        )
        if attempt:
            start(run, config=None if created else config)
    if created:
        notify_run_changed(run)
    return run, created


def find_launched_run(project: Project, uid: str, process: LaunchKey, started_at: datetime) -> Run | None:
    """Returns the run of the launch that the process belongs to; None if its own uid is known or it is the first."""
    Project.objects.lock(project)
    if Run.objects.by_uid(uid):
        return None
    shared = find_shared_attempt(project, process, started_at)
    if shared is None:
        return None
    add_alias(uid, shared.run)
    return shared.run


def add_alias(uid: str, run: Run) -> None:
    if uid and not Run.objects.by_uid(uid):
        RunAlias.objects.create(uid=uid, run=run)


def check_run_identity(uid: str, resume: str) -> None:
    """Raises InvalidInputError if the uid or the `resume` of a run is malformed."""
    if uid and not UID_PATTERN.match(uid):
        raise InvalidInputError("`uid` must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit.", "uid")
    if resume not in ("", "allow", "never"):
        raise InvalidInputError("`resume` must be `allow` or `never`.", "resume")


def parse_tags(tags: Any) -> list[str]:
    """Returns at most 50 different tags of at most 60 characters, in their order. Raises InvalidInputError."""
    if tags is None:
        return []
    if not isinstance(tags, list) or len(tags) > 50:
        raise InvalidInputError(_("`tags` must be a list of at most 50 strings."), "tags")
    return list(dict.fromkeys(parse_text(tag, "tags", max_chars=60).strip() for tag in tags if tag))


def find_or_create(
    project: Project, uid: str, name: str, can_continue: Callable[[Run], bool], defaults: dict[str, Any]
) -> tuple[Run, bool]:
    """Returns the run and whether it was created.

    Unique indexes on uid and on (project, name) decide between concurrent requests. The loser searches again. Raises
    NotFoundError if the project was deleted.
    """
    while True:
        if run := find_run_by_uid(project, uid):
            return run, False
        try:
            with transaction.atomic():
                return find_or_create_by_name(project, uid, name, can_continue, defaults)
        except IntegrityError:
            continue


def find_run_by_uid(project: Project, uid: str) -> Run | None:
    """Returns the run with this uid. Raises NotFoundError if it is in the trash or in another project."""
    run = Run.objects.by_uid(uid) if uid else None
    if run is None:
        return None
    if run.project_id != project.pk:
        # The message does not say whether there is such a run, which the caller may not see.
        raise NotFoundError(f"The run id {uid} cannot be used in {project.slug}. Use another run id.", "uid")
    if run.deleted_at:
        raise NotFoundError(f"The run {run.name} is in the trash. Restore it to continue it.", "uid")
    return run


def find_or_create_by_name(
    project: Project, uid: str, name: str, can_continue: Callable[[Run], bool], defaults: dict[str, Any]
) -> tuple[Run, bool]:
    for suffix in count(1):
        candidate = name if suffix == 1 else f"{name}-{suffix}"
        existing_run = Run.objects.filter(project=project, name=candidate).first()
        if existing_run is None:
            lock_project(project)
            return Run.objects.create(project=project, uid=uid or uuid4().hex, name=candidate, **defaults), True
        if not existing_run.deleted_at and can_continue(existing_run):
            add_alias(uid, existing_run)
            return existing_run, False
    raise AssertionError("count() does not end")


def lock_project(project: Project) -> None:
    """Raises NotFoundError if the project was deleted. Otherwise nobody deletes it before the transaction ends."""
    if not Project.objects.select_for_update(no_key=True).filter(pk=project.pk).exists():
        raise NotFoundError(_("The project {name} was deleted.").format(name=project.slug), "project")


def is_awaiting_attempt(run: Run) -> bool:
    """Returns whether the run has no attempt yet. Locks the run, so that a second concurrent request sees the first."""
    Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    return not run.attempts.exists()
