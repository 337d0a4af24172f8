"""Disturbs a server with random faults for some minutes and checks that nothing acknowledged is lost.

    python -m tests.chaos --seconds 600 --seed 1
    python -m tests.chaos --seconds 600 --postgres

As root it also fills a disk (a mounted tmpfs), and with a C compiler it sets the clock.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos.postgres import Postgres, find_programs
from tests.chaos.storm import run_storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long faults happen (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000, help="chooses the faults")
    parser.add_argument("--postgres", action="store_true", help="use a temporary PostgreSQL instead of SQLite")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    programs = find_programs()
    if args.postgres and not programs:
        print("PostgreSQL is missing: apt-get install postgresql", file=sys.stderr)
        return 2
    postgres = Postgres(programs) if args.postgres and programs else None
    try:
        result = run_storm(args.seconds, args.seed, postgres=postgres)
    finally:
        if postgres:
            postgres.remove()
    for name, count in sorted(result.items()):
        print(f"{count:8,}  {name}")
    print("Everything acknowledged exists once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
