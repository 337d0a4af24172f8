"""The command `rolloutdeck up`: starts the server on one machine, under one supervisor."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TypedDict

from rolloutdeck.up import checks
from rolloutdeck.up.console import ConsoleSession, print_line
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import ServerPaths, acquire_data_lock, create_data_folders, find_server_folder
from rolloutdeck.up.processes import build_demo_program, build_product_programs, build_watch_program
from rolloutdeck.up.supervisor import Supervisor, describe_log_tail

HOST = "127.0.0.1"
PORT = 8460
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(args: argparse.Namespace) -> int:
    """Runs until Ctrl-C. Returns 0, 1 (a process did not start), 2 (a check failed) or 130 (a second Ctrl-C)."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: request_stop(stop)) for number in STOP_SIGNALS}
    try:
        run(args, stop)
    except (StartRefusedError, StartFailedError) as error:
        print(error, file=sys.stderr, flush=True)
        return 2 if isinstance(error, StartRefusedError) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def request_stop(stop: threading.Event) -> None:
    """Handles a stop signal: the first stops the processes in order, the second raises KeyboardInterrupt."""
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
    paths = create_data_folders(data)
    lock = acquire_data_lock(paths)
    try:
        checks.check_port(host, port)
        serve(args, paths, lock, ServerAddress(host, port, public), stop)
    finally:
        os.close(lock)


class ServerAddress:
    """The host and port of the web process, the URL for users (`public`), and the URL on this machine (`local`)."""

    def __init__(self, host: str, port: int, public: str) -> None:
        self.host, self.port = host, port
        reachable = host.strip("[]") if checks.is_loopback(host) else HOST if host in ("0.0.0.0", "::") else ""
        bracketed = f"[{reachable}]" if ":" in reachable else reachable
        self.public = public or f"http://{bracketed}:{port}"
        self.local = f"http://{bracketed}:{port}" if reachable else self.public


def read_dotenv() -> None:
    """Loads the checkout's `.env`, as the Django settings do. Variables of the shell have priority."""
    dotenv = find_server_folder() / ".env"
    if dotenv.exists():
        import environ

        environ.Env.read_env(dotenv)


def build_server_environment(paths: ServerPaths, address: ServerAddress) -> dict[str, str]:
    """Returns the environment of all programs: the data folder, the Redis, the public URL and the import path."""
    path = os.pathsep.join(filter(None, [str(paths.server), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "ROLLOUTDECK_DATA": str(paths.data),
        "ROLLOUTDECK_PUBLIC_URL": address.public,
        "REDIS_URL": os.environ.get("REDIS_URL") or f"unix://{paths.sockets / 'redis.sock'}",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }


def serve(
    args: argparse.Namespace, paths: ServerPaths, lock: int, address: ServerAddress, stop: threading.Event
) -> None:
    """Starts all programs, prints the sign-in link and waits for the stop. Raises StartFailedError.

    The programs for PATH and --demo are started when the web process answers.
    """
    env = build_server_environment(paths, address)
    bootstrap = bootstrap_server(paths, env)
    programs = build_product_programs(paths, address.host, address.port, shared_redis=bool(os.environ.get("REDIS_URL")))
    if args.paths:
        watched = [Path(path).expanduser().absolute() for path in args.paths]
        programs.append(build_watch_program(paths, watched, address.local))
    if args.demo and checks.has_torch():
        programs.append(build_demo_program(paths, address.local))
    supervisor = Supervisor(paths, programs, lock, env)
    session = ConsoleSession(supervisor, address.local)
    try:
        supervisor.start()
        session.wait_for_web(stop)
        if not stop.is_set():
            write_local_server_file(address.local, bootstrap["token"], paths.data)
            print_line(f"Rolloutdeck is running at {address.public} (data in {paths.data}).")
            print_line(f"Sign in as {bootstrap['user']} with this link (valid once):\n\n    {bootstrap['link']}\n")
            start_extra_programs(args, supervisor)
            print_line("Ctrl-C stops everything.")
            session.follow(stop)
        print_line("Stopping.")
        supervisor.stop()
    finally:
        supervisor.kill()


def start_extra_programs(args: argparse.Namespace, supervisor: Supervisor) -> None:
    for program in supervisor.programs:
        if program.after_web:
            supervisor.start_program(program.name)
    if args.paths:
        print_line(f"Watching {', '.join(map(str, args.paths))}.")
    if args.demo and checks.has_torch():
        print_line("The demo trains a small model to calculate. Its first samples appear after a short warm-up.")
    elif args.demo:
        print_line(
            f"The demo is not started, because torch is not installed (pip install {checks.TORCH_REQUIREMENT}). "
            "Everything else is running."
        )


class BootstrapResult(TypedDict):
    """The output of the `bootstrap` command. `link` signs the user in once."""

    user: str
    token: str
    link: str


def bootstrap_server(paths: ServerPaths, env: dict[str, str]) -> BootstrapResult:
    """Runs the server's `bootstrap` command and saves the local token. Raises StartFailedError if it fails."""
    log = paths.logs / "first_start.log"
    argv = [sys.executable, str(paths.server / "manage.py"), "bootstrap"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with log.open("wb") as errors:
        process = subprocess.run(argv, cwd=paths.server, env=env, stdin=null, stdout=pipe, stderr=errors)
    if process.returncode:
        raise StartFailedError(f"Can't prepare the database. {describe_log_tail(log)}")
    result: BootstrapResult = json.loads(process.stdout)
    write_private_file(paths.token, result["token"])
    return result


def write_local_server_file(url: str, token: str, data: Path) -> None:
    """Writes ~/.rolloutdeck/local.json, the default server of the command line and of `init()`."""
    folder = Path.home() / ".rolloutdeck"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private_file(folder / "local.json", json.dumps({"url": url, "token": token, "data": str(data)}))


def write_private_file(path: Path, text: str) -> None:
    """Replaces the file atomically. Only this user may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(path)
