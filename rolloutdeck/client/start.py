"""`rolloutdeck.init`: finds the run of this process and opens it."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from rolloutdeck.client import launch, process_identity, serialize, spool, writer
from rolloutdeck.client.process_identity import ProcessAttempt, RunIdentity, clean_name, create_run_uid
from rolloutdeck.client.run import Run
from rolloutdeck.client.run_process import EXIT_SECONDS
from rolloutdeck.lib import Settings, logger
from rolloutdeck.protocol import UID_PATTERN

P = ParamSpec("P")

MAX_CONFIG_BYTES = 4 << 20
MAX_TAGS = 50

_runs: list[Run] = []


def _never_raises(function: Callable[P, Run]) -> Callable[P, Run]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Run:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            logger.warning("rolloutdeck.init() failed. The training continues and nothing is recorded: %s", error)
            identity = RunIdentity(create_run_uid(), "default", "none")
            run = Run(identity, ProcessAttempt("none", "none"), Settings(), spool.find_spool_root(Settings()), {})
            run.finished = run.is_disabled = True
            return run

    return call


@_never_raises
def init(
    project: str = "",
    name: str = "",
    config: Any = None,
    *,
    resume: str = "",
    framework: str = "",
    tags: Sequence[str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    producer: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    spool_bytes: int = spool.DEFAULT_SPOOL_BYTES,
    queue_bytes: int = writer.DEFAULT_QUEUE_BYTES,
    exit_timeout: float | None = EXIT_SECONDS,
    context: bool | None = None,
) -> Run:
    """Opens a run. Never raises, never waits for the network.

    `project` and `name` default to ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN. A run with an existing name is continued
    only with `resume="allow"`, or if `checkpoint_dir` has the run file of that run. `rank` and `world_size` of several
    processes that were started together default to those that the launcher set in the environment. `producer`
    distinguishes processes that generate for the same step, by default by rank and name. `spool_bytes` limits data on
    disk, `queue_bytes` the data in memory, and `exit_timeout` (seconds) how long the end of the process waits for the
    network. `context=False`, or ROLLOUTDECK_CONTEXT=off, sends no command, code version, host or package versions;
    ROLLOUTDECK_CONTEXT=patch also sends the uncommitted changes. If the run is already open in this process, returns
    it.
    """
    settings = Settings.from_environment()
    requested = _build_project(str(project or settings.project)), clean_name(name or settings.run, 190)
    if open_run := next((run for run in _runs if not run.finished and _is_requested(run, requested)), None):
        return open_run
    earlier = sum(_is_requested(run, requested) for run in _runs)
    attempt = process_identity.detect_attempt(None, rank, world_size, earlier=earlier)
    folder = _find_checkpoint_folder(checkpoint_dir)
    identity = _choose_identity(settings, attempt, *requested, folder)
    run_facts = {"framework": clean_name(framework, 40), "resume": _check_resume(resume)}
    run_facts |= {"host": attempt.host, "job": attempt.job}
    if settings.url.startswith("https:"):
        import ssl  # noqa: F401 - not in the sender's thread: a fork during the import breaks it in the child
    spool_root = spool.find_spool_root(settings, folder)
    limits = {"spool_bytes": spool_bytes, "queue_bytes": queue_bytes}
    own_rank = launch.detect_rank(os.environ, rank, world_size)
    run = Run(
        identity, attempt, settings, spool_root, run_facts,
        producer=producer, rank=own_rank, exit_timeout=exit_timeout, **limits,
    )  # fmt: skip
    _runs.append(run)
    _warn_about_settings(settings, spool_root)
    run_data = {"uid": run.uid, "project": run.project, "name": run.name, "attempt": run.attempt, **run_facts}
    clean_tags = [clean_name(tag, 60) for tag in ([tags] if isinstance(tags, str) else tags or ())][:MAX_TAGS]
    has_default_name = not requested[1] and not settings.run_id and folder is None
    run.enqueue_run_data(
        {**run_data, "default_name": has_default_name, "tags": clean_tags, **_serialize_config(config)}
    )
    if context is not False and not launch.is_child_process():
        _start_context(run, settings, context)
    return run


def _find_checkpoint_folder(checkpoint_dir: str | os.PathLike[str] | None) -> Path | None:
    """Returns the folder; None if there is none or it is not on a disk of this machine, as `s3://bucket/checkpoints`."""
    if not checkpoint_dir:
        return None
    if "://" in os.fspath(checkpoint_dir):
        message = "checkpoint_dir %s is no local folder, so it is not used. A restart continues the run by its name."
        logger.warning(message, checkpoint_dir)
        return None
    return Path(checkpoint_dir).expanduser().absolute()


def _start_context(run: Run, settings: Settings, requested: bool | None) -> None:
    from rolloutdeck.client.context import should_collect  # costs a few milliseconds, so not when this is imported

    if should_collect(settings.context, requested, os.environ):
        run.start_context(with_patch=settings.context.lower() == "patch")


def _is_requested(run: Run, requested: tuple[str, str]) -> bool:
    return requested[0] in ("", run.project) and requested[1] in ("", run.name)


def _build_project(project: str) -> str:
    slug = process_identity.build_project_slug(project)
    if slug != project:
        logger.warning("Project names are lower-case without blanks: %r is recorded as %r.", project, slug or "default")
    return slug


def _check_resume(resume: object) -> str:
    if resume in ("", "allow", "never"):
        return str(resume)
    logger.warning('resume must be "allow" or "never", not %r. A run with an existing name is not continued.', resume)
    return ""


def _choose_identity(
    settings: Settings, process_attempt: ProcessAttempt, project: str, name: str, folder: Path | None
) -> RunIdentity:
    """Returns uid, project and name: from ROLLOUTDECK_RUN_ID, else the run file of the checkpoints, else new."""
    new_project, new_name = project or "default", name or process_identity.build_default_run_name(process_attempt.host)
    uid = settings.run_id
    if uid and not UID_PATTERN.match(uid):
        uid = hashlib.sha256(uid.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        logger.warning("ROLLOUTDECK_RUN_ID has invalid characters. The run id is %s instead.", uid)
    if uid:
        return RunIdentity(uid, new_project, new_name)
    uid = process_identity.derive_run_uid(new_project, name, process_attempt)  # default names differ by process
    if any(run.uid == uid for run in _runs):  # it is finished in this process: the next run of its name is a new run
        uid = create_run_uid()
    new_identity = RunIdentity(uid, new_project, new_name)
    if folder is None:
        return new_identity
    try:
        return process_identity.claim_checkpoint_folder(folder, project, name, new_identity)
    except OSError as error:
        logger.warning("The run id can't be stored in %s, so a restart creates a new run: %s", folder, error)
        return new_identity


def _warn_about_settings(settings: Settings, spool_root: Path) -> None:
    if settings.error:
        logger.warning("%s", settings.error)
    if not settings.url:
        logger.warning(
            "No server is set. Data stays in %s until there is one. Start one with `rolloutdeck up`, "
            "or set ROLLOUTDECK_URL and ROLLOUTDECK_TOKEN.",
            spool_root,
        )


def _serialize_config(config: Any) -> dict[str, Any]:
    """Returns `{"config": ...}` as plain JSON; {} if there is none or it has no JSON form."""
    if config is None:
        return {}
    try:
        config = config if isinstance(config, Mapping) else vars(config)
        text = json.dumps(serialize.convert_keys_to_text(config), default=serialize.convert_for_json)
    except Exception as error:  # objects of other libraries may raise anything
        logger.warning("The config is not recorded, because it has no JSON form: %s", error)
        return {}
    if len(text) > MAX_CONFIG_BYTES:
        logger.warning("The config is not recorded: its %d bytes exceed the limit of %d.", len(text), MAX_CONFIG_BYTES)
        return {}
    return {"config": json.loads(text, parse_constant=str)}


def _recreate_workers() -> None:
    for run in _runs:
        if not run.finished:
            run.create_workers()


def _at_exit() -> None:
    for run in _runs:
        run.at_exit()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_recreate_workers)
