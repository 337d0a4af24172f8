"""What `rolloutdeck watch --once` prints at its end: files that it did not send, and what the server could not read."""

from __future__ import annotations

import os
import time
from typing import Any

from rolloutdeck import watch
from rolloutdeck.cli.common import format_sentence, print_message
from rolloutdeck.cli.folders.import_report import print_skipped
from rolloutdeck.cli.folders.run_follower import RunFollower
from rolloutdeck.lib import get_path_type

INDEX_SECONDS = 5.0  # how long the end of the command waits for the index
POLL_SECONDS = 0.1


def report_run(follower: RunFollower) -> int:
    """Prints what was not sent or can't be read, each reason once. Returns 1 if the server refused or failed a file.

    Raises UsageError if a file can't be read.
    """
    folders = [root.path for root in follower.roots if root.deep and get_path_type(root.path)]
    if folders:
        print_skipped(watch.scan_folders(folders, follower.follower.options))
    for source in follower.follower.find_incomplete_lines():
        print_message(f"{source} ends in the middle of a line, which is not sent.")
    try:
        has_failed = _print_rejected(follower) if follower.sent_sources else False
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        print_message(f"Can't check whether everything is indexed: {format_sentence(error)}")
        has_failed = False
    return 1 if has_failed or follower.refused_count else 0


def _print_rejected(follower: RunFollower) -> bool:
    """Prints the lines and files that the server could not use. Returns whether a file failed."""
    summary = _wait_until_indexed(follower)
    for row in summary["problems"]:
        if row["source"] in follower.sent_sources:
            print_message(f"{row['source']}, line {row['line']}: {row['reason']}")
    failed = {dump["source"]: dump["message"] for dump in summary["failed"]}
    for source in sorted(follower.sent_sources & set(failed)):
        print_message(f"{source} failed: {format_sentence(failed[source] or 'no reason given')}")
    if summary["waiting"]:
        print_message("Not everything is indexed yet. The page of the run shows what can't be used.")
    return bool(follower.sent_sources & set(failed))


def _wait_until_indexed(follower: RunFollower) -> dict[str, Any]:
    end, prefix = time.monotonic() + INDEX_SECONDS, os.path.commonprefix(list(follower.sent_sources))
    while True:
        summary = follower.target.summarize_source(prefix, follower.target.attempt)
        if not summary["waiting"] or time.monotonic() >= end:
            return summary
        time.sleep(POLL_SECONDS)
