"""Half a minute of random faults on each database; `python -m tests.chaos` runs for longer."""

from __future__ import annotations

import os
import time

import pytest

from tests.chaos.postgres import Postgres, find_programs
from tests.chaos.storm import run_storm

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)  # another seed would hide what this one has found
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_random_faults_lose_and_repeat_nothing_that_was_acknowledged(database: str) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 100_000))
    print(f"again with CHAOS_SEED={seed}")
    programs = find_programs()
    if database == "postgres" and not programs:
        pytest.skip("PostgreSQL is not installed")
    postgres = Postgres(programs) if database == "postgres" and programs else None
    try:
        assert run_storm(SECONDS, seed, postgres=postgres)["samples"] > 0
    finally:
        if postgres:
            postgres.remove()
