"""Runs one process or command of the server in place of this process, without a supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from rolloutdeck.up import checks
from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.paths import (
    choose_data_folder,
    create_data_folders,
    create_socket_folder,
    create_telemetry_folder,
    find_server_folder,
    read_dotenv,
)
from rolloutdeck.up.processes import PROCESS_ENVIRONMENT, build_web_command, build_worker_command
from rolloutdeck.up.restore_checks import begin_restore, check_restore_finished


def run_server_command(name: str, words: list[str], data: Path | None) -> NoReturn:
    """Becomes `manage.py NAME WORDS` on a data folder. Raises StartRefusedError."""
    prepare_process()
    folder = choose_data_folder(data)
    if name == "restore":
        begin_restore(folder)
    else:
        check_restore_finished(folder)
        if not folder.is_dir():
            raise StartRefusedError(f"There is no data folder {folder}. Name it with --data.")
    replace_process([sys.executable, str(find_server_folder() / "manage.py"), name, *words], folder)


def run_web(host: str, port: int, data: Path | None) -> NoReturn:
    """Becomes one web process. Raises StartRefusedError."""
    folder = prepare_data(data)
    checks.check_host(host, os.environ.get("ROLLOUTDECK_PUBLIC_URL", ""))
    if not 0 < port < 65536:
        raise StartRefusedError(f"{port} is not a port. Choose one between 1 and 65535 with --port.")
    replace_process(build_web_command(host, port), folder, build_process_environment(folder))


def run_worker(processes: int, metrics_port: int, data: Path | None) -> NoReturn:
    """Becomes one worker, which answers Prometheus if it has a port for that. Raises StartRefusedError."""
    folder = prepare_data(data)
    name = ["--hostname", f"worker-{os.getpid()}@%h"]  # of several on one machine
    port = {"ROLLOUTDECK_METRICS_PORT": str(metrics_port)} if metrics_port else {}
    replace_process([*build_worker_command(processes), *name], folder, build_process_environment(folder) | port)


def run_migrations(words: list[str], data: Path | None) -> NoReturn:
    """Becomes the command that creates or changes the tables. Raises StartRefusedError."""
    folder = prepare_data(data)
    replace_process([sys.executable, str(find_server_folder() / "manage.py"), "prepare_database", *words], folder)


def build_process_environment(data: Path) -> dict[str, str]:
    return {**PROCESS_ENVIRONMENT, "PROMETHEUS_MULTIPROC_DIR": str(create_telemetry_folder(data))}


def prepare_data(data: Path | None) -> Path:
    """Returns the data folder, which is created if it does not exist. Raises StartRefusedError."""
    prepare_process()
    folder = choose_data_folder(data)
    check_restore_finished(folder)
    checks.check_database(folder)
    create_data_folders(folder)
    return folder


def prepare_process() -> None:
    os.umask(0o077)
    checks.check_python()
    read_dotenv()


def replace_process(argv: list[str], data: Path, variables: dict[str, str] | None = None) -> NoReturn:
    server = find_server_folder()
    redis = os.environ.get("REDIS_URL") or f"unix://{create_socket_folder(data) / 'redis.sock'}"
    path = os.pathsep.join(filter(None, [str(server), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "ROLLOUTDECK_DATA": str(data), "REDIS_URL": redis, "PYTHONPATH": path, **(variables or {})}
    sys.stdout.flush()
    os.execve(argv[0], argv, env)
