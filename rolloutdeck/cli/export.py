"""`rolloutdeck export`: writes samples, labels or training data of a query into a folder that `load_dataset` opens."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from rolloutdeck.cli.common import connect, end_sentence, find_run, format_count, print_message, require_project
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, ServerUnreachableError

CHUNK_BYTES = 1 << 20
PROGRESS_SECONDS = 1.0
CARD = "README.md"
OPTIONS = (
    "split", "step", "step_kind", "attempt", "q", "layout", "format", "signal", "question", "good", "threshold",
    "min_margin", "pairs", "max_per_prompt", "form",
)  # fmt: skip
# The server reads all samples of a step before it sends the first byte.
TIMEOUT_SECONDS = 300.0


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    folder: Path = args.out
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty. Choose another folder with --out.")
    project = args.project or settings.project
    query = {name: str(value) for name in OPTIONS if (value := getattr(args, name)) not in (None, "")}
    if args.run:
        query["run"] = ",".join(find_run(server, name, project)["id"] for name in args.run)
    else:
        query["project"] = require_project(args, settings)
    query |= {"drop_near_duplicates": "true"} if args.drop_near_duplicates else {}
    query |= {"ids": "true"} if args.ids else {}
    query |= {"corrections": "false"} if args.no_corrections else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name, and as large as what is written
            download_archive(server, query, file)
            names = extract_archive(file, folder)
    except OSError as error:
        raise UsageError(f"The export cannot be written to {folder}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            folder.rmdir()  # if nothing was written
    print_card(folder / CARD)
    if not any((folder / name).stat().st_size for name in names if name != CARD):
        clear_folder(folder)  # `load_dataset` raises an exception without a message if there are no rows
        print_message("Nothing is written: no sample matches the query, or the counts say what was left out.")
        return 0
    print_message(f"Wrote {' and '.join(names)} to {folder}. Open it with datasets.load_dataset({str(folder)!r}).")
    return 0


def clear_folder(folder: Path) -> None:
    """Removes what the folder contains, and the folder itself if it is not the working directory."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def download_archive(server: ServerClient, query: Mapping[str, str], file: BinaryIO) -> None:
    """Writes the server's ZIP file. Raises UsageError."""
    started = time.monotonic()
    try:
        with server.stream(f"exports/datasets/?{urlencode(query)}", timeout=TIMEOUT_SECONDS) as response:
            if response.status != 200 or not response.is_from_server:
                raise UsageError(end_sentence(response.error_message))
            total = response.headers.get("x-total-samples", "")
            print_message(f"Reading {format_count(int(total), 'sample')}." if total.isdigit() else "Reading samples.")
            shown, size = started, 0
            while data := response.read(CHUNK_BYTES):
                file.write(data)
                size += len(data)
                if sys.stderr.isatty() and time.monotonic() - shown > PROGRESS_SECONDS:
                    shown = time.monotonic()
                    print(f"\r{size / 1e6:,.1f} MB in {shown - started:,.0f} s", end="", file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr)
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error


def extract_archive(file: BinaryIO, folder: Path) -> list[str]:
    """Writes the data and the card. Raises UsageError if the file is not complete."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if ".." not in name and not name.startswith("/")]
            archive.extractall(folder, names)
    except zipfile.BadZipFile as error:
        message = "The export is not complete: the server stopped while it sent it. Its log says why"
        raise UsageError(f"{message} ({error}).") from error
    return names


def print_card(path: Path) -> None:
    """Prints the counts and what was left out."""
    for section in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title in ("Counts", "Left out"):
            print(f"{title}:")
            print("\n".join(f"  {line.removeprefix('- ')}" for line in text.strip().replace("`", "").splitlines()))
