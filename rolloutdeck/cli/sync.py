"""`rolloutdeck sync`: uploads the spool files of processes that ended or could not reach the server."""

from __future__ import annotations

import argparse
import sys

from rolloutdeck.cli.common import connect, format_count, format_sentence, print_message
from rolloutdeck.client import SyncResult, sync_spools
from rolloutdeck.errors import UsageError


def main(args: argparse.Namespace) -> int:
    _, server = connect(args)
    is_terminal = sys.stderr.isatty()

    def progress(sent: int, waiting: int) -> None:
        if is_terminal:
            print(f"\r{format_count(sent, 'file')} sent, {waiting:,} waiting ", end="", file=sys.stderr, flush=True)

    try:
        result = sync_spools([args.spool] if args.spool else [], server, progress=progress)
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error
    if is_terminal:
        print_message("")
    _report(result)
    return 1 if result.rejected or result.waiting else 0


def _report(result: SyncResult) -> None:
    if result == SyncResult():
        print("Nothing to send.")
        return
    print(f"{format_count(result.sent, 'file')} sent ({result.bytes:,} bytes).")
    if result.rejected:
        print_message(
            f"{format_count(result.rejected, 'file')} refused permanently and moved to rejected/, "
            "each with a file that gives the reason."
        )
    if result.live_spools:
        print_message(
            f"{format_count(result.live_spools, 'spool')} of running processes skipped: they send it themselves."
        )
    if result.other_user_spools:
        print_message(
            f"{format_count(result.other_user_spools, 'spool')} of other users skipped: a spool names files to read, "
            "so only its owner may send it."
        )
    if result.other_server_spools:
        print_message(
            f"{format_count(result.other_server_spools, 'spool')} written for another server skipped. "
            "To send a spool to this server, give its folder."
        )
    if result.waiting:
        why = format_sentence(result.error or "the server was not reached")
        print_message(f"{format_count(result.waiting, 'file')} still waiting. {why}")
