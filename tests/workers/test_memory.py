"""A record costs at most a fixed multiple of its size, and a worker keeps its memory limit. Real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MB = 1 << 20
GOOD = b'{"input": "2+2?", "output": "4", "score": 1}\n'
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def index_files(tmp_path: Path, limit: int, *bodies: bytes) -> list[dict[str, Any]]:
    paths = [tmp_path / f"{number}.jsonl" for number in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(body)
    command = [sys.executable, "-m", "tests.workers.index_in_process", str(tmp_path / "data"), *map(str, paths)]
    environment = {**os.environ, "ROLLOUTDECK_MAX_WORKER_MEMORY_MB": str(limit)}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def build_record(values: bytes, size: int) -> bytes:
    return b'{"input": "2+2?", "output": "4", "x": [' + values * (size // len(values)) + b"0]}\n"


def test_a_record_that_needs_much_more_memory_than_its_size_is_rejected_alone(tmp_path: Path) -> None:
    lists, objects = build_record(b"[],", 20 * MB), build_record(b'{"a":1},', 20 * MB)
    (result,) = index_files(tmp_path, 2000, GOOD + lists + objects + GOOD)
    assert (result["state"], result["rows"]) == ("indexed", 2)
    assert [line for line, _ in result["problems"]] == [2, 3]
    assert "so many small values that they need about" in result["problems"][0][1]
    assert result["memory"] < 6 * 20 * MB


def test_records_of_usual_shapes_are_accepted_and_small_ones_do_not_add_up(tmp_path: Path) -> None:
    shapes = [b"998,", b"-0.1234567,", b"[998,-0.5],", b'{"token":" the","logprob":-0.123,"bytes":[32,116]},']
    small_lists = build_record(b"[],", 3 * MB) * 10
    wide, narrow = index_files(tmp_path, 2000, GOOD.join(build_record(shape, 5 * MB) for shape in shapes), small_lists)
    assert (wide["rows"], wide["problems"], narrow["rows"]) == (7, [], 10)
    assert narrow["memory"] < 700 * MB  # 1,100 MB without limits of a batch in bytes


def test_a_file_that_reaches_the_limit_of_a_worker_is_failed_and_the_next_one_is_indexed(tmp_path: Path) -> None:
    large, usual = index_files(tmp_path, 300, build_record(b"998,", 3 * MB) * 10, GOOD)
    assert (large["state"], large["tries"]) == ("failed", 1)
    assert large["message"].startswith("Indexing was stopped because it needs more than 300 MB of memory.")
    assert (usual["state"], usual["rows"]) == ("indexed", 1)
