"""Growth with the size of the database and with the number of workers, on a temporary PostgreSQL:

    python -m scripts.bench.scale --millions 1 10 --workers 1 2

Runs of a million samples each are copied from one real step inside the database; everything else goes through the
product. Prints tables in Markdown: a column for each size, and one for each number of workers.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg

from scripts.attack.load import Measurements, build_step, open_run, push_dump, push_step
from scripts.bench.load import count_indexed_dumps, wait_until
from tests.chaos.postgres import Postgres, find_programs
from tests.support.real_servers import forget_real_servers
from tests.support.server import Product

STEP_ROWS = 1024
RUN_STEPS = 977  # of a run of a million samples
SMALL_RUN_STEPS = 98  # of the run of 100,000 samples that is deleted
PROMPT_EPOCH = 100  # steps until the same prompts come again
REPEATS = 7
THROUGHPUT_STEPS = 100
TABLES = ("rollouts_sample", "rollouts_step", "rollouts_dump")
# What is different in the copies; other columns keep their values. `g` is the number of the new step.
STEP_CHANGES = {"run_id": "%(run)s", "attempt_id": "%(attempt)s", "step": "g"}
DUMP_CHANGES = STEP_CHANGES | {
    "identity": "encode(sha256(('i' || o.id || '-' || %(run)s || '-' || g)::bytea), 'hex')",
    "sha256": "encode(sha256(('d' || o.id || '-' || %(run)s || '-' || g)::bytea), 'hex')",
    "source": "o.source || ' ' || g",
}
SAMPLE_CHANGES = {
    "id": "substr(encode(sha256((o.id || '-' || t.id)::bytea), 'hex'), 1, 52)",
    "step_id": "t.id",
    "dump_id": "d.id",
    "prompt_key": f"substr(md5(o.prompt_key || (t.step %% {PROMPT_EPOCH})), 1, 26)",
    "score": "(('x' || substr(md5(o.id || t.id), 1, 6))::bit(24)::int %% 1000) / 1000.0",
}


class Growing:
    """A database that grows by runs that are copies of one step."""

    def __init__(self, server: Product, postgres: Postgres) -> None:
        self.server = server
        self.connection = psycopg.connect(
            host=str(postgres.folder), user="rolloutdeck", dbname="rolloutdeck", autocommit=True
        )
        self.measured, self.chance = Measurements(), random.Random(1)
        self.runs = self.copied_steps = 0
        uid = self.open_run("origin")
        self.push(uid, 1)
        self.origin = self.fetch_one("SELECT id FROM rollouts_run WHERE uid = %s", uid)

    def fetch_one(self, statement: str, *values: Any) -> Any:
        row = self.connection.execute(statement, values).fetchone()  # type: ignore[arg-type]  # not a literal
        assert row is not None, statement
        return row[0]

    def open_run(self, name: str) -> str:
        return open_run(self.server, name)

    def push(self, uid: str, step: int) -> float:
        """Pushes a step of samples. Returns the seconds until they can be queried."""
        body = build_step(self.chance, step, STEP_ROWS, words=60)
        started = time.perf_counter()
        push_step(self.measured, self.server, uid, step, body)
        query = f"samples/?run={uid}&split=train&step={step}&page_size=1"
        wait_until(lambda: self.has_samples(query), pause=0.01)
        assert not self.measured.errors, self.measured.errors[0]
        return time.perf_counter() - started

    def has_samples(self, query: str) -> bool:
        try:
            return bool(self.server.get(query)["count"])
        except OSError:  # the step is not known yet
            return False

    def add_run(self, steps: int) -> str:
        """Copies the first step of the origin `steps` times into a new run. Returns its uid."""
        self.runs += 1
        uid = self.open_run(f"copy-{self.runs}")
        run = self.fetch_one("SELECT id FROM rollouts_run WHERE uid = %s", uid)
        attempt = self.fetch_one("SELECT id FROM rollouts_attempt WHERE run_id = %s", run)
        values = {"run": run, "attempt": attempt, "origin": self.origin, "steps": steps}
        numbers = "generate_series(1, %(steps)s) g WHERE o.run_id = %(origin)s AND o.step = 1"
        self.copy("rollouts_step", STEP_CHANGES, numbers, values)
        self.copy("rollouts_dump", DUMP_CHANGES, f"{numbers} AND o.rows > 0", values)
        places = (
            "rollouts_step t JOIN rollouts_dump d ON d.run_id = t.run_id AND d.step = t.step WHERE t.run_id = %(run)s "
            "AND o.step_id = (SELECT id FROM rollouts_step WHERE run_id = %(origin)s AND step = 1) "
            "ORDER BY t.step, o.ordinal"
        )
        self.copy("rollouts_sample", SAMPLE_CHANGES, places, values, keeps_id=True)
        self.connection.execute("UPDATE rollouts_run SET version = version + 1 WHERE id = %s", [run])
        return uid

    def copy(
        self, table: str, changes: dict[str, str], source: str, values: dict[str, Any], *, keeps_id: bool = False
    ) -> None:
        listed = self.connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
            [table],
        ).fetchall()
        names = [name for (name,) in listed if keeps_id or name != "id"]
        columns = ", ".join(f'"{name}"' for name in names)
        copied = ", ".join(changes.get(name, f'o."{name}"') for name in names)
        statement = f"INSERT INTO {table} ({columns}) SELECT {copied} FROM {table} o, {source}"  # noqa: S608  all from this file
        self.connection.execute(statement, values)  # type: ignore[arg-type]  # not a literal

    def run_timed(self, statement: str) -> float:
        started = time.perf_counter()
        self.connection.execute(statement)  # type: ignore[arg-type]  # not a literal
        return time.perf_counter() - started


def grow(growing: Growing, millions: float) -> tuple[str, int]:
    """Adds runs of at most a million samples until there are so many. Returns uid and steps of the newest run."""
    started = time.perf_counter()
    uid, steps = "", 0
    while not uid or growing.copied_steps < round(millions * RUN_STEPS):
        steps = max(1, min(RUN_STEPS, round(millions * RUN_STEPS) - growing.copied_steps))
        uid = growing.add_run(steps)
        growing.copied_steps += steps
        done = growing.copied_steps / RUN_STEPS
        print(f"{done:g} of {millions:g} million samples after {time.perf_counter() - started:.0f} s", flush=True)
    for table in TABLES:
        growing.run_timed(f"VACUUM (ANALYZE) {table}")
    print(f"vacuumed after {time.perf_counter() - started:.0f} s", flush=True)
    return uid, steps


class Rows(dict[str, str]):
    """{operation: time or size}. Prints each as soon as it is measured."""

    def __setitem__(self, what: str, measured: str) -> None:
        super().__setitem__(what, measured)
        print(f"  {what}: {measured}", flush=True)


def measure(growing: Growing, uid: str, steps: int) -> Rows:
    rows = Rows()
    pushed = [growing.push(uid, RUN_STEPS + 1 + number) for number in range(REPEATS)]
    rows[f"push of {STEP_ROWS:,} samples until they can be queried"] = format_seconds(statistics.median(pushed))
    server = growing.server
    listed = f"/api/v1/samples/?run={uid}&split=train"
    first = server.get(f"samples/?run={uid}&split=train&step=1")["results"][0]
    pages = {
        "50 samples of one step by score": f"{listed}&step={(steps + 1) // 2}&ordering=score",
        "50 samples of the run by score": f"{listed}&ordering=score",
        "50 samples of the run by length": f"{listed}&ordering=-len",
        "count of `score>0.5` in the run": f"{listed}&q={quote('score>0.5')}&page_size=1",
        "count of `is:truncated` in the run": f"{listed}&q=is:truncated&page_size=1",
        "one sample with its text": f"/api/v1/samples/{first['id']}/",
        "samples of one prompt": f"{listed}&q={quote('prompt:' + first['prompt_key'])}",
        "all steps of the run": f"/api/v1/runs/{uid}/steps/?split=train&page_size=500",
    }
    for what, path in pages.items():
        rows[what] = measure_request(lambda path=path: server.fetch(path))  # type: ignore[misc]
    rows["delete a run of 100,000 samples"] = format_seconds(measure_deletion(growing))
    rows["vacuum of the samples after that"] = format_seconds(growing.run_timed("VACUUM (ANALYZE) rollouts_sample"))
    heap, indexes = (
        growing.fetch_one(f"SELECT {function}('rollouts_sample')") for function in ("pg_table_size", "pg_indexes_size")
    )
    rows["size of the samples' table, of its indexes"] = f"{heap / 1e9:.1f} GB, {indexes / 1e9:.1f} GB"
    return rows


def measure_throughput(server: Product) -> str:
    """Indexed samples per second of dumps that arrive faster than the workers index them."""
    uid, measured, chance = open_run(server, "throughput"), Measurements(), random.Random(1)
    bodies = [build_step(chance, step, STEP_ROWS) for step in range(1, THROUGHPUT_STEPS + 1)]
    started = time.perf_counter()
    for step, body in enumerate(bodies, start=1):
        push_dump(measured, server, uid, step, body)
    wait_until(lambda: count_indexed_dumps(server, uid) >= THROUGHPUT_STEPS)
    seconds = time.perf_counter() - started
    assert not measured.errors, measured.errors[0]
    return f"{THROUGHPUT_STEPS * STEP_ROWS / seconds:,.0f}"


def measure_request(fetch: Callable[[], object]) -> str:
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        fetch()
        times.append(time.perf_counter() - started)
    return f"{format_seconds(statistics.median(times[1:]))}, first {format_seconds(times[0])}"


def measure_deletion(growing: Growing) -> float:
    """Seconds that the product's own function takes, which the sweep calls for a run in the trash."""
    uid = growing.add_run(SMALL_RUN_STEPS)
    import django

    forget_real_servers(os.environ)
    os.environ |= {"ROLLOUTDECK_DATA": str(growing.server.data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    django.setup()
    from rollouts.maintenance.sweep import delete_run_permanently
    from rollouts.models import Run

    run = Run.objects.get(uid=uid)
    started = time.perf_counter()
    delete_run_permanently(run)
    return time.perf_counter() - started


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.scale", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--millions", type=float, nargs="*", default=[1], help="sizes (default: 1)")
    parser.add_argument("--workers", type=int, nargs="*", default=[], help="also measure so many worker processes")
    arguments = parser.parse_args()
    sizes = sorted(arguments.millions)
    columns: list[Rows] = []
    if sizes:
        with open_postgres() as postgres, Product() as server:
            growing = Growing(server, postgres)
            columns = [measure(growing, *grow(growing, size)) for size in sizes]
            growing.connection.close()
    rates = []
    for count in arguments.workers:
        with open_postgres(), Product(workers=count) as server:
            rates.append({"indexed samples per second": measure_throughput(server)})
    print_table([f"{size:g} million samples" for size in sizes], columns)
    print_table([f"{count} worker process{'es' if count > 1 else ''}" for count in arguments.workers], rates)


@contextmanager
def open_postgres() -> Iterator[Postgres]:
    """An empty database, which servers that start now use."""
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is missing: apt-get install postgresql")
    postgres = Postgres(programs)
    os.environ["TEST_DATABASE_URL"] = postgres.url
    try:
        yield postgres
    finally:
        postgres.remove()


def print_table(names: list[str], columns: Sequence[Mapping[str, str]]) -> None:
    if not columns:
        return
    print("\n| | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for what in columns[0]:
        print(f"| {what} | " + " | ".join(column[what] for column in columns) + " |")


if __name__ == "__main__":
    main()
