"""Faults for a given time, chosen with a seed."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from tests.chaos.checks import check_everything
from tests.chaos.faults import describe_missing_faults, list_faults
from tests.chaos.postgres import Postgres
from tests.chaos.world import World


def run_storm(seconds: float, seed: int, *, postgres: Postgres | None = None) -> dict[str, int]:
    """Disturbs a server for `seconds` and checks the result. Returns the number of each fault and check."""
    rng = random.Random(seed)
    done: Counter[str] = Counter()
    with World(rng, postgres=postgres) as world:
        missing = describe_missing_faults(world)
        assert not (missing and os.environ.get("CI")), missing  # CI must not leave a fault out silently
        for reason in missing:
            print(f"left out: {reason}", flush=True)
        world.wait_for_start()
        faults = list_faults(world)
        order: list[str] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            order = order or rng.sample(sorted(faults), len(faults))  # each fault before one comes again
            name = order.pop()
            print(f"{seconds - (end - time.monotonic()):6.1f} s  {name}", flush=True)
            faults[name](world)
            done[name] += 1
            world.write_dump()
            time.sleep(rng.uniform(0, 1))
        world.finish()
        return {**done, **check_everything(world)}
