"""Sends what earlier processes left in their spools: the work of `rolloutdeck sync`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.client import lease, spool
from rolloutdeck.client.dispatcher import NEVER_DUE, Dispatcher
from rolloutdeck.lib import OnceLogger, ServerClient, Settings, detect_created_owner, find_folder_owner, is_same_server

TIME_BUDGET_SECONDS = 30.0


@dataclass(slots=True)
class SyncResult:
    """Files sent, put aside for good (`rejected`), and still waiting; `bytes` sent.

    `live` spools belong to running processes that send them themselves, `others` to other users; `elsewhere` ones were
    written for another server. `problem` is why files still wait, "" when none do.
    """

    sent: int = 0
    bytes: int = 0
    rejected: int = 0
    waiting: int = 0
    live: int = 0
    elsewhere: int = 0
    others: int = 0
    problem: str = ""


def sync_spools(
    paths: Sequence[Path] = (),
    server: ServerClient | None = None,
    *,
    patience: float = TIME_BUDGET_SECONDS,
    progress: Callable[[int, int], None] = lambda sent, waiting: None,
) -> SyncResult:
    """Takes abandoned spools over and sends them, each under its own run and attempt.

    `paths` are spool roots, single spools, or folders of checkpoints; without any the place that `init` would use,
    and then only what was written for this server. Gives up after `patience` seconds without success. `progress` gets
    files sent and files waiting. Raises FileNotFoundError for a path that is not there and ValueError when no server
    is set.
    """
    settings = Settings.from_environment()
    if server is None and not settings.url:
        raise ValueError("No server is set: start one with `rolloutdeck up`, or set ROLLOUTDECK_URL.")
    server = server or ServerClient(settings.url, settings.token, settings.ca_bundle)
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"There is no folder {path}.")
    result = SyncResult()
    # A spool that is named by hand goes to the server that is named now.
    taken = [
        folder
        for below in paths or [spool.find_spool_root(settings)]
        for folder in _take_all(below, server.url, anywhere=bool(paths), result=result)
    ]
    _send_all(taken, server, patience, progress, result)
    return result


def _take_all(below: Path, url: str, *, anywhere: bool, result: SyncResult) -> list[Path]:
    """Not those of other users: a spool names files, which are read with the rights of whoever sends it."""
    taken, us = [], detect_created_owner(below)
    for folder in spool.find_spool_folders(below):
        meant = lease.read_spool_server(folder)
        if not spool.list_spool_files(folder):
            continue
        if find_folder_owner(folder) != us:
            result.others += 1
        elif meant and not anywhere and not is_same_server(meant, url):
            result.elsewhere += 1
        elif mine := lease.take_over_spool(folder, url):
            taken.append(mine)
        else:
            result.live += 1
    return taken


def _send_all(
    folders: list[Path], server: ServerClient, patience: float, progress: Callable[[int, int], None], result: SyncResult
) -> None:
    courier = Dispatcher(OnceLogger())
    total = sum(len(spool.list_spool_files(folder)) for folder in folders)
    settled = 0
    touched = good = time.monotonic()
    try:
        while (pause := courier.turn(server, folders)) != NEVER_DUE:
            now = time.monotonic()
            if settled < (settled := courier.counts["sent"] + courier.counts["rejected"]):
                good = now
                progress(courier.counts["sent"], total - settled)
            elif courier.kept and pause > patience or now - good + pause > patience:
                break
            if now - touched > lease.LEASE_RENEWAL_SECONDS:
                touched = now
                for folder in folders:
                    lease.renew_lease(folder)
            time.sleep(pause)
    finally:
        result.sent, result.bytes = courier.counts["sent"], courier.counts["bytes"]
        result.rejected = courier.counts["rejected"]
        result.waiting = sum(len(spool.list_spool_files(folder)) for folder in folders)
        result.problem = next(iter(courier.kept.values()), courier.trouble) if result.waiting else ""
        for folder in folders:
            if spool.list_spool_files(folder):
                lease.release_lease(folder)
            else:
                spool.remove_spool_folder(folder)
