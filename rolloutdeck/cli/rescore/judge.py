"""`rolloutdeck judge`: asks a model about the stored samples of a query.

The answers to the questions of a rubric become labels of the model, and one of them the number of a re-score. With the
user's own instructions there is only the number.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import (
    SignalInterrupter,
    connect,
    find_run,
    format_count,
    print_message,
    send_request,
    split_rows,
)
from rolloutdeck.cli.rescore.command import finish, send_rescore
from rolloutdeck.cli.rescore.endpoint import (
    SENDABLE_TEXT,
    CallFailedError,
    Endpoint,
    LostAnswerError,
    RefusedError,
    UnreachableError,
)
from rolloutdeck.cli.rescore.instructions import (
    HOLES,
    InvalidAnswerError,
    RubricInstructions,
    TemplateInstructions,
    Verdict,
    build_rubric_instructions,
    hash_text,
)
from rolloutdeck.cli.rescore.journal import Journal, check_folder_writable
from rolloutdeck.cli.rescore.report import Progress, clear_line
from rolloutdeck.cli.rescore.transfer import (
    PendingSampleReader,
    ResultUploader,
    build_query,
    count_samples,
    send_with_retries,
)
from rolloutdeck.cli.rescore.worker import NO_TEXT
from rolloutdeck.errors import MissingError, UsageError
from rolloutdeck.lib import ServerClient
from rolloutdeck.protocol import MAX_AUTHOR_CHARS

UNANSWERED = "it was sent, and no answer was stored; --retry sends it again"
LABELS_PER_REQUEST = 1000
FOLDER = Path("~/.rolloutdeck/judge")

JsonObject = Mapping[str, Any]
Instructions = RubricInstructions | TemplateInstructions


def main(args: argparse.Namespace) -> int:
    if args.concurrency < 1 or args.tries < 1 or args.timeout <= 0 or (args.limit is not None and args.limit < 1):
        raise UsageError("--concurrency, --tries, --timeout and --limit must be above 0.")
    settings, server = connect(args)
    run = find_run(server, args.run or settings.run, args.project or settings.project)
    endpoint = build_endpoint(args)
    instructions = build_instructions(server, run, args)
    query = build_query(args)
    total = count_samples(server, run["id"], query)
    digest = hash_text(f"{args.model}\n{instructions.digest}\n{json.dumps(endpoint.body, sort_keys=True)}")
    body = {"run": run["id"], "name": args.name, "kind": "judge", "source": args.model, "digest": digest}
    owner = {"digest": digest, "model": args.model, "name": args.name}
    with SignalInterrupter(), ExitStack() as stack:
        # Before the re-score is opened: --replace deletes results, and the journal may be refused.
        journal = stack.enter_context(Journal(args.journal, owner)) if args.journal else None
        if journal is None:
            check_folder_writable(FOLDER.expanduser())
        rescore = send_rescore(server, body, args)
        journal = journal or stack.enter_context(Journal(build_journal_path(server, rescore), owner))
        path = f"rescores/{rescore['id']}/"
        pending = PendingSampleReader(server, path, query, retry=args.retry)
        progress = Progress(total if args.limit is None else min(total, args.limit))
        uploader = LabelUploader(server, path, args.model)
        judge = Judge(endpoint, instructions, journal, retry=args.retry)
        try:
            with uploader, closing(judge.run(islice(pending, args.limit), args.concurrency)) as results:
                for result in results:
                    uploader.add(result)
                    progress.add(result["sample"], result.get("error", ""))
                    progress.show(pending.done + pending.failed)
        except KeyboardInterrupt:
            progress.clear()
            print_message(f"Stopped. {format_count(uploader.stored, 'result')} stored; the same command continues.")
            raise
        finally:
            pending.stop()
    progress.clear()
    return finish(server, rescore, run, args, progress, pending, uploader.stored)


def build_endpoint(args: argparse.Namespace) -> Endpoint:
    """Raises UsageError."""
    try:
        body = json.loads(args.body) if args.body else {}
    except ValueError as error:
        raise UsageError(f"--body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise UsageError("--body must be a JSON object.")
    body = {"max_tokens": args.max_tokens, **body}
    key = os.environ.get(args.key_env, "").strip()
    if not SENDABLE_TEXT.fullmatch(key):  # the error of the HTTP client would show the key
        odd = "a space, a line break or a character that is not ASCII"
        raise UsageError(f"The key in {args.key_env} has {odd}. Copy it again.")
    return Endpoint(args.endpoint, args.model, key, args.timeout, args.tries, body)


def build_instructions(server: ServerClient, run: JsonObject, args: argparse.Namespace) -> Instructions:
    """Raises UsageError."""
    if args.prompt is None:
        if len(args.model) > MAX_AUTHOR_CHARS:
            message = f"The name of --model has {len(args.model)} characters. As author of labels it may have"
            raise UsageError(f"{message} {MAX_AUTHOR_CHARS}: use --prompt, which stores no labels.")
        rubric = send_request(server, "GET", f"projects/{quote(run['project'], safe='')}/rubric/").json()
        return build_rubric_instructions(rubric, args.rubric or "", args.score, args.good)
    try:
        template = args.prompt.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{args.prompt} can't be read: {error}.") from error
    if "response" not in HOLES.findall(template):
        raise UsageError(f"{args.prompt} has no {{response}}, so the model would not see what it judges.")
    return TemplateInstructions(template)


def build_journal_path(server: ServerClient, rescore: JsonObject) -> Path:
    """Returns the file of the answers so far: one for each server, re-score and digest of its instructions."""
    digest = hashlib.sha256(f"{server.url.rstrip('/')} {rescore['id']} {rescore['digest']}".encode()).hexdigest()
    return FOLDER.expanduser() / f"{rescore['name']}-{digest[:16]}.jsonl"


class LabelUploader(ResultUploader):
    """Stores the answers as labels of the model before the results: what has a result is not looked at again."""

    def __init__(self, server: ServerClient, path: str, model: str) -> None:
        super().__init__(server, path)
        self.model = model

    def store(self, batch: list[dict[str, Any]]) -> int:
        try:
            self._store_labels(batch)
        except MissingError:  # a sample was deleted meanwhile
            for row in batch:
                with suppress(MissingError):
                    self._store_labels([row])
        return super().store([{name: value for name, value in row.items() if name != "answers"} for row in batch])

    def _store_labels(self, batch: list[dict[str, Any]]) -> None:
        labels = [
            {"sample": row["sample"], "name": name, "value": value, "rationale": row.get("rationale", "")}
            | {"source": "model", "author": self.model}
            for row in batch
            for name, value in row.get("answers", {}).items()
        ]
        for part in split_rows(labels, LABELS_PER_REQUEST):
            send_with_retries(self.server, "POST", "labels/", {"labels": part})


@dataclass
class Judge:
    endpoint: Endpoint
    instructions: Instructions
    journal: Journal
    retry: bool

    def run(self, samples: Iterable[JsonObject], concurrency: int) -> Generator[dict[str, Any]]:
        """Yields a result for each sample, in the order of completion. Before it ends early, it waits for the calls
        that were sent, so that the journal has their answers; Ctrl-C leaves them."""
        tasks: queue.Queue[JsonObject | None] = queue.Queue()
        results: queue.Queue[dict[str, Any] | Exception] = queue.Queue()
        work = partial(self._work, tasks, results)
        threads = [threading.Thread(target=work, daemon=True) for _number in range(concurrency)]
        for thread in threads:
            thread.start()
        running = 0
        try:
            for sample in samples:
                known = self._find_known(sample)
                if known is not None:
                    yield known
                    continue
                tasks.put(sample)
                running += 1
                if running >= concurrency:
                    result = results.get()
                    running -= 1
                    yield raise_if_error(result)
            while running:
                result = results.get()
                running -= 1
                yield raise_if_error(result)
        except BaseException as error:
            if running:
                again = " again" if isinstance(error, KeyboardInterrupt) else ""
                clear_line()
                print_message(f"Waiting for {format_count(running, 'call')}; press Ctrl-C{again} to leave them.")
            self._stop(tasks, concurrency)
            for thread in threads:
                thread.join()
            if not isinstance(error, GeneratorExit):
                yield from take_remaining(results)
            raise
        self._stop(tasks, concurrency)

    def _stop(self, tasks: queue.Queue[JsonObject | None], threads: int) -> None:
        self.endpoint.stopped.set()
        for _number in range(threads):
            tasks.put(None)

    def _find_known(self, sample: JsonObject) -> dict[str, Any] | None:
        """Returns the result of a sample that was sent before, or has no text; None if it is sent now."""
        name = sample["id"]
        if sample.get("response") is None:
            return {"sample": name, "error": NO_TEXT}
        answer = self.journal.find_answer(name)
        if answer is not None:
            result = self._build_result(name, answer)
            return None if self.retry and "error" in result else result
        if self.journal.is_unanswered(name) and not self.retry:
            return {"sample": name, "error": UNANSWERED}
        return None

    def _work(self, tasks: queue.Queue[JsonObject | None], results: queue.Queue[dict[str, Any] | Exception]) -> None:
        while (sample := tasks.get()) is not None:
            try:
                results.put(self._ask(sample))
            except Exception as error:
                results.put(error)

    def _ask(self, sample: JsonObject) -> dict[str, Any]:
        name = sample["id"]
        try:
            answer: dict[str, Any] = self.endpoint.ask(
                self.instructions.build_messages(sample),
                before=lambda: self.journal.write("sent", name),
                refused=lambda: self.journal.write("refused", name),
            )
        except UnreachableError as error:
            raise UsageError(f"The endpoint does not answer: {error}.") from error
        except RefusedError as error:
            if self.endpoint.stopped.is_set():  # no result, so the next command sends it
                raise
            return {"sample": name, "error": str(error)}
        except LostAnswerError as error:
            return {"sample": name, "error": f"{error}; --retry sends it again"}
        except CallFailedError as error:
            answer = {"error": str(error)}
        except UsageError:
            self.journal.write("refused", name)
            raise
        self.journal.write("answer", name, **answer)
        return self._build_result(name, answer)

    def _build_result(self, sample: str, answer: JsonObject) -> dict[str, Any]:
        if "error" in answer:
            return {"sample": sample, "error": answer["error"]}
        try:
            verdict: Verdict = self.instructions.read(answer["text"], is_cut=answer.get("is_cut", False))
        except InvalidAnswerError as error:
            return {"sample": sample, "error": str(error)}
        except (ValueError, OverflowError, RecursionError) as error:  # one answer must not end the command
            return {"sample": sample, "error": f"the model's answer cannot be read: {type(error).__name__}"}
        result: dict[str, Any] = {"sample": sample, "value": verdict.value, "rationale": verdict.rationale}
        return result | ({"answers": verdict.answers} if verdict.answers else {})


def raise_if_error(result: dict[str, Any] | Exception) -> dict[str, Any]:
    if isinstance(result, Exception):
        raise result
    return result


def take_remaining(results: queue.Queue[dict[str, Any] | Exception]) -> Iterator[dict[str, Any]]:
    while not results.empty():
        if isinstance(result := results.get(), dict):
            yield result
