"""The commands that run on the server's machine: its processes without a supervisor, and those of `manage.py`, such as
`backup`."""

from __future__ import annotations

import argparse

from rolloutdeck.errors import UsageError
from rolloutdeck.up import (
    StartRefusedError,
    check_backup_exists,
    run_migrations,
    run_server_command,
    run_web,
    run_worker,
)


def main(args: argparse.Namespace) -> int:
    """Does not return if the server's process or command starts; that has its own exit status."""
    if args.command == "restore" and args.data is None:
        raise UsageError("Name a new data folder with --data.")
    try:
        match args.command:
            case "web":
                run_web(args.host, args.port, args.data)
            case "worker":
                run_worker(args.processes, args.metrics_port, args.data)
            case "migrate":
                run_migrations(["--link"] if args.link else [], args.data)
            case _:
                if args.command == "restore":  # before anything is created
                    check_backup_exists(args.destination.expanduser().absolute(), args.backup)
                run_server_command(args.command.replace("-", "_"), args.words, args.data)
    except StartRefusedError as error:
        raise UsageError(str(error)) from error
