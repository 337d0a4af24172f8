"""`rolloutdeck sync`: sends what processes that ended, or could not reach the server, left in their spools."""

from __future__ import annotations

import argparse
import sys

from rolloutdeck.cli.common import plural, say, sentence, server_of, settings_of
from rolloutdeck.client.sync import Synced, sync
from rolloutdeck.errors import BadInput


def main(args: argparse.Namespace) -> int:
    server = server_of(settings_of(args))
    shown = sys.stderr.isatty()

    def progress(sent: int, waiting: int) -> None:
        if shown:
            print(f"\r{plural(sent, 'file')} sent, {waiting:,} waiting ", end="", file=sys.stderr, flush=True)

    try:
        result = sync([args.spool] if args.spool else [], server, progress=progress)
    except (FileNotFoundError, ValueError) as error:
        raise BadInput(str(error)) from error
    if shown:
        say("")
    _report(result)
    return 1 if result.rejected or result.waiting else 0


def _report(result: Synced) -> None:
    if result == Synced():
        print("Nothing waits to be sent.")
        return
    print(f"{plural(result.sent, 'file')} sent ({result.bytes:,} bytes).")
    if result.rejected:
        say(f"{plural(result.rejected, 'file')} refused for good; each lies in rejected/ with the reason beside it.")
    if result.live:
        say(f"{plural(result.live, 'spool')} left to running processes, which send them themselves.")
    if result.others:
        say(f"{plural(result.others, 'spool')} of other users, who send them: a spool names files to read.")
    if result.elsewhere:
        say(f"{plural(result.elsewhere, 'spool')} written for another server; name a spool's folder to send it here.")
    if result.waiting:
        why = sentence(result.problem or "the server was not reached")
        say(f"{plural(result.waiting, 'file')} still waiting. {why}")
