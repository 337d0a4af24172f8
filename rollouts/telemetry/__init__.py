"""What the server says about itself: counters and times for Prometheus, and logs with the ids of runs and dumps.

Depends on: prometheus_client and python-json-logger.
Invariant: no label has a name that people choose, so the number of time series is bounded. Gauges from the database are
in `dashboard/api/views/server_metrics.py`.
"""

from rollouts.telemetry.instruments import (
    DUMPS,
    INDEX_SECONDS,
    RESPONSE_SECONDS,
    RESPONSES,
    SOCKETS,
    STORAGE_SECONDS,
    build_registry,
    start_exporter,
)
from rollouts.telemetry.log_ids import LogIds, set_log_ids

__all__ = [
    "DUMPS", "INDEX_SECONDS", "LogIds", "RESPONSES", "RESPONSE_SECONDS", "SOCKETS", "STORAGE_SECONDS",
    "build_registry", "set_log_ids", "start_exporter",
]  # fmt: skip
