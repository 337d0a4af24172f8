"""Counters and times of all processes of this machine.

Each process writes its own files to the folder in PROMETHEUS_MULTIPROC_DIR, and the process that is asked adds them
up (prometheus.github.io/client_python, "Multiprocess Mode"). `rolloutdeck up`, `web` and `worker` set the variable;
without it the numbers are those of one process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
FAST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
SLOW: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

RESPONSES = Counter(
    "rolloutdeck_responses", "HTTP responses by kind (page, api, upload, static, probe) and status.", ["kind", "status"]
)
RESPONSE_SECONDS = Histogram(
    "rolloutdeck_response_seconds", "Time until a response was complete, by kind.", ["kind"], buckets=FAST
)
DUMPS = Counter("rolloutdeck_index_attempts", "Attempts to index a dump, by format and outcome.", ["format", "outcome"])
INDEX_SECONDS = Histogram(
    "rolloutdeck_index_seconds", "Time of one attempt to index a dump, by format.", ["format"], buckets=SLOW
)
STORAGE_SECONDS = Histogram(
    "rolloutdeck_storage_seconds",
    "Time to write a file until it survives a power cut, by its kind.",
    ["kind"],
    buckets=FAST,
)
SOCKETS = Gauge("rolloutdeck_sockets", "Open pages that are notified of changes.", multiprocess_mode="livesum")


def build_registry() -> CollectorRegistry:
    """Returns the numbers of all processes of this machine, or of this one without a folder for them."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return REGISTRY
    remove_files_of_dead_processes(Path(folder))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return registry


def remove_files_of_dead_processes(folder: Path) -> None:
    """Removes the gauges of processes that were killed. Their counters stay."""
    for path in folder.glob("gauge_live*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            mark_process_dead(int(pid), str(folder))  # type: ignore[no-untyped-call]


def start_exporter(port: int) -> None:
    """Answers Prometheus on a port of its own, in a thread. For workers, which have no web server. Raises OSError."""
    start_http_server(port, registry=build_registry())
