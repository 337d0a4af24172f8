"""The commands `backup`, `restore`, `fsck` and `forget`, which run on the server's machine."""

from __future__ import annotations

import argparse

from rolloutdeck.errors import UsageError
from rolloutdeck.up import StartRefusedError, run_server_command


def main(args: argparse.Namespace) -> int:
    """Does not return if the server's command starts; that has its own exit status."""
    if args.command == "restore" and args.data is None:
        raise UsageError("Name a new data folder with --data.")
    try:
        run_server_command(args.command, args.words, args.data)
    except StartRefusedError as error:
        raise UsageError(str(error)) from error
