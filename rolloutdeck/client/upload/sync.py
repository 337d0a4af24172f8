"""Uploads the spools of earlier processes: the work of `rolloutdeck sync`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.client import lease, spool
from rolloutdeck.client.upload.dispatcher import NEVER_DUE, Dispatcher
from rolloutdeck.lib import OnceLogger, ServerClient, Settings, detect_created_owner, find_folder_owner, is_same_server

TIME_BUDGET_SECONDS = 30.0


@dataclass(slots=True)
class SyncResult:
    """Numbers of files sent, permanently rejected (`rejected`) and still waiting; `bytes` sent.

    `live_spools` belong to running processes that upload them, `other_user_spools` to other users;
    `other_server_spools` were written for another server. `error` says why files still wait, "" if none do.
    """

    sent: int = 0
    bytes: int = 0
    rejected: int = 0
    waiting: int = 0
    live_spools: int = 0
    other_server_spools: int = 0
    other_user_spools: int = 0
    error: str = ""


def sync_spools(
    paths: Sequence[Path] = (),
    server: ServerClient | None = None,
    *,
    time_budget: float = TIME_BUDGET_SECONDS,
    progress: Callable[[int, int], None] = lambda sent, waiting: None,
) -> SyncResult:
    """Takes abandoned spools over and uploads them, each under its own run and attempt.

    `paths` are spool roots, single spools or checkpoint folders. Without paths the spool root of `init` is used, and
    only data written for this server. Gives up after `time_budget` seconds without success. `progress` is called with
    the numbers of files sent and waiting. Raises FileNotFoundError if a path does not exist, and ValueError if no
    server is set.
    """
    settings = Settings.from_environment()
    if server is None and not settings.url:
        raise ValueError("No server is set: start one with `rolloutdeck up`, or set ROLLOUTDECK_URL.")
    server = server or ServerClient(settings.url, settings.token, settings.ca_bundle)
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"There is no folder {path}.")
    result = SyncResult()
    folders: list[Path] = []
    for root in paths or [spool.find_spool_root(settings)]:
        # A spool that the user names is sent to the current server.
        folders += _take_over_spools(root, server.url, any_server=bool(paths), result=result)
    _upload_spools(folders, server, time_budget, progress, result)
    return result


def _take_over_spools(root: Path, url: str, *, any_server: bool, result: SyncResult) -> list[Path]:
    """Takes spools over, but not those of other users: they name files, which are read with this process's rights."""
    taken, our_owner = [], detect_created_owner(root)
    for folder in spool.find_spool_folders(root):
        spool_server, owner = lease.read_spool_server(folder), find_folder_owner(folder)
        # A spool of another user is counted without a look at its files, which may be unreadable.
        if owner in (our_owner, None) and not spool.list_spool_files(folder):
            continue
        if owner != our_owner:
            result.other_user_spools += 1
        elif spool_server and not any_server and not is_same_server(spool_server, url):
            result.other_server_spools += 1
        elif new_folder := lease.take_over_spool(folder, url):
            taken.append(new_folder)
        else:
            result.live_spools += 1
    return taken


def _upload_spools(
    folders: list[Path],
    server: ServerClient,
    time_budget: float,
    progress: Callable[[int, int], None],
    result: SyncResult,
) -> None:
    dispatcher = Dispatcher(OnceLogger())
    total = sum(len(spool.list_spool_files(folder)) for folder in folders)
    finished = 0
    last_renewal = last_success = time.monotonic()
    try:
        while (pause := dispatcher.send_next(server, folders)) != NEVER_DUE:
            now = time.monotonic()
            if finished < (finished := dispatcher.counts["sent"] + dispatcher.counts["rejected"]):
                last_success = now
                progress(dispatcher.counts["sent"], total - finished)
            elif dispatcher.action_required_reasons and pause > time_budget or now - last_success + pause > time_budget:
                break
            if now - last_renewal > lease.LEASE_RENEWAL_SECONDS:
                last_renewal = now
                for folder in folders:
                    lease.renew_lease(folder)
            time.sleep(pause)
    finally:
        result.sent, result.bytes = dispatcher.counts["sent"], dispatcher.counts["bytes"]
        result.rejected = dispatcher.counts["rejected"]
        result.waiting = sum(len(spool.list_spool_files(folder)) for folder in folders)
        reasons = dispatcher.action_required_reasons.values()
        result.error = next(iter(reasons), dispatcher.last_error) if result.waiting else ""
        for folder in folders:
            if spool.list_spool_files(folder):
                lease.release_lease(folder)
            else:
                spool.remove_spool_folder(folder)
