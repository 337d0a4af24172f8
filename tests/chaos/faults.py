"""The faults. Each takes a few seconds and leaves a world that can recover by itself, as real ones do."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.chaos.world import World, send_signal

PROCESSES = {"web": "dashboard.web_process", "worker": "celery", "redis": "redis", "supervisor": "supervisord"}
CLOCK_JUMPS = (3600, -3600, 100_000, -100_000)  # seconds
FULL_DISK_SECONDS = 6.0


def kill_server_process(world: World, name: str) -> None:
    pids = world.find_pids(PROCESSES[name])
    if pids:
        send_signal(world.rng.choice(pids), signal.SIGKILL)


def pause_server_process(world: World, name: str) -> None:
    pids = world.find_pids(PROCESSES[name])
    for pid in pids:
        send_signal(pid, signal.SIGSTOP)
    time.sleep(world.rng.uniform(0.5, 3))
    for pid in pids:
        send_signal(pid, signal.SIGCONT)


def kill_client(world: World, name: str) -> None:
    world.programs[name].kill()
    world.programs[name].wait()
    time.sleep(world.rng.uniform(0, 1))
    world.start(name)


def pause_client(world: World, name: str) -> None:
    world.programs[name].send_signal(signal.SIGSTOP)
    time.sleep(world.rng.uniform(0.5, 3))
    world.programs[name].send_signal(signal.SIGCONT)


def kill_postgres_backend(world: World) -> None:
    assert world.postgres
    if len(pids := world.postgres.pids()) > 1:
        world.postgres.kill(world.rng.choice(pids[1:]))


def kill_postgres(world: World) -> None:
    assert world.postgres
    for pid in world.postgres.pids():
        world.postgres.kill(pid)
    time.sleep(world.rng.uniform(0.2, 2))
    world.postgres.start()


def pause_postgres(world: World) -> None:
    assert world.postgres
    pids = world.postgres.pids()
    for pid in pids:
        send_signal(pid, signal.SIGSTOP)
    time.sleep(world.rng.uniform(0.5, 3))
    for pid in pids:
        send_signal(pid, signal.SIGCONT)


def fill_disk(world: World) -> None:
    """Fills the server's disk to the last byte and frees it some seconds later."""
    fill = world.disk / "fill"
    with fill.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    time.sleep(FULL_DISK_SECONDS)
    fill.unlink()


def jump_clock(world: World) -> None:
    world.product.clock.set_offset(world.rng.choice(CLOCK_JUMPS))
    time.sleep(world.rng.uniform(2, 4))
    world.product.clock.set_offset(0)


def cut_connections(world: World) -> None:
    world.proxy.cut_chance = 0.3
    time.sleep(world.rng.uniform(1, 4))
    world.proxy.cut_chance = 0.0


def repeat_requests(world: World) -> None:
    """Sends requests a second time, as a client does that got no answer."""
    for _try in range(3):
        world.proxy.repeat_requests()
        time.sleep(world.rng.uniform(0.2, 1))


def refuse_connections(world: World) -> None:
    world.proxy.is_down = True
    time.sleep(world.rng.uniform(0.5, 3))
    world.proxy.is_down = False


def list_faults(world: World) -> dict[str, Callable[[World], None]]:
    """Returns the faults that this machine can produce, by name."""
    faults: dict[str, Callable[[World], None]] = {
        "cut connections": cut_connections,
        "repeat requests": repeat_requests,
        "refuse connections": refuse_connections,
    }
    for name in PROCESSES:
        faults[f"kill {name}"] = partial(kill_server_process, name=name)
        faults[f"pause {name}"] = partial(pause_server_process, name=name)
    for name in ("trainer", "watch"):
        faults[f"kill {name}"] = partial(kill_client, name=name)
        faults[f"pause {name}"] = partial(pause_client, name=name)
    if world.postgres:
        faults |= {"kill backend": kill_postgres_backend, "kill PostgreSQL": kill_postgres}
        faults["pause PostgreSQL"] = pause_postgres
    if world.has_own_disk:
        faults["fill disk"] = fill_disk
    if world.product.clock.is_settable:
        faults["jump clock"] = jump_clock
    return faults


def describe_missing_faults(world: World) -> list[str]:
    """Returns the faults that this machine cannot produce, with the reason."""
    missing = []
    if not world.has_own_disk:
        missing.append("fill disk: a tmpfs cannot be mounted here, which needs root")
    if not world.product.clock.is_settable:
        missing.append("jump clock: there is no C compiler (apt-get install gcc libc6-dev)")
    return missing
