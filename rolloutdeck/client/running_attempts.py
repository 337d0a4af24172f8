"""Other attempts of the run that run at the same time, because their launch is unknown.

The server knows when it heard of them last. On their host, the leases of the spools show whether they still run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import lease, spool
from rolloutdeck.client.process_identity import get_host_name
from rolloutdeck.lib import RunClient, ServerUnreachableError, logger

REQUEST_SECONDS = 10.0
WARNING = (
    "Another process reports to the run %s as a separate attempt%s: it runs at the same time or ended a moment ago. "
    "The rows of all attempts that run at the same time are shown. If they are one training, set ROLLOUTDECK_ATTEMPT "
    "to the same new value in all of its processes, or pass rank and world_size to init()."
)


def report_running_attempts(
    running: Any, spool_root: Path, run_name: str, attempt: str, connect: Callable[[float], RunClient | None]
) -> None:
    """Tells the server which of these attempts have ended, and warns of the others.

    `running` is the server's list of {"attempt", "host", "keys"}. If a killed process was restarted on the same host,
    its attempt has ended, and this one supersedes its steps.
    """
    others = [dict(other) for other in running if isinstance(other, Mapping)] if isinstance(running, list) else []
    alive = find_running_attempts(spool_root)
    ended = [str(other.get("attempt")) for other in others if _has_ended(other, alive)]
    client = connect(REQUEST_SECONDS) if ended else None
    if client:
        try:
            client.send_json("POST", "heartbeat/", {"attempt": attempt, "ended": ended})
        except ServerUnreachableError as error:  # the server notices their silence
            logger.debug("The ended attempts were not reported: %s", error)
    if left := [other for other in others if str(other.get("attempt")) not in ended]:
        host = str(left[0].get("host") or "")
        logger.warning(WARNING, run_name, f" on the host {host}" if host else "")


def find_running_attempts(spool_root: Path) -> set[str]:
    """Returns the attempts of the processes of this machine that use this folder of spools."""
    return {lease.read_running_attempt(folder) for folder in spool.find_spool_folders(spool_root)} - {""}


def _has_ended(other: Mapping[str, Any], alive: Collection[str]) -> bool:
    """Whether the attempt ran on this host and none of its processes does."""
    keys = {str(other.get("attempt")), *map(str, other.get("keys") or ())}
    return other.get("host") == get_host_name() and not keys & set(alive)
