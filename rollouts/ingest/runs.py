"""Runs: found by id or name, or made on first sight. Safe to call twice with the same input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from rolloutdeck.protocol import UID_PATTERN
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest.attempts import launch
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
) -> tuple[Run, bool]:
    """The run that the caller means, made on first sight for its `owner`; the bool says whether it was made now.

    A known uid (or one that was joined to a run) is that run. An existing name continues only with `resume="allow"`, or
    where the run was made ready for a launch that has not come (`pull` does), and then a new uid becomes another name
    of that run; else the run becomes `name-2`, `name-3`, …
    Raises BadInput for malformed words, NotThere when the run lies in the bin or in another project.
    """
    check_run_identity(uid, resume)
    fresh = {
        "framework": parse_text(framework, "framework", most=40),
        "config": redact_secrets(config or {}),
        "tags": parse_tags(tags),
        "owner": owner,
    }
    wished = parse_text(name, "name", most=190).strip() or f"run-{(uid or uuid4().hex)[:8]}"
    start = partial(launch, key=attempt, host=host, job=job, waited=waited)

    def joins(taken: Run) -> bool:
        if resume or not attempt or not is_awaiting_attempt(taken):
            return resume == "allow"
        start(taken, config=config)
        return True

    run, created = find_or_create(project, uid, wished, joins, fresh)
    if attempt:
        start(run, config=None if created else config)
    if created:
        notify_run_changed(run)
    return run, created


def check_run_identity(uid: str, resume: str) -> None:
    """Raises InvalidInputError if the uid or the `resume` of a run is malformed."""
    if uid and not UID_PATTERN.match(uid):
        raise InvalidInputError("`uid` must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit.", "uid")
    if resume not in ("", "allow", "never"):
        raise InvalidInputError("`resume` must be `allow` or `never`.", "resume")


def parse_tags(tags: Any) -> list[str]:
    """At most fifty short, different words, in their order. Raises BadInput."""
    if tags is None:
        return []
    if not isinstance(tags, list) or len(tags) > 50:
        raise InvalidInputError(_("`tags` must be a list of at most 50 strings."), "tags")
    return list(dict.fromkeys(parse_text(tag, "tags", most=60).strip() for tag in tags if tag))


def find_or_create(
    project: Project, uid: str, name: str, joins: Callable[[Run], bool], fresh: dict[str, Any]
) -> tuple[Run, bool]:
    """The uniqueness of uid and of (project, name) decides between launches that race; the loser looks again."""
    while True:
        if found := known_run(project, uid):
            return found, False
        try:
            with transaction.atomic():
                return named_run(project, uid, name, joins, fresh)
        except IntegrityError:
            continue


def known_run(project: Project, uid: str) -> Run | None:
    """The run with this uid. Raises NotThere when it is in the bin or in another project."""
    run = Run.objects.by_uid(uid) if uid else None
    if run is None:
        return None
    if run.project_id != project.pk:
        raise NotFoundError(
            f"The run id {uid} is not one of project {project.slug}; give the run an id of its own.", "uid"
        )
    if run.deleted_at:
        raise NotFoundError(f"The run {run.name} is in the bin; restore it to go on with it.", "uid")
    return run


def named_run(
    project: Project, uid: str, name: str, joins: Callable[[Run], bool], fresh: dict[str, Any]
) -> tuple[Run, bool]:
    for suffix in count(1):
        candidate = name if suffix == 1 else f"{name}-{suffix}"
        taken = Run.objects.filter(project=project, name=candidate).first()
        if taken is None:
            return Run.objects.create(project=project, uid=uid or uuid4().hex, name=candidate, **fresh), True
        if not taken.deleted_at and joins(taken):
            if uid:
                RunAlias.objects.create(uid=uid, run=taken)
            return taken, False
    raise AssertionError("count() does not end")


def is_awaiting_attempt(run: Run) -> bool:
    """Whether the run was made for a launch that has not come. Of two that come at once the second waits here, and
    finds the other."""
    Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    return not run.attempts.exists()
