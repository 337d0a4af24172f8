"""Prints each budget and its measurement. Quote the ratios; absolute numbers depend on the machine.

With `--check`, exit status 1 and a list of the missed budgets; `--page FILE` writes all rows as Markdown.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.bench import baseline, client, exports, load, queues, replay, screen, slime
from scripts.bench.report import Report
from tests.support.server import Product

report = Report()
show = report.show


def write_workload(folder: Path, records: int) -> list[Path]:
    script = Path(__file__).with_name("workload.py")
    subprocess.run([sys.executable, script, folder, "--records", str(records)], check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.jsonl"), key=lambda file: int(file.stem))


def measure_trainer(server: Product, files: list[Path]) -> None:
    show("import rolloutdeck", f"{client.measure_import('import rolloutdeck'):.1f} ms")
    full = "import rolloutdeck; rolloutdeck.init"  # `init` is loaded at its first use
    show(f"  {full}, with the modules of torch", f"{client.measure_import(full):.1f} ms", "<= 30 ms")
    run = load.open_run(server, "blocked")
    for what, value in client.blocked(run, files[:5]).items():
        budget = "<= 8 ms" if "stall" in what else "<= 1 ms"
        show(f"one step of 1,024: {what}", f"{value:.2f}", budget)
    show_arrived(run, sum(len(client.rows_of(file)) for file in files[:5]))
    if find_spec("torch"):  # it comes with the demo only
        from scripts.bench import trl

        run = load.open_run(server, "blocked-trl")
        show("TRL callback, 1,024 x 1,000 tokens: blocked, median ms", f"{trl.blocked(run):.2f}", "<= 3 ms")
        show_arrived(run, trl.STEPS * trl.ROWS)
    run = load.open_run(server, "blocked-slime")
    ended, hooked = slime.blocked(run)
    show("slime, 1,024 x 1,000 tokens: end of a rollout, median ms", f"{ended:.2f}", "<= 5 ms")
    show("  its sample hook, 1,024 calls while it generates", f"{hooked:.2f}")
    show_arrived(run, slime.ROLLOUTS * slime.ROWS)


def show_arrived(run: Any, rows: int) -> None:
    """Ends the run. A client that records nothing would block nobody."""
    arrived, lost = load.finish_run(run)
    show("  rows that arrived", f"{arrived:,} rows, {lost:,} lost", f">= {rows:,} rows, <= 0 lost")


def measure_machine(files: list[Path], scratch: Path) -> float:
    """Returns the seconds of the plain loop. A machine slower than that of the budgets has more time for the rest."""
    seconds = baseline.measure_parquet_loop(files, scratch / "baseline")
    per_step = seconds / len(files) * 1000
    report.slowness = max(1.0, per_step / baseline.PLAIN_MS)
    show(
        "plain loop: orjson -> Parquet zstd-1, per 1,024",
        f"{per_step:.0f} ms",
        f"{baseline.PLAIN_MS:.0f} ms when the budgets were set",
    )
    return seconds


def measure_server(server: Product, files: list[Path], records: int, plain: float) -> None:
    load.wait_until_idle(server)
    for what, value in load.latency(server, files[:5]).items():
        show(f"logged to visible in the API, {what}", f"{value:.0f}", "<= 120 ms")
    raw = sum(file.stat().st_size for file in files)
    result = load.sustained(server, files)
    show(f"sustained, {records:,} samples, {raw / 1e6:.0f} MB", f"{result['samples/s']:,.0f} samples/s")
    ratio = f"{result['seconds'] / plain:.2f} x its {plain:.1f} s"
    show("  ratio to a plain orjson -> Parquet zstd-1 loop", ratio, "<= 1.8 x")
    show("disk, all included", f"{result['disk MB'] * 1e6 / raw:.2f} x the JSONL", "<= 0.75 x")
    uid = server.get("runs/?project=bench&name=sustained")["results"][0]["id"]
    few_ms = load.page(server, uid, len(files))
    show("page of 50 sorted by score at one step", f"{few_ms:.1f} ms", "<= 15 ms")
    many_ms = load.many_steps(server, files[0], 1000)
    show("  the same in a run of 1,000 steps", f"{many_ms:.1f} ms, {many_ms / few_ms:.2f} x", "<= 1.3 x")
    found = load.search(server, uid, files[0])
    show(
        "search for new text over all samples, cold",
        f"{found['ms'] / found['scan']:.2f} x a polars scan of {found['scan']:.0f} ms",
        "<= 1.2 x",
    )
    show("  the same text again", f"{found['again']:.0f} ms", "<= 30 ms")
    for row in exports.measure_exports(server, uid):
        show(*row)


def measure_replay(server: Product, scratch: Path, size: int = 1 << 30) -> None:
    folder = replay.write_step(scratch / "stored", size)
    plain = replay.measure_copy(folder, scratch / "copy")
    result = replay.measure_pull(server, folder, scratch / "pulled")
    show("artifact of 1 GB: cp and sha256sum", f"{plain:.1f} s")
    show("  logged, uploaded, stored and verified", f"{result['sent']:.1f} s")
    show("  pulled: downloaded, hashed, verified", f"{plain / result['pulled']:.2f} x that speed", ">= 0.5 x")
    show("  memory of pull", f"{result['MB']:.0f} MB", "<= 200 MB")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--records", type=int, default=102400, help="10240 or 102400 (default)")
    parser.add_argument("--metric-steps", type=int, default=10000)
    parser.add_argument("--screen-steps", type=int, default=10000, help="steps of the long run that Chromium opens")
    parser.add_argument("--only-screen", action="store_true", help="only the measurements in Chromium")
    parser.add_argument("--only-queues", action="store_true", help="only the review of a million samples")
    parser.add_argument("--skip-memory", action="store_true", help="skip the upload of 2 GB that measures memory")
    parser.add_argument("--check", action="store_true", help="fail with a list of missed budgets")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the rows to a page in Markdown")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-bench-files-") as folder:
        files = write_workload(Path(folder) / "workload", args.records)
        with Product() as server:
            if args.only_screen or args.only_queues:
                measure_machine(files, Path(folder))
            else:
                measure_all(server, files, args, Path(folder))
            with screen.open_chromium(server) as page:
                if not args.only_queues:
                    for row in screen.measure_pages(page, server, files[0], args.screen_steps):
                        show(*row)
                for row in queues.measure_queues(page, server, files[0]):
                    show(*row)
    if args.page:
        report.write_page(args.page, describe_machine(args.records))
    missed = report.list_missed()
    print("", *(missed or ["All budgets are met."]), sep="\n")
    return 1 if args.check and missed else 0


def describe_machine(records: int) -> str:
    """A line about what the numbers depend on."""
    load = f"{os.getloadavg()[2]:.1f}"
    return (
        f"Measured with {records:,} samples, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}; load average of the last 15 minutes {load}.\n"
    )


def measure_all(server: Product, files: list[Path], args: argparse.Namespace, folder: Path) -> None:
    load.wait_until_idle(server)
    idle = f"{server.anonymous_memory():.0f} MB, with mapped files {server.memory():.0f}"
    show("memory of all processes, idle after the start", idle, "<= 260 MB")
    plain = measure_machine(files, folder)
    measure_trainer(server, files)
    measure_server(server, files, args.records, plain)
    for what, value in load.metrics(server, names=200, steps=args.metric_steps).items():
        show(f"metrics, {what}", f"{value:,.0f}", "<= 150 ms" if "charts" in what else "")
    measure_replay(server, folder)
    if args.skip_memory:
        return
    budgets = {"peak": "<= 650 MB", "a minute later": "<= 350 MB"}
    for what, value in load.memory(server, files).items():
        show(f"memory, upload of 2 GB: {what}", f"{value:.0f} MB", budgets.get(what, ""))
    show("memory, with mapped files", f"{server.memory():.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
