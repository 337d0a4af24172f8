"""The baseline: a plain loop orjson -> pyarrow -> Parquet zstd-1, one file per step, in one process."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq


def parquet_loop(files: list[Path], into: Path) -> float:
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
