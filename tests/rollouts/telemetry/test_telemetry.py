"""Metrics of several processes are added up, and log lines have the ids of what a thread works on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from rollouts.telemetry import LogIds, build_registry, set_log_ids

COUNT = """
import sys
from rollouts.telemetry import INDEX_SECONDS, RESPONSES, SOCKETS
RESPONSES.labels("page", 200).inc(2)
INDEX_SECONDS.labels("native").observe(0.2)
SOCKETS.inc(3)
print("done", flush=True)
sys.stdin.read()
"""


def read_numbers() -> dict[str, float]:
    lines = generate_latest(build_registry()).decode().splitlines()
    return {name: float(value) for name, _space, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_numbers_of_all_processes_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    pipe = subprocess.PIPE
    processes = [subprocess.Popen([sys.executable, "-c", COUNT], stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "done\n"
    numbers = read_numbers()
    assert numbers['rolloutdeck_responses_total{kind="page",status="200"}'] == 4
    assert numbers['rolloutdeck_index_seconds_count{format="native"}'] == 2
    assert numbers["rolloutdeck_sockets"] == 6
    processes[0].kill()
    for process in processes:
        process.communicate()
    numbers = read_numbers()
    assert numbers['rolloutdeck_responses_total{kind="page",status="200"}'] == 4, "counters stay"
    assert "rolloutdeck_sockets" not in numbers, "the pages of a killed process are closed"


def test_log_lines_have_the_ids_of_what_a_thread_works_on() -> None:
    record = logging.LogRecord("a", logging.INFO, "a.py", 1, "text", None, None)
    with set_log_ids(run="tsn1"), set_log_ids(dump=7):
        LogIds().filter(record)
    assert (record.__dict__["ids"], record.__dict__["run"], record.__dict__["dump"]) == (
        " run=tsn1 dump=7",
        "tsn1",
        "7",
    )
    LogIds().filter(record)
    assert record.__dict__["ids"] == ""


@pytest.mark.parametrize("form", ["line", "json"])
def test_the_settings_write_logs_in_both_forms(form: str) -> None:
    code = """
import django, logging; django.setup()
from rollouts.telemetry import set_log_ids
with set_log_ids(run="tsn1", dump=7):
    logging.getLogger("rollouts.test").warning("It failed: %s", "why")
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings", "ROLLOUTDECK_LOG_FORMAT": form}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if form == "line":
        assert done.stderr.endswith("WARNING rollouts.test: run=tsn1 dump=7 It failed: why\n")
        return
    line = json.loads(done.stderr)
    assert line.pop("time")
    assert line == {
        "level": "WARNING", "logger": "rollouts.test", "message": "It failed: why", "run": "tsn1", "dump": "7"
    }  # fmt: skip
