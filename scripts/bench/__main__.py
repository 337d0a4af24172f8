"""Prints each budget with what was measured. Quote the ratios; absolute numbers belong to the machine of the day."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from scripts.bench import baseline, client, load, replay, screen, slime
from tests.support.server import Product


def row(what: str, measured: str, budget: str) -> None:
    sys.stdout.write(f"{what:58} {measured:>30}   {budget}\n")
    sys.stdout.flush()


def workload(into: Path, records: int) -> list[Path]:
    script = Path(__file__).with_name("workload.py")
    subprocess.run([sys.executable, script, into, "--records", str(records)], check=True, stdout=subprocess.DEVNULL)
    return sorted(into.glob("*.jsonl"), key=lambda file: int(file.stem))


def trainer_side(server: Product, files: list[Path]) -> None:
    row("import rolloutdeck", f"{client.import_ms():.1f} ms", "<= 30 ms")
    run = load.open_run(server, "blocked")
    for what, value in client.blocked(run, files[:5]).items():
        budget = "<= 12 ms" if "stall" in what else "<= 2 ms"
        row(f"one step of 1,024: {what}", f"{value:.2f}", budget)
    with suppress(ImportError):  # torch comes with the demo only
        from scripts.bench import trl

        row("TRL callback, 1,024 x 1,000 tokens: blocked, median ms", f"{trl.blocked(run):.2f}", "<= 5 ms")
    ended, hooked = slime.blocked(run)
    row("slime, 1,024 x 1,000 tokens: end of a rollout, median ms", f"{ended:.2f}", "<= 5 ms")
    row("  its sample hook, 1,024 calls while it generates", f"{hooked:.2f}", "")


def server_side(server: Product, files: list[Path], records: int, scratch: Path) -> None:
    for what, value in load.latency(server, files[:5]).items():
        row(f"logged to visible in the API, {what}", f"{value:.0f}", "<= 250 ms")
    raw = sum(file.stat().st_size for file in files)
    plain = baseline.parquet_loop(files, scratch / "baseline")
    row(
        "plain loop: orjson -> Parquet zstd-1, per 1,024",
        f"{plain / len(files) * 1000:.0f} ms",
        "30 ms where budgets were set",
    )
    found = load.sustained(server, files)
    row(f"sustained, {records:,} samples, {raw / 1e6:.0f} MB", f"{found['samples/s']:,.0f} samples/s", ">= 10,000")
    row("  ratio to a plain orjson -> Parquet zstd-1 loop", f"{found['seconds'] / plain:.2f} x its {plain:.1f} s", "")
    row("disk, all included", f"{found['disk MB'] * 1e6 / raw:.2f} x the JSONL", "<= 0.7 x")
    uid = server.get("runs/?project=bench&name=sustained")["results"][0]["id"]
    few = load.page(server, uid, len(files))
    row("page of 50 sorted by score at one step", f"{few:.1f} ms", "<= 30 ms")
    many = load.many_steps(server, files[0], 1000)
    row("  the same in a run of 1,000 steps", f"{many:.1f} ms, {many / few:.2f} x", "<= 1.3 x")
    for needle in ("heapq.merge(*runs)", "费马小定理"):
        ms, hits = load.search(server, uid, needle)
        row(f"exact substring over all: {needle}", f"{ms:.0f} ms, {hits} hits", "<= 600 ms at 630 MB")


def replay_side(server: Product, scratch: Path, size: int = 1 << 30) -> None:
    folder = replay.step_folder(scratch / "kept", size)
    plain = replay.copied(folder, scratch / "copy")
    found = replay.pulled(server, folder, scratch / "pulled")
    row("artifact of 1 GB: cp and sha256sum", f"{plain:.1f} s", "")
    row("  logged, sent, kept and judged", f"{found['sent']:.1f} s", "")
    row("  pulled: fetched, hashed, judged, in place", f"{plain / found['pulled']:.2f} x that speed", ">= 0.5 x")
    row("  memory of pull", f"{found['MB']:.0f} MB", "<= 200 MB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--records", type=int, default=10240, help="10240 or 102400")
    parser.add_argument("--metric-steps", type=int, default=10000)
    parser.add_argument("--screen-steps", type=int, default=10000, help="steps of the long run that Chromium opens")
    parser.add_argument("--only-screen", action="store_true", help="only what is measured in Chromium")
    parser.add_argument("--skip-memory", action="store_true", help="leave out the 2 GB of the memory row")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-bench-files-") as folder:
        files = workload(Path(folder) / "workload", told.records)
        with Product() as server:
            if not told.only_screen:
                everything_else(server, files, told, Path(folder))
            for measured in screen.measured(server, files[0], told.screen_steps):
                row(*measured)


def everything_else(server: Product, files: list[Path], told: argparse.Namespace, folder: Path) -> None:
    trainer_side(server, files)
    server_side(server, files, told.records, folder)
    for what, value in load.metrics(server, names=200, steps=told.metric_steps).items():
        row(f"metrics, {what}", f"{value:,.0f}", "<= 150 ms" if "charts" in what else "")
    replay_side(server, folder)
    if told.skip_memory:
        return
    for what, value in load.memory(server, files).items():
        row(f"memory while 2 GB arrive, MB: {what}", f"{value:.0f}", "<= 700 MB, flat" if what == "peak" else "")


if __name__ == "__main__":
    main()
