"""The dumps below tests/data that trainers and other programs wrote."""

from __future__ import annotations

from pathlib import Path

DUMPS = Path(__file__).parents[1] / "data"
REAL = (
    "verl_jsonl/**/*.jsonl", "trl/**/*.parquet", "slime/**/*.pt", "roll/**/*.jsonl", "roll/**/*.pkl",
    "cure/**/*data*.json", "cure/**/outputs-*.json", "cure/**/results-*.txt", "nemo_rl/**/*.jsonl",
    "verifiers/**/*.jsonl", "rllm/**/episode_*.json", "table/**/*.csv", "table/**/*.jsonl", "table/**/*.parquet",
    "table/**/*.table.json", "others/**/*.json", "others/**/*.jsonl", "others/**/*.parquet",
    "others/**/*.eval", "others/**/*.arrow", "metrics/**/*.json", "metrics/**/*.jsonl",
    "tinker/**/*_logtree.json", "tinker/**/*.jsonl", "skyrl/**/*.pkl", "skyrl/**/[!a]*.jsonl",
    "nemo_gym/**/*_collection.jsonl", "miles/**/*.pt",
)  # fmt: skip


def list_dumps() -> list[Path]:
    return sorted(path for pattern in REAL for path in DUMPS.glob(pattern))
