"""Who this process is: which launch of the training it belongs to, and which run."""

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
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.protocol import UID_PATTERN

ATTEMPT_VARIABLE = "ROLLOUTDECK_ATTEMPT"
RUN_FILE = ".rolloutdeck-run.json"
_RAY_SESSION = re.compile(r"session_[\d_-]+\d")


@dataclass(frozen=True, slots=True)
class ProcessAttempt:
    """`attempt` is shared by all processes of one launch; `job` is what the launcher calls it, for people."""

    attempt: str
    host: str
    job: str = ""
    shared: bool = True


_UNPRINTED = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def clean_name(value: object, most: int) -> str:
    """A name as the server takes it: no control characters or half surrogates, at most `most` characters."""
    return _UNPRINTED.sub("?", str(value)).strip()[:most]


def build_project_slug(project: str) -> str:
    """A project's name in the form that projects have: lower-case letters, digits, - and _."""
    kept = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKC", clean_name(project, 80)).lower())
    return re.sub(r"[-\s]+", "-", kept).strip("-_")


def get_host_name() -> str:
    return clean_name(socket.gethostname(), 120) or "unknown"


def detect_attempt(environ: MutableMapping[str, str] | None = None) -> ProcessAttempt:
    """Reads the attempt from the environment, else from the launcher; else makes one and leaves it to children."""
    environ = os.environ if environ is None else environ
    host, (launcher, unique) = get_host_name(), _launcher(environ)
    launcher = clean_name(launcher, 120)
    given = environ.get(ATTEMPT_VARIABLE, "").strip()
    if given:
        return ProcessAttempt(clean_name(given, 120), host, launcher)
    if launcher:
        return ProcessAttempt(launcher, host, launcher, shared=unique)
    environ[ATTEMPT_VARIABLE] = attempt = _of_torchrun(environ, host) or uuid.uuid4().hex
    return ProcessAttempt(attempt, host)


def _of_torchrun(environ: Mapping[str, str], host: str) -> str:
    """What all ranks of a torchrun, or accelerate, on this machine alone have in common and no other launch has: their
    parent. "" elsewhere. Its own name for a launch is the same for each, unless somebody gave one."""
    if environ.get("GROUP_WORLD_SIZE") != "1" or "TORCHELASTIC_RESTART_COUNT" not in environ:
        return ""
    parent = os.getppid()
    try:
        since = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]  # man 5 proc: starttime
    except (OSError, IndexError):
        return ""
    told = (host, str(parent), since, environ["TORCHELASTIC_RESTART_COUNT"])
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:32]


def _launcher(environ: MutableMapping[str, str]) -> tuple[str, bool]:
    """The launcher's id of this launch, and whether no other launch anywhere can have the same."""
    if ray := environ.get("RAY_JOB_ID"):
        # Every new Ray cluster counts its jobs from 1, so a restart of a one-machine training has the same job id;
        # worker processes have the cluster's session in their arguments.
        session = next((found[0] for part in sys.argv if (found := _RAY_SESSION.search(part))), "")
        return f"ray-{ray}-{session}" if session else f"ray-{ray}", bool(session)
    torch = environ.get("TORCHELASTIC_RUN_ID", "none")
    if torch != "none":  # torchrun's default without a rendezvous, the same for every launch
        return f"torchrun-{torch}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", True
    if slurm := environ.get("SLURM_JOB_ID"):
        return f"slurm-{slurm}-{environ.get('SLURM_RESTART_COUNT', '0')}", True
    return "", False


def is_lead_process(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process speaks for its launch: the first of its ranks, and none of Ray's workers."""
    environ = os.environ if environ is None else environ
    return not environ.get("RAY_JOB_ID") and all(environ.get(rank, "0") == "0" for rank in ("RANK", "SLURM_PROCID"))


def build_default_run_name(host: str) -> str:
    return f"{time.strftime('%Y-%m-%d-%H%M%S')}-{host.split('.')[0]}"


def derive_run_uid(project: str, name: str, launch: ProcessAttempt) -> str:
    """A uid for a new run that every process of the launch arrives at without asking the others."""
    if not launch.shared:
        return create_run_uid()
    digest = hashlib.sha256("\0".join((project, name, launch.attempt)).encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode().lower()[:20]


def create_run_uid() -> str:
    return base64.b32encode(uuid.uuid4().bytes).decode().lower()[:20]


@dataclass(frozen=True, slots=True)
class RunIdentity:
    uid: str
    project: str
    name: str


def claim_checkpoint_folder(folder: Path, project: str, name: str, wanted: RunIdentity) -> RunIdentity:
    """The run that owns this checkpoint folder: the one noted there, else `wanted`, which is then noted.

    `project` and `name` are what was asked for, "" where nothing was. A folder copied to start a run of another name
    or project becomes that run's. Raises OSError.
    """
    path = folder / RUN_FILE
    noted = _noted(path)
    if noted and name in ("", noted.name) and project in ("", noted.project):
        return noted
    folder.mkdir(parents=True, exist_ok=True)
    note = {"uid": wanted.uid, "project": wanted.project, "name": wanted.name}
    temporary = folder / f"{RUN_FILE}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary.write_text(json.dumps(note) + "\n", "utf-8")
    if noted is None and not path.exists():
        return _link_run_file(temporary, path, wanted)
    temporary.replace(path)
    return wanted


def _link_run_file(temporary: Path, path: Path, wanted: RunIdentity) -> RunIdentity:
    """Of several processes that start at once, one note wins and all follow it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return _noted(path) or wanted
    except OSError:  # a file system without links
        temporary.replace(path)
        return wanted
    finally:
        temporary.unlink(missing_ok=True)
    return wanted


def _noted(path: Path) -> RunIdentity | None:
    try:
        note = json.loads(path.read_bytes())
        found = RunIdentity(str(note["uid"]), str(note["project"]), str(note["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if UID_PATTERN.match(found.uid) else None
