"""`rolloutdeck rescore`: runs a reward function on the stored samples of a query."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from rolloutdeck.cli.common import SignalInterrupter, connect, find_run, format_count, print_message, send_request
from rolloutdeck.cli.rescore.pool import FunctionInfo, WorkerPool
from rolloutdeck.cli.rescore.report import Progress, print_comparison
from rolloutdeck.cli.rescore.transfer import PendingSampleReader, ResultUploader, build_query, count_samples
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient

JsonObject = Mapping[str, Any]


def main(args: argparse.Namespace) -> int:
    check_arguments(args)
    settings, server = connect(args)
    run = find_run(server, args.run or settings.run, args.project or settings.project)
    query = build_query(args)
    total = count_samples(server, run["id"], query)
    with (
        SignalInterrupter(),
        WorkerPool(args.fn, workers=args.workers, timeout=args.timeout, batch_size=args.batch_size) as pool,
    ):
        rescore = open_rescore(server, run, args, pool.load())
        path = f"rescores/{rescore['id']}/"
        pending = PendingSampleReader(server, path, query, retry=args.retry)
        progress = Progress(total if args.limit is None else min(total, args.limit))
        uploader = ResultUploader(server, path)
        try:
            with uploader:
                samples = islice((build_task(sample, args) for sample in pending), args.limit)
                for task, result in pool.run(samples):
                    uploader.add({"sample": task["id"], **result})
                    progress.add(task["id"], result.get("error", ""))
                    progress.show(pending.done + pending.failed)
        except KeyboardInterrupt:
            progress.clear()
            print_message(f"Stopped. {format_count(uploader.stored, 'result')} stored; the same command continues.")
            raise
        finally:
            pending.stop()
    progress.clear()
    return finish(server, rescore, run, args, progress, pending, uploader.stored)


def check_arguments(args: argparse.Namespace) -> None:
    for name in ("workers", "timeout", "batch_size"):
        if getattr(args, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0.")
    if args.limit is not None and args.limit < 1:
        raise UsageError("--limit must be at least 1.")


def open_rescore(server: ServerClient, run: JsonObject, args: argparse.Namespace, info: FunctionInfo) -> dict[str, Any]:
    """Returns the re-score that continues, or a new one. Raises UsageError if the name has results of another
    version."""
    digest = add_options_to_digest(info.digest, args)
    body = {"run": run["id"], "name": args.name, "kind": "function", "source": info.name, "digest": digest}
    return send_rescore(server, body, args)


def add_options_to_digest(digest: str, args: argparse.Namespace) -> str:
    """Returns the version of the results: that of the function, and of the options that change its arguments.

    Without such an option it is that of the function, as in earlier versions.
    """
    options = {name: value for name in ("data_source", "json_ground_truth") if (value := getattr(args, name))}
    text = f"{digest}\n{json.dumps(options, sort_keys=True)}"
    return hashlib.sha256(text.encode()).hexdigest() if options else digest


def send_rescore(server: ServerClient, body: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    body |= {"replace": True} if args.replace else {}
    body |= {} if args.correct_above is None else {"threshold": args.correct_above}
    try:
        return dict(send_request(server, "POST", "rescores/", body).json())
    except UsageError as error:
        if "another version" in str(error):
            hint = " The version includes --data-source and --json-ground-truth." if body["kind"] == "function" else ""
            raise UsageError(f"{error} Use --name or --replace.{hint}") from error
        raise


def build_task(sample: JsonObject, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the sample with the arguments of reward functions. `solution_str` is None if only token ids were
    recorded."""
    return {
        "id": sample["id"],
        "arguments": {
            "data_source": sample.get("data_source") or args.data_source,
            "solution_str": sample.get("response"),
            "ground_truth": read_ground_truth(sample.get("ground_truth"), args.json_ground_truth),
            "extra_info": build_extra_info(sample),
        },
    }


def read_ground_truth(value: Any, is_json: bool) -> Any:
    if is_json and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def build_extra_info(sample: JsonObject) -> dict[str, Any]:
    """Returns the recorded `extra_info` with all other keys that the run logged, and the prompt: functions do
    not get it as an argument."""
    extras = dict(sample.get("extras") or {})
    own = extras.pop("extra_info", None)
    info = {**extras, **(own if isinstance(own, dict) else {})}
    return {"prompt": sample.get("prompt"), "index": sample.get("index"), "split": sample.get("split"), **info}


def finish(
    server: ServerClient,
    rescore: JsonObject,
    run: JsonObject,
    args: argparse.Namespace,
    progress: Progress,
    pending: PendingSampleReader,
    stored: int,
) -> int:
    """Prints what was done. Returns the exit status: 1 if a call failed."""
    failed = progress.errors.total()
    skipped = f", {pending.done:,} were done before" if pending.done else ""
    print_message(f"{args.name}: {stored - failed:,} results, {format_count(failed, 'error')}{skipped}.")
    progress.print_errors()
    if args.replace and (pending.done or pending.failed):
        print_message("--replace deletes results of another version. These are of this version, so they stay.")
    if pending.failed:
        print_message(f"{format_count(pending.failed, 'earlier error')} stay; --retry calls them again.")
    url = f"{str(run['url']).rstrip('/')}/rescores/{rescore['id']}/"
    print_comparison(server, f"rescores/{rescore['id']}/", args.split, url)
    return 1 if failed else 0
