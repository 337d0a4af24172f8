"""The identity of this process: its attempt of the training and its run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import sys
import time
import unicodedata
import uuid
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rolloutdeck.client import launch
from rolloutdeck.protocol import LAUNCH_KEY_PATTERN, UID_PATTERN

ATTEMPT_VARIABLE = "ROLLOUTDECK_ATTEMPT"
RUN_FILE = ".rolloutdeck-run.json"
_RAY_SESSION = re.compile(r"session_[\d_-]+\d")
# (process, key) of the attempts that this process has created and left in the environment. A key that the user or a
# parent has set is not among them, nor in a forked child that of its parent: processes that share it must keep it.
_created: set[tuple[int, str]] = set()
_open_runs: Counter[str] = Counter()  # of this process and its parents, by attempt


@dataclass(frozen=True, slots=True)
class ProcessAttempt:
    """The attempt of this process.

    `attempt` is the same in all processes that were started together. `job` is the launcher's name for it, shown to
    users. If another attempt may have the same `attempt`, `has_unique_id` is False and the processes must not derive a
    common run uid from it.
    """

    attempt: str
    host: str
    job: str = ""
    has_unique_id: bool = True


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def clean_name(value: object, max_length: int) -> str:
    """Returns a name that the server accepts: no control characters or lone surrogates, cut to `max_length`."""
    return _UNPRINTABLE.sub("?", str(value)).strip()[:max_length]


def build_project_slug(project: str) -> str:
    """Returns a project's name as a slug: lower-case letters, digits, - and _."""
    cleaned = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKC", clean_name(project, 80)).lower())
    return re.sub(r"[-\s]+", "-", cleaned).strip("-_")


def get_host_name() -> str:
    """Returns the cleaned host name; "unknown" if it is empty."""
    return clean_name(socket.gethostname(), 120) or "unknown"


def detect_attempt(
    environ: MutableMapping[str, str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    earlier: int = 0,
) -> ProcessAttempt:
    """Reads the attempt from the environment, else from the launcher.

    If neither has one, creates one and sets it in the environment, so that child processes use it. `rank` and
    `world_size` override those of the environment. `earlier`: how often this process has opened and finished the run.
    The next time is a new attempt, as in a new process, unless the user has set the attempt.
    """
    environ = os.environ if environ is None else environ
    host, (launcher, is_unique) = get_host_name(), _read_launcher_id(environ, earlier)
    configured = environ.get(ATTEMPT_VARIABLE, "").strip()
    is_replaced = (os.getpid(), configured) in _created or LAUNCH_KEY_PATTERN.match(configured)
    if configured and not (earlier and is_replaced):
        return ProcessAttempt(clean_name(configured, 120), host, launcher)
    if launcher:
        return ProcessAttempt(launcher, host, launcher, has_unique_id=is_unique)
    environ[ATTEMPT_VARIABLE] = attempt = _create_attempt(environ, host, rank, world_size, earlier)
    if not launch.is_child_process():  # one child may do several tasks of an attempt, and another child only one
        _created.add((os.getpid(), attempt))
    return ProcessAttempt(attempt, host)


def _create_attempt(
    environ: Mapping[str, str], host: str, rank: int | None, world_size: int | None, earlier: int
) -> str:
    """Returns an id that all processes of the launch share, else one that the server can match, else a new one."""
    return (
        _derive_torchrun_attempt(environ, host, earlier)
        or launch.build_launch_key(environ, rank, world_size, earlier=earlier)
        or ("" if earlier else launch.derive_tree_id())
        or uuid.uuid4().hex
    )


def _derive_torchrun_attempt(environ: Mapping[str, str], host: str, earlier: int) -> str:
    """Returns an id that all ranks of a single-machine torchrun or accelerate attempt share: their agent.

    Returns "" for other launchers. torchrun's own run id is the same for each attempt unless the user sets one.
    """
    if environ.get("GROUP_WORLD_SIZE") != "1" or "TORCHELASTIC_RESTART_COUNT" not in environ:
        return ""
    agent = launch.find_launcher_pid()
    if not (start_time := launch.read_start_time(agent)):
        return ""
    parts = (host, str(agent), start_time, environ["TORCHELASTIC_RESTART_COUNT"], *([str(earlier)] if earlier else []))
    # A notebook is the agent of several launches. Each has a new folder: <folder>/attempt_0/<rank>/error.json
    folder = environ.get("TORCHELASTIC_ERROR_FILE", "").rsplit("/", 3)[0]
    digest = hashlib.sha256("\0".join((*parts, folder)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"torchrun-{digest[:32]}"  # without the prefix it would look like a key of an unknown launch


def _read_launcher_id(environ: Mapping[str, str], earlier: int) -> tuple[str, bool]:
    """Returns the launcher's id of this attempt, and whether no other attempt can have the same id."""
    if ray_job := environ.get("RAY_JOB_ID"):
        # Every new Ray cluster counts its jobs from 1, so a restart of a one-machine training has the same job id.
        # Worker processes have the cluster's session in their arguments. Ray gives one task after another to a
        # worker, so that what a worker has opened before does not tell the attempts of a job apart.
        session = next((match[0] for part in sys.argv if (match := _RAY_SESSION.search(part))), "")
        return clean_name(f"ray-{ray_job}-{session}" if session else f"ray-{ray_job}", 120), bool(session)
    torchrun_id, slurm_job = environ.get("TORCHELASTIC_RUN_ID", "none"), environ.get("SLURM_JOB_ID")
    if torchrun_id != "none":  # torchrun's default without a rendezvous, the same for every attempt
        launcher = f"torchrun-{torchrun_id}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    elif slurm_job:
        launcher = f"slurm-{slurm_job}-{environ.get('SLURM_RESTART_COUNT', '0')}"
    else:
        return "", False
    return clean_name(launcher, 110) + (f"-{earlier + 1}" if earlier else ""), True


def is_lead_process(environ: Mapping[str, str] | None = None, rank: int | None = None) -> bool:
    """Whether this process reports for its attempt: rank 0, or a process without a rank that is no child.

    `rank` is its known rank. Each process of Ray that opens a run reports: Ray shows equal lines once.
    """
    environ = os.environ if environ is None else environ
    if rank is not None:
        return rank == 0
    number = launch.detect_rank(environ)
    is_first = number.number == 0 if number else not launch.is_child_process()
    return is_first and environ.get("SLURM_PROCID", "0") == "0"


def hold_attempt(attempt: str) -> None:
    """Keeps the attempt in the environment until `release_attempt` was called as often."""
    _open_runs[attempt] += 1


def release_attempt(attempt: str) -> None:
    """Removes an attempt that this process has created from its environment, when its last run has finished.

    Programs that it starts later are launches of their own.
    """
    _open_runs[attempt] -= 1
    is_own = (os.getpid(), attempt) in _created and os.environ.get(ATTEMPT_VARIABLE) == attempt
    if _open_runs[attempt] <= 0 and is_own:
        del os.environ[ATTEMPT_VARIABLE]


def get_last_error() -> int:
    """Returns the id of the last exception that nobody caught, 0 if there is none. In a notebook the session goes on
    after it."""
    error = getattr(sys, "last_value", None)
    return 0 if error is None else id(error)


def has_failed(earlier_error: int = 0) -> bool:
    """Whether an exception ends this process. In a child of multiprocessing it is still being handled.

    `earlier_error` is the result of `get_last_error` when the run was opened.
    """
    error = getattr(sys, "last_value", None)
    if error is None or id(error) == earlier_error:
        error = sys.exc_info()[1]
    return error is not None and not isinstance(error, SystemExit)


def build_default_run_name(host: str) -> str:
    """Returns a run name from the local time and the host name."""
    return f"{time.strftime('%Y-%m-%d-%H%M%S')}-{host.split('.')[0]}"


def derive_run_uid(project: str, name: str, process_attempt: ProcessAttempt) -> str:
    """Returns the uid of a new run. All processes of the attempt compute the same uid without communicating."""
    if not process_attempt.has_unique_id:
        return create_run_uid()
    seed = "\0".join((project, name, process_attempt.attempt)).encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(seed).digest()).decode().lower()[:20]


def create_run_uid() -> str:
    return base64.b32encode(uuid.uuid4().bytes).decode().lower()[:20]


@dataclass(frozen=True, slots=True)
class RunIdentity:
    uid: str
    project: str
    name: str


def claim_checkpoint_folder(folder: Path, project: str, name: str, proposed: RunIdentity) -> RunIdentity:
    """Returns the run that owns this checkpoint folder: the stored one, else `proposed`, which is then stored.

    `project` and `name` are the requested ones, "" for any. A folder that was copied to start a run of another name or
    project becomes that run's folder. Raises OSError.
    """
    path = folder / RUN_FILE
    stored = _read_run_file(path)
    if stored and name in ("", stored.name) and project in ("", stored.project):
        return stored
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{RUN_FILE}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        temporary.write_text(json.dumps(asdict(proposed)) + "\n", "utf-8")
        if stored is None and not path.exists():
            return _link_run_file(temporary, path, proposed)
        temporary.replace(path)
        return proposed
    finally:
        temporary.unlink(missing_ok=True)


def _link_run_file(temporary: Path, path: Path, proposed: RunIdentity) -> RunIdentity:
    """Stores the run. Of several processes that start together one wins, and all others use its run."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return _read_run_file(path) or proposed
    except OSError:  # the file system does not support links
        temporary.replace(path)
    return proposed


def _read_run_file(path: Path) -> RunIdentity | None:
    try:
        note = json.loads(path.read_bytes())
        identity = RunIdentity(str(note["uid"]), str(note["project"]), str(note["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return identity if UID_PATTERN.match(identity.uid) else None
