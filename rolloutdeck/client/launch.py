"""The processes that were started together: their ranks, and what they have in common.

A launcher sets the rank of each process in its environment (torch: RANK; Open MPI: OMPI_COMM_WORLD_RANK; MPICH and
Intel MPI: PMI_RANK; Slurm: SLURM_PROCID). Few set an id that is new for each start.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The first pair whose rank is set counts.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
# The number of processes on this machine: torchrun, deepspeed, Open MPI, MPICH and Intel MPI.
LOCAL_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
LOOPBACK_ADDRESSES = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
MAX_RANK = 10**6
RANDOM_AUTHKEY_BYTES = 32  # multiprocessing's default key; a program may set its own, which is not random


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a process in its launch, from 0, and how many processes there are (0: unknown)."""

    number: int
    world_size: int = 0


def detect_rank(environ: Mapping[str, str], rank: int | None = None, world_size: int | None = None) -> Rank | None:
    """Returns the given rank, else that of the environment; None if there is none.

    A child of multiprocessing has no rank of its own if the process that created it was started with that rank.
    """
    number, size = _parse_count(rank), _parse_count(world_size)
    if number is None and _has_inherited_rank(environ):
        return None
    return _read_rank(environ, number, size)


def detect_parent_rank(environ: Mapping[str, str]) -> Rank | None:
    """Returns the rank of the process that created this child of multiprocessing; None if this process
    got its rank variables from a launcher, not from its creator."""
    return _read_rank(environ) if _has_inherited_rank(environ) else None


def _read_rank(environ: Mapping[str, str], number: int | None = None, size: int | None = None) -> Rank | None:
    rank_name, size_name = _find_rank_variables(environ)
    number = _parse_count(environ.get(rank_name)) if number is None else number
    size = _parse_count(environ.get(size_name)) if size is None else size
    return None if number is None else Rank(number, size or 0)


def _find_rank_variables(environ: Mapping[str, str]) -> tuple[str, str]:
    known = (names for names in RANK_VARIABLES if _parse_count(environ.get(names[0])) is not None)
    return next(known, RANK_VARIABLES[0])


def _has_inherited_rank(environ: Mapping[str, str]) -> bool:
    return is_child_process() and _find_rank_variables(environ)[0] in read_start_variables(get_creator_pid())


def _parse_count(value: object) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if 0 <= number < MAX_RANK else None


def build_launch_key(
    environ: Mapping[str, str], rank: int | None = None, world_size: int | None = None, *, earlier: int = 0
) -> str:
    """Returns an attempt key from which the server finds the other processes of the launch; "" without ranks.

    See `LAUNCH_KEY_PATTERN`: processes of one launch have the same first part, and so have later launches of the same
    program. The server tells these apart by the ranks that have already reported. The last part is random, and the
    same in a process with a rank and its children. `earlier`: how often this process has opened and finished the run.
    It is in the first part: a slow rank may open the run for the first time when others open it again.
    """
    own = detect_rank(environ, rank, world_size)
    number = own or _read_rank(environ)
    if number is None or number.world_size < 2:
        return ""
    has_own_starter = own is not None and is_child_process()
    starter = derive_tree_id() if has_own_starter else describe_process(find_launcher_pid())
    tree = "" if has_own_starter or earlier else derive_tree_id()
    parts = [*_list_common_parts(environ, number.world_size, starter), *([str(earlier)] if earlier else [])]
    common = _hash(*parts)[:20]
    return f"launch-{common}-{number.number}-{_hash(starter)[:8]}-{(tree or uuid.uuid4().hex)[:12]}"


def _list_common_parts(environ: Mapping[str, str], world_size: int, starter: str) -> list[str]:
    """Returns what all processes of the launch have in common, and few others have."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    parts = [str(world_size), address, port]
    parts += [environ.get(name, "") for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")]
    if address.lower() in LOOPBACK_ADDRESSES:
        parts.append(read_machine_id())
    if not port and any(_parse_count(environ.get(name)) == world_size for name in LOCAL_SIZE_VARIABLES):
        parts.append(starter)
    return parts


def derive_tree_id() -> str:
    """Returns an id that a program and all its processes of multiprocessing share; "" if there is none.

    It is a hash of the secret key that multiprocessing creates in the program and passes to each process.
    """
    process = sys.modules.get("multiprocessing.process")
    key = bytes(process.current_process().authkey) if process else b""
    return _hash("tree", key.hex()) if len(key) == RANDOM_AUTHKEY_BYTES else ""


def describe_process(pid: int) -> str:
    """Returns an id of a process that no other process has, even after a restart; "" without /proc."""
    start_time = read_start_time(pid)
    return _hash(read_machine_id(), str(pid), start_time) if start_time else ""


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_child_process() -> bool:
    """Whether multiprocessing started this process."""
    process = sys.modules.get("multiprocessing.process")
    return "multiprocessing.util" in sys.modules and process is not None and process.parent_process() is not None


def get_child_name() -> str:
    """Returns the name of a process that multiprocessing started, such as "Process-1"; "" for others."""
    return str(sys.modules["multiprocessing.process"].current_process().name) if is_child_process() else ""


def get_creator_pid() -> int:
    """Returns the process that created this one; for multiprocessing's fork server the one that requested it."""
    return int(sys.modules["multiprocessing.process"].parent_process().pid) if is_child_process() else os.getppid()


def find_launcher_pid() -> int:
    """Returns the parent of this process; for a child of multiprocessing, the parent of the one that created it."""
    return read_parent_pid(get_creator_pid()) if is_child_process() else os.getppid()


def read_parent_pid(pid: int) -> int:
    """Returns 0 without /proc."""
    fields = _read_stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def read_start_time(pid: int) -> str:
    """Returns the start time of a process in kernel ticks, to detect reused process ids; "" without /proc."""
    fields = _read_stat(pid)
    return fields[19] if len(fields) > 19 else ""


def has_ended(pid: int) -> bool:
    """Whether a process has ended and only its parent has not asked for its exit status; False without /proc."""
    return _read_stat(pid)[:1] in (["Z"], ["X"])


def _read_stat(pid: int) -> list[str]:
    try:  # man 5 proc: the fields after the name are state, ppid, …; starttime is the twentieth
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def read_start_variables(pid: int) -> frozenset[str]:
    """Returns the names of the environment variables that a process was started with; none without /proc."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return frozenset()
    return frozenset(part.partition(b"=")[0].decode("utf-8", "replace") for part in data.split(b"\0") if part)


def read_machine_id() -> str:
    """Returns an id of the kernel boot and the pid namespace: process ids can be compared if it is equal."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
