"""Load of clients and readers, of open pages, of reviewers, and searches next to the worst regular expression.

    python -m scripts.attack load --seconds 60 --clients 200 --readers 50
    python -m scripts.attack sockets
    python -m scripts.attack regex
    python -m scripts.attack queues --postgres

Starts a server of its own on 127.0.0.1. Exit status 1: a budget is missed. On a busy machine latencies are upper
bounds.
"""

from __future__ import annotations

import argparse
import os
import sys

from scripts.attack.load import LoadOptions, run_load
from scripts.attack.queues import QueueOptions, run_queues
from scripts.attack.regex import run_regex
from scripts.attack.sockets import SocketOptions, run_sockets
from tests.support.server import Product


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.attack", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    clients = commands.add_parser("load", help="clients push and readers open pages at the same time")
    clients.add_argument("--seconds", type=float, default=60, help="default: %(default)s")
    clients.add_argument("--clients", type=int, default=100, help="default: %(default)s")
    clients.add_argument("--readers", type=int, default=20, help="default: %(default)s")
    clients.add_argument(
        "--every",
        type=float,
        default=5,
        help="seconds between two steps of a client (default: %(default)s)",
    )
    clients.add_argument(
        "--pause",
        type=float,
        default=1,
        help="seconds between two pages of a reader, on average (default: %(default)s)",
    )
    sockets = commands.add_parser("sockets", help="many pages of one live run are open")
    sockets.add_argument("--seconds", type=float, default=60, help="a step each second (default: %(default)s)")
    sockets.add_argument("--sockets", type=int, default=1000, help="open pages (default: %(default)s)")
    sockets.add_argument("--watchers", type=int, default=50, help="pages in the foreground (default: %(default)s)")
    regex = commands.add_parser("regex", help="one person runs the worst regular expression, another one searches")
    regex.add_argument("--seconds", type=float, default=20, help="of each measurement (default: %(default)s)")
    queues = commands.add_parser("queues", help="many people answer the items of one review queue")
    queues.add_argument("--seconds", type=float, default=60, help="default: %(default)s")
    queues.add_argument("--clients", type=int, default=40, help="default: %(default)s")
    queues.add_argument("--items", type=int, default=20_000, help="default: %(default)s")
    queues.add_argument("--every", type=float, default=3, help="seconds for an item (default: %(default)s)")
    queues.add_argument("--postgres", action="store_true", help="use a temporary PostgreSQL instead of SQLite")
    for command in (clients, sockets, regex, queues):
        command.add_argument("--web", type=int, default=os.cpu_count(), help="web processes (default: one per core)")
    arguments = parser.parse_args()
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"{cores} cores, load average {busy:.1f} before the start")
    if busy > cores / 2:
        print("This machine is busy: latencies are upper bounds.")
    if arguments.command == "queues":
        options = QueueOptions(arguments.seconds, arguments.clients, arguments.items, arguments.every, arguments.web)
        return 0 if run_queues(options, use_postgres=arguments.postgres) else 1
    with Product(web=arguments.web) as server:
        if arguments.command == "regex":
            is_met = run_regex(server, arguments.seconds)
        elif arguments.command == "sockets":
            is_met = run_sockets(server, SocketOptions(arguments.sockets, arguments.watchers, arguments.seconds))
        else:
            load = LoadOptions(
                arguments.seconds, arguments.clients, arguments.readers, arguments.every, arguments.pause
            )
            is_met = run_load(server, load)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
