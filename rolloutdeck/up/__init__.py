"""`rolloutdeck up`: the whole product on one machine, under one supervisor."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from rolloutdeck.up import checks
from rolloutdeck.up.bootstrap import leave_local, prepare
from rolloutdeck.up.console import Session, say
from rolloutdeck.up.errors import Broken, Refused
from rolloutdeck.up.paths import Places, lay_out, server_path, take_lock
from rolloutdeck.up.processes import Program, demo, product, watch
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
    except (Refused, Broken) as error:
        print(error, file=sys.stderr, flush=True)
        return 2 if isinstance(error, Refused) else 1
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
    places = lay_out(data)
    lock = take_lock(places)
    try:
        checks.check_port(host, port)
        serve(args, places, lock, Address(host, port, public), stop)
    finally:
        os.close(lock)


class Address:
    """Where the web process listens, the address that people type, and the one that this machine uses."""

    def __init__(self, host: str, port: int, public: str) -> None:
        self.host, self.port = host, port
        reachable = host.strip("[]") if checks.is_loopback(host) else HOST if host in ("0.0.0.0", "::") else ""
        bracketed = f"[{reachable}]" if ":" in reachable else reachable
        self.public = public or f"http://{bracketed}:{port}"
        self.local = f"http://{bracketed}:{port}" if reachable else self.public


def read_dotenv() -> None:
    """The checkout's `.env`, as the settings read it: what the shell has set wins."""
    dotenv = server_path() / ".env"
    if dotenv.exists():
        import environ

        environ.Env.read_env(dotenv)


def environment(places: Places, address: Address) -> dict[str, str]:
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


def serve(args: argparse.Namespace, places: Places, lock: int, address: Address, stop: threading.Event) -> None:
    env = environment(places, address)
    first = prepare(places, env)
    programs = product(places, address.host, address.port, shared_redis=bool(os.environ.get("REDIS_URL")))
    programs += extras(args, places, address.local)
    supervisor = Supervisor(places, programs, lock, env)
    session = Session(supervisor, address.local)
    try:
        supervisor.start()
        session.wait_for_web(stop)
        if not stop.is_set():
            leave_local(address.local, first["token"], places.data)
            say(f"Rolloutdeck runs at {address.public} (data in {places.data}).")
            say(f"Sign in as {first['user']} with this link, once:\n\n    {first['link']}\n")
            start_extras(args, supervisor)
            say("Ctrl-C stops everything.")
            session.follow(stop)
        say("Stopping.")
        supervisor.stop()
    finally:
        supervisor.kill()


def extras(args: argparse.Namespace, places: Places, url: str) -> list[Program]:
    """What was asked for besides the server; started when the web process answers."""
    asked = []
    if args.paths:
        asked.append(watch(places, [Path(path).expanduser().absolute() for path in args.paths], url))
    if args.demo and checks.has_torch():
        asked.append(demo(places, url))
    return asked


def start_extras(args: argparse.Namespace, supervisor: Supervisor) -> None:
    for program in supervisor.programs:
        if program.after_web:
            supervisor.start_program(program.name)
    if args.paths:
        say(f"Watching {', '.join(map(str, args.paths))}.")
    if args.demo and checks.has_torch():
        say("The demo trains a small model on sums; its first samples come after a short warm-up.")
    elif args.demo:
        say(f"The demo needs torch, which is not installed (pip install {checks.TORCH}); everything else runs.")
