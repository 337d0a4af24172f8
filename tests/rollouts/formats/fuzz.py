"""Reads damaged copies of the real dumps in a process with limits: python -m tests.rollouts.formats.fuzz [--help].

Each copy must give records, problems or one sentence of refusal, in MAX_SECONDS of processor time and MAX_MEMORY.
The records are stored as indexing does. Prints a line per finding and, last, the number of cases per target as JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()

from rolloutdeck.safe_pickle import SafePickleError, check_file_safety
from rolloutdeck.safe_pickle.batches import open_batch
from rolloutdeck.watch import ScanOptions, scan_folders
from rollouts.errors import UnreadableDumpError
from rollouts.formats import FORMATS, HEAD_BYTES, DumpContext, Format, find_artifact_format, select_format
from rollouts.samples import BodyLayout, IndexRowBuilder, LineProblem, MetricPoint, Record, SkippedRow, extract_images
from tests.support.mutation import mutate

DATA = Path(__file__).parents[2] / "data"
MAX_SECONDS = 3.0  # of the processor, for one file of at most MAX_FILE_BYTES
MAX_MEMORY = 600 << 20  # address space beyond that of the started process
MAX_FILE_BYTES = 600_000
FILES_PER_FORMAT = 3
# Formats without a distinct dump: presets of column names, and what `log_samples` sends.
SAME_AS = {
    "native": "table", "areal": "table", "open-instruct": "token-table", "swift": "table", "skyrl": "table",
    "openrlhf": "table",
}  # fmt: skip
Case = Callable[[Path], None]


class TooSlowError(BaseException):
    """A reader used MAX_SECONDS. No `except Exception` of a reader may catch it."""


def list_dumps() -> dict[str, list[Path]]:
    """Returns the smallest real dumps of each format. Every format has one."""
    dumps: dict[str, list[Path]] = defaultdict(list)
    paths = [path for path in DATA.rglob("*") if path.is_file() and not path.name.endswith((".expected.json", ".md"))]
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path)):
        source = path.relative_to(DATA).as_posix()
        with suppress(UnreadableDumpError):
            name = find_artifact_format(path.name) or select_format(source, path.read_bytes()[:HEAD_BYTES]).name
            if path.stat().st_size <= MAX_FILE_BYTES:
                dumps[name].append(path)
    for name, other in SAME_AS.items():
        dumps[name] = dumps[other]
    return {form.name: dumps[form.name][:FILES_PER_FORMAT] for form in FORMATS}


def read_dump(form: Format, source: str, path: Path) -> None:
    """Reads the file as indexing does: by its format, by the format that it seems to have, and into a body."""
    body = path.read_bytes()
    forms = [form]
    with suppress(UnreadableDumpError):
        forms.append(select_format(source, body[:HEAD_BYTES]))
    for chosen in dict.fromkeys(forms):
        context = DumpContext(source, step=1, path=path)
        items = []
        try:
            items = list(chosen.read(io.BytesIO(body), context))
        except UnreadableDumpError as error:
            assert str(error).strip(), "a refusal without a sentence"
        unexpected = [item for item in items if not isinstance(item, Record | MetricPoint | LineProblem | SkippedRow)]
        assert not unexpected, unexpected[:1]
        store_records([extract_images(item, "fuzz") for item in items if isinstance(item, Record)])


def store_records(records: list[Record]) -> None:
    if records:
        ids = [f"{number:032x}" for number in range(len(records))]
        BodyLayout.from_records(records).table(records, ids, ids)
        IndexRowBuilder().add(records, ids, ids)


def read_batch(path: Path) -> None:
    """Checks and reads a file as pins do."""
    check_file_safety(path)
    with suppress(SafePickleError), open_batch(path) as batch:
        for name in batch.columns:
            batch.column(name)
        for row in range(min(batch.rows, 3)):
            for name in batch.fields:
                batch.tensor(name, row)
            batch.tokens(row)


def scan_file(path: Path) -> None:
    """Scans a folder as `watch` does."""
    scan_folders([path.parent], ScanOptions())


def list_cases(dumps: dict[str, list[Path]]) -> Iterator[tuple[str, Path, Case]]:
    """Yields target, real dump and what is done with each damaged copy."""
    forms = {form.name: form for form in FORMATS}
    for name, paths in dumps.items():
        for path in paths:
            source = path.relative_to(DATA).as_posix()
            yield name, path, lambda copy, form=forms[name], source=source: read_dump(form, source, copy)
            yield "watch", path, scan_file
            if path.suffix in (".dp", ".pt", ".pkl"):
                yield "safe_pickle", path, read_batch


def run_cases(seed: int, copies: int) -> tuple[Counter[str], list[str]]:
    """Returns the number of cases per target, and what went wrong: one line each."""
    counts: Counter[str] = Counter()
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        for target, path, case in list_cases(list_dumps()):
            number = copies // 4 if target in ("watch", "safe_pickle") else copies
            for copy in range(max(2, number // FILES_PER_FORMAT)):
                counts[target] += 1
                key = f"{seed}:{target}:{path.relative_to(DATA).as_posix()}:{copy}"
                copy_path = Path(folder, "run", path.parent.name, path.name)
                copy_path.parent.mkdir(parents=True, exist_ok=True)
                copy_path.write_bytes(mutate(path.read_bytes(), random.Random(key)))
                print(f"case {key}", file=sys.stderr, flush=True)  # a crash of the process leaves its case here
                if problem := run_case(case, copy_path):
                    findings.append(f"{key}: {problem}")
                copy_path.unlink()
    return counts, findings


def run_case(case: Case, copy_path: Path) -> str:
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        case(copy_path)
    except (Exception, TooSlowError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]!r} ({Path(last.filename).name}:{last.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def limit_process() -> None:
    """Sets the limits of memory and time. MemoryError and TooSlowError are then raised where a limit is reached."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {MAX_SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.formats.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=30, help="damaged copies per format")
    arguments = parser.parse_args()
    limit_process()
    counts, findings = run_cases(arguments.seed, arguments.copies)
    for finding in findings:
        print(finding)
    print(json.dumps(counts))
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main())
