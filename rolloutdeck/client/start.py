"""`rolloutdeck.init`: finds out which run this process belongs to and opens it."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from rolloutdeck.client import launch, serialize, spool, writer
from rolloutdeck.client.run import Run
from rolloutdeck.lib import Settings, logger
from rolloutdeck.protocol import UID_PATTERN

P = ParamSpec("P")

MAX_CONFIG_BYTES = 4 << 20

_runs: list[Run] = []


def _never_raises(opening: Callable[P, Run]) -> Callable[P, Run]:
    @functools.wraps(opening)
    def call(*args: P.args, **kwargs: P.kwargs) -> Run:
        try:
            return opening(*args, **kwargs)
        except Exception as error:
            logger.warning("rolloutdeck.init() failed, training goes on and nothing is recorded: %s", error)
            nobody = launch.RunIdentity(launch.create_run_uid(), "default", "none")
            run = Run(nobody, launch.ProcessAttempt("none", "none"), Settings(), spool.find_spool_root(Settings()), {})
            run.finished = True
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
    tags: list[str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    producer: str = "",
    spool_bytes: int = spool.DEFAULT_SPOOL_BYTES,
    queue_bytes: int = writer.DEFAULT_QUEUE_BYTES,
    exit_timeout: float = 2.0,
) -> Run:
    """Opens a run. Never raises, never waits for the network.

    `project` and `name` default to ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN. A name that exists already is continued
    only with `resume="allow"`, or when `checkpoint_dir` holds the note of the run that wrote it. `producer` tells
    processes apart that generate for the same step. `spool_bytes` bounds what waits on disk, `queue_bytes` what waits
    in memory, `exit_timeout` (seconds) how long the end of the process waits for the network. Called again while the
    run is open, it returns that run.
    """
    settings = Settings.from_environment()
    wanted = (_project(str(project or settings.project)), launch.clean_name(name or settings.run, 190))
    if running := next((run for run in _runs if not run.finished and _is_meant(run, wanted)), None):
        return running
    launched = launch.detect_attempt()
    folder = Path(checkpoint_dir).expanduser().absolute() if checkpoint_dir else None
    identity = _identity(settings, launched, *wanted, folder)
    resume = _resume(resume)
    about = {
        "framework": launch.clean_name(framework, 40),
        "resume": resume,
        "host": launched.host,
        "job": launched.job,
    }
    if settings.url.startswith("https:"):
        import ssl  # noqa: F401 - here, not in the sender's thread: a fork in that moment would spoil it for the child
    run = Run(
        identity,
        launched,
        settings,
        spool.find_spool_root(settings, folder),
        about,
        producer=producer,
        spool_bytes=spool_bytes,
        queue_bytes=queue_bytes,
        exit_timeout=exit_timeout,
    )
    _runs.append(run)
    _greet(settings, spool.find_spool_root(settings, folder))
    said = {"uid": run.uid, "project": run.project, "name": run.name, "attempt": run.attempt, **about}
    run.open({**said, "tags": [launch.clean_name(tag, 60) for tag in tags or ()][:50], **_config(config)})
    return run


def _is_meant(run: Run, wanted: tuple[str, str]) -> bool:
    return wanted[0] in ("", run.project) and wanted[1] in ("", run.name)


def _project(asked: str) -> str:
    slug = launch.build_project_slug(asked)
    if slug != asked:
        logger.warning("Projects have lower-case names without blanks: %r is recorded as %r.", asked, slug or "default")
    return slug


def _resume(asked: object) -> str:
    if asked in ("", "allow", "never"):
        return str(asked)
    logger.warning('resume must be "allow" or "never", not %r; an existing name is not continued.', asked)
    return ""


def _identity(
    settings: Settings, launched: launch.ProcessAttempt, project: str, name: str, folder: Path | None
) -> launch.RunIdentity:
    """Uid, project and name: from ROLLOUTDECK_RUN_ID, else the note beside the checkpoints, else new."""
    fresh_project, fresh_name = project or "default", name or launch.build_default_run_name(launched.host)
    uid = settings.run_id
    if uid and not UID_PATTERN.match(uid):
        uid = hashlib.sha256(uid.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        logger.warning("ROLLOUTDECK_RUN_ID has characters that no run id has; the run is %s instead.", uid)
    if uid:
        return launch.RunIdentity(uid, fresh_project, fresh_name)
    fresh = launch.RunIdentity(launch.derive_run_uid(fresh_project, fresh_name, launched), fresh_project, fresh_name)
    if any(run.uid == fresh.uid for run in _runs):  # finished in this process: the next of its name is another run
        fresh = launch.RunIdentity(launch.create_run_uid(), fresh_project, fresh_name)
    if folder is None:
        return fresh
    try:
        return launch.claim_checkpoint_folder(folder, project, name, fresh)
    except OSError as error:
        logger.warning("The run can't be noted in %s, so a restart will be another run: %s", folder, error)
        return fresh


def _greet(settings: Settings, below: Path) -> None:
    if settings.error:
        logger.warning("%s", settings.error)
    if not settings.url:
        logger.warning(
            "No server is set, data is kept in %s until there is one. Start one with `rolloutdeck up`, "
            "or set ROLLOUTDECK_URL and ROLLOUTDECK_TOKEN.",
            below,
        )


def _config(config: Any) -> dict[str, Any]:
    """`{"config": ...}` as plain JSON; {} where there is none or it can't be one."""
    if config is None:
        return {}
    try:
        config = config if isinstance(config, Mapping) else vars(config)
        text = json.dumps(serialize.convert_keys_to_text(config), default=serialize.convert_for_json)
    except Exception as error:  # the objects of other libraries raise what they like
        logger.warning("The config is left out, it has no JSON form: %s", error)
        return {}
    if len(text) > MAX_CONFIG_BYTES:
        logger.warning("The config is left out: %d bytes are more than %d.", len(text), MAX_CONFIG_BYTES)
        return {}
    return {"config": json.loads(text, parse_constant=str)}


def _in_child() -> None:
    for run in _runs:
        if not run.finished:
            run.assemble()


def _at_exit() -> None:
    for run in _runs:
        run.at_exit()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
