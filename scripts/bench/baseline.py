"""The baselines: a plain loop orjson -> pyarrow -> Parquet zstd-1, one file per step, in one process; a bare scan."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

PLAIN_MS = 30.0  # of the loop per 1,024 samples, on the machine on which the budgets were set


def measure_parquet_loop(files: list[Path], into: Path, times: int = 3) -> float:
    """Returns the seconds of the fastest of some loops."""
    return min(run_parquet_loop(files, into) for _ in range(times))


def run_parquet_loop(files: list[Path], into: Path) -> float:
    """Converts JSONL files to Parquet files and returns the seconds."""
    into.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    for file in files:
        rows = [orjson.loads(line) for line in file.read_bytes().split(b"\n") if line]
        table = pa.Table.from_pylist(rows)
        pq.write_table(
            table, into / f"{file.stem}.parquet", compression="zstd", compression_level=1, row_group_size=128
        )
    return time.perf_counter() - started


def scan_bodies(files: list[Path], needle: str) -> list[str]:
    """Returns the ids of all samples in these Parquet files whose prompt or response contains `needle`."""
    has_needle = [pl.col(name).str.contains(needle, literal=True) for name in ("prompt", "response")]
    query = pl.concat([pl.scan_parquet(file).filter(pl.any_horizontal(has_needle)).select("id") for file in files])
    return query.collect(engine="streaming")["id"].to_list()
