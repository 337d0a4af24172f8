"""The command `rolloutdeck up`: starts the product on one machine, under one supervisor."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from rolloutdeck.up import checks
from rolloutdeck.up.bootstrap import bootstrap_server, write_local_server_file
from rolloutdeck.up.console import ConsoleSession, print_line
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import ServerPaths, acquire_data_lock, create_data_folders, find_server_folder
from rolloutdeck.up.processes import ServerProgram, build_demo_program, build_product_programs, build_watch_program
from rolloutdeck.up.supervisor import Supervisor

HOST = "127.0.0.1"
PORT = 8460
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(args: argparse.Namespace) -> int:
    """Run until Ctrl-C. Reads `args.paths data host port demo`; returns 0, 1 (a part did not start) or 2 (refused)."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: ask_to_stop(stop)) for number in STOP_SIGNALS}
    try:
        run(args, stop)
    except (StartRefusedError, StartFailedError) as error:
        print(error, file=sys.stderr, flush=True)
        return 2 if isinstance(error, StartRefusedError) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def ask_to_stop(stop: threading.Event) -> None:
    """The first Ctrl-C stops in order, the second at once."""
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()


def run(args: argparse.Namespace, stop: threading.Event) -> None:
    checks.check_python()
    read_dotenv()
    host, port = args.host or HOST, args.port or PORT
    public = os.environ.get("ROLLOUTDECK_PUBLIC_URL", "").rstrip("/")
    checks.check_host(host, public)
    data = Path(args.data or os.environ.get("ROLLOUTDECK_DATA") or "~/.rolloutdeck/data").expanduser().absolute()
    checks.check_database(data)
    places = create_data_folders(data)
    lock = acquire_data_lock(places)
    try:
        checks.check_port(host, port)
        serve(args, places, lock, ServerAddress(host, port, public), stop)
    finally:
        os.close(lock)


class ServerAddress:
    """Where the web process listens, the address that people type, and the one that this machine uses."""

    def __init__(self, host: str, port: int, public: str) -> None:
        self.host, self.port = host, port
        reachable = host.strip("[]") if checks.is_loopback(host) else HOST if host in ("0.0.0.0", "::") else ""
        bracketed = f"[{reachable}]" if ":" in reachable else reachable
        self.public = public or f"http://{bracketed}:{port}"
        self.local = f"http://{bracketed}:{port}" if reachable else self.public


def read_dotenv() -> None:
    """The checkout's `.env`, as the settings read it: what the shell has set wins."""
    dotenv = find_server_folder() / ".env"
    if dotenv.exists():
        import environ

        environ.Env.read_env(dotenv)


def build_server_environment(places: ServerPaths, address: ServerAddress) -> dict[str, str]:
    """What every program inherits: one data folder, one Redis, one address, and the server on the import path."""
    path = os.pathsep.join(filter(None, [str(places.server), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "ROLLOUTDECK_DATA": str(places.data),
        "ROLLOUTDECK_PUBLIC_URL": address.public,
        "REDIS_URL": os.environ.get("REDIS_URL") or f"unix://{places.sockets / 'redis.sock'}",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }


def serve(
    args: argparse.Namespace, places: ServerPaths, lock: int, address: ServerAddress, stop: threading.Event
) -> None:
    env = build_server_environment(places, address)
    first = bootstrap_server(places, env)
    programs = build_product_programs(
        places, address.host, address.port, shared_redis=bool(os.environ.get("REDIS_URL"))
    )
    programs += extras(args, places, address.local)
    supervisor = Supervisor(places, programs, lock, env)
    session = ConsoleSession(supervisor, address.local)
    try:
        supervisor.start()
        session.wait_for_web(stop)
        if not stop.is_set():
            write_local_server_file(address.local, first["token"], places.data)
            print_line(f"Rolloutdeck runs at {address.public} (data in {places.data}).")
            print_line(f"Sign in as {first['user']} with this link, once:\n\n    {first['link']}\n")
            start_extras(args, supervisor)
            print_line("Ctrl-C stops everything.")
            session.follow(stop)
        print_line("Stopping.")
        supervisor.stop()
    finally:
        supervisor.kill()


def extras(args: argparse.Namespace, places: ServerPaths, url: str) -> list[ServerProgram]:
    """What was asked for besides the server; started when the web process answers."""
    asked = []
    if args.paths:
        asked.append(build_watch_program(places, [Path(path).expanduser().absolute() for path in args.paths], url))
    if args.demo and checks.has_torch():
        asked.append(build_demo_program(places, url))
    return asked


def start_extras(args: argparse.Namespace, supervisor: Supervisor) -> None:
    for program in supervisor.programs:
        if program.after_web:
            supervisor.start_program(program.name)
    if args.paths:
        print_line(f"Watching {', '.join(map(str, args.paths))}.")
    if args.demo and checks.has_torch():
        print_line("The demo trains a small model on sums; its first samples come after a short warm-up.")
    elif args.demo:
        print_line(
            f"The demo needs torch, which is not installed "
            f"(pip install {checks.TORCH_REQUIREMENT}); everything else runs."
        )
