"""The command `rolloutdeck up`: starts the server on one machine, under one supervisor."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rolloutdeck.lib import (
    find_home_folder,
    is_loopback_host,
    record_local_server,
    remove_local_server,
    write_private_file,
)
from rolloutdeck.up import checks
from rolloutdeck.up.console import ConsoleSession, print_line
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import (
    ServerPaths,
    acquire_data_lock,
    choose_data_folder,
    create_data_folders,
    create_telemetry_folder,
    is_open_to_others,
    open_log,
    read_dotenv,
)
from rolloutdeck.up.processes import build_demo_program, build_product_programs, build_watch_program
from rolloutdeck.up.restore_checks import check_restore_finished
from rolloutdeck.up.supervisor import Supervisor, describe_log_tail

HOST = "127.0.0.1"
PORT = 8460
# What a command needs so that it makes a link for this server. Their values may be secrets.
SIGN_IN_VARIABLES = ("DATABASE_URL", "ROLLOUTDECK_SECRET_KEY", "ROLLOUTDECK_STORAGE")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(args: argparse.Namespace) -> int:
    """Runs until Ctrl-C. Returns 0, 1 (a process did not start), 2 (a check failed) or 130 (a second Ctrl-C)."""
    stop = threading.Event()
    # `nohup` ignores SIGHUP, and the `&` of a script SIGINT: they stay ignored.
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda *_: request_stop(stop)) for number in numbers}
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
    os.umask(0o077)  # of this process and all programs: data files are private whatever the folder's mode
    checks.check_python()
    read_dotenv()
    checks.check_redaction(args.paths)
    host, port = args.host or HOST, args.port or PORT
    public = os.environ.get("ROLLOUTDECK_PUBLIC_URL", "").rstrip("/")
    checks.check_host(host, public)
    data = choose_data_folder(args.data)
    check_restore_finished(data)
    checks.check_database(data)
    checks.check_redis(os.environ.get("REDIS_URL", ""))
    paths = create_data_folders(data)
    if is_open_to_others(data):
        print_line(f"Other users may list {data}, not read what is in it. To close it: chmod 700 {data}")
    lock = acquire_data_lock(paths)
    try:
        checks.check_port(host, port)
        serve(args, paths, lock, ServerAddress(host, port, public), stop)
    finally:
        os.close(lock)


class ServerAddress:
    """The host and port of the web process, the URL for users (`public`), and the URL on this machine (`local`).

    `direct` is the URL of the web process itself, without a proxy. There, only the health check accepts every host.
    """

    def __init__(self, host: str, port: int, public: str) -> None:
        self.host, self.port = host, port
        name = {"0.0.0.0": HOST, "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
        bracketed = f"[{name}]" if ":" in name else name
        self.direct = f"http://{bracketed}:{port}"
        self.public = public or self.direct
        self.local = self.direct if is_loopback_host(name) else self.public


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
        "PROMETHEUS_MULTIPROC_DIR": str(create_telemetry_folder(paths.data)),
    }


def serve(
    args: argparse.Namespace, paths: ServerPaths, lock: int, address: ServerAddress, stop: threading.Event
) -> None:
    """Starts all programs, prints the sign-in link and waits for the stop. Raises StartFailedError.

    The programs for PATH and --demo are started when the web process answers.
    """
    env = build_server_environment(paths, address)
    for numbers in Path(env["PROMETHEUS_MULTIPROC_DIR"]).glob("*.db"):  # of processes that were killed
        numbers.unlink(missing_ok=True)
    bootstrap = bootstrap_server(paths, env, stop)
    if bootstrap is None:
        return
    programs = build_product_programs(
        paths,
        address.host,
        address.port,
        shared_redis=bool(os.environ.get("REDIS_URL")),
        web=args.web,
        workers=args.workers,
    )
    if args.paths:
        watched = [Path(path).expanduser().absolute() for path in args.paths]
        programs.append(build_watch_program(paths, watched, address.local))
    if args.demo and checks.has_torch():
        programs.append(build_demo_program(paths, address.local))
    supervisor = Supervisor(paths, programs, lock, env)
    session = ConsoleSession(supervisor, address.direct)
    try:
        supervisor.start()
        session.wait_for_web(stop)
        if not stop.is_set():
            print_line(f"Rolloutdeck is running at {address.public} (data in {paths.data}).")
            record_server(address, bootstrap["token"], paths)
            print_line(describe_sign_in(bootstrap, paths))
            start_extra_programs(args, supervisor)
            print_line("Ctrl-C stops everything.")
            session.follow(stop)
        print_line("Stopping.")
        supervisor.stop()
        if server := remove_local_server(address.local):
            print_line(f"Commands and trainers use your server at {server['url']} again.")
    finally:
        supervisor.kill()
        shutil.rmtree(env["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)


def record_server(address: ServerAddress, token: str, paths: ServerPaths) -> None:
    """Makes this server the default of the user's commands. Prints what that means for other servers of the user."""
    try:
        others = record_local_server(address.local, token, paths.data)
    except OSError as error:  # an account without a home folder
        print_line(f"{find_home_folder()} can't be written ({error.strerror}), so commands do not find this server.")
        variables = f"ROLLOUTDECK_URL={address.local} ROLLOUTDECK_TOKEN_FILE={shlex.quote(str(paths.token))}"
        print_line(f"Commands and trainers on this machine need: {variables}")
        return
    for other in others:
        print_line(f"You have another server at {other['url']} (data in {other['data']}).")
    if others:
        print_line("Commands and trainers use the new one unless you set --url or ROLLOUTDECK_URL.")


def describe_sign_in(bootstrap: BootstrapResult, paths: ServerPaths) -> str:
    """Returns the text with the sign-in link, or, for systemd's journal, how to get one: many users may read that."""
    if not is_journal(sys.stdout.fileno()):
        return f"Sign in as {bootstrap['user']} with this link (valid once, for 24 hours):\n\n    {bootstrap['link']}\n"
    public = bootstrap["link"].partition("/sign-in/")[0]
    variables = f"ROLLOUTDECK_DATA={shlex.quote(str(paths.data))} ROLLOUTDECK_PUBLIC_URL={shlex.quote(public)}"
    command = f"{variables} {sys.executable} {shlex.quote(str(paths.server / 'manage.py'))} bootstrap"
    names = [name for name in SIGN_IN_VARIABLES if os.environ.get(name)]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    needs = f" as the server's user, with the {listed} of this server" if names else " as the server's user"
    return f"To sign in as {bootstrap['user']}, print a link that is valid once{needs}:\n\n    {command}\n"


def is_journal(handle: int) -> bool:
    """Returns whether the handle is connected to systemd's journal (systemd.exec(5), JOURNAL_STREAM)."""
    status = os.fstat(handle)
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def start_extra_programs(args: argparse.Namespace, supervisor: Supervisor) -> None:
    for program in supervisor.programs:
        if program.after_web:
            supervisor.start_program(program.name)
    print_watched_paths(args.paths)
    if args.demo and checks.has_torch():
        print_line("The demo trains a small model to calculate. Its first samples appear after a short warm-up.")
    elif args.demo:
        install = f"{shlex.quote(sys.executable)} -m pip install {checks.TORCH_REQUIREMENT}"
        print_line(f"The demo is not started, because torch is not installed: {install}")
        print_line('Everything else is running. "Load demo data" on the start page needs no torch.')


def print_watched_paths(paths: Sequence[Path]) -> None:
    there = [str(path) for path in paths if path.exists()]
    missing = [str(path) for path in paths if not path.exists()]
    for verb, names in (("Watching", there), ("Waiting for", missing)):
        if names:
            print_line(f"{verb} {', '.join(names)}.")


class BootstrapResult(TypedDict):
    """The output of the `bootstrap` command. `link` signs the user in once."""

    user: str
    token: str
    link: str


def bootstrap_server(paths: ServerPaths, env: dict[str, str], stop: threading.Event) -> BootstrapResult | None:
    """Runs the server's `bootstrap` command and saves the local token. Raises StartFailedError if it fails.

    Returns None if a stop was requested meanwhile: a terminal's Ctrl-C ends the command too.
    """
    log = paths.logs / "first_start.log"
    argv = [sys.executable, str(paths.server / "manage.py"), "bootstrap"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with open_log(log) as errors:
        process = subprocess.run(argv, cwd=paths.server, env=env, stdin=null, stdout=pipe, stderr=errors)
    if stop.is_set():
        return None
    if process.returncode:
        tail = describe_log_tail(log)
        for kind in ("ImproperlyConfigured: ", "CommandError: "):  # what the user can correct, in a sentence
            _, is_named, message = tail.rpartition(kind)
            if is_named:
                raise StartRefusedError(" ".join(message.split()))
        raise StartFailedError(f"Can't prepare the database. {tail}")
    result: BootstrapResult = json.loads(process.stdout)
    if not paths.token.exists() or paths.token.read_text(encoding="utf-8") != result["token"]:
        write_private_file(paths.token, result["token"])
    return result
