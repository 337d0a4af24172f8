"""The part of `rolloutdeck import` that brings steps that a trainer can load again, and the run's tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.cli.common import format_count, format_sentence, print_message
from rolloutdeck.client import (
    ArtifactUploadQueue,
    FileChangedError,
    LocalArtifact,
    build_import_command,
    parse_received_bytes,
    register_artifact,
)
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.watch import (
    ActionRequiredError,
    ArtifactOptions,
    ScanResult,
    UploadRejectedError,
    UploadTarget,
    parse_response,
    upload_requested_part,
)

Patiently = Callable[[Callable[[], Any]], Any]  # tries again a few times when the server does not answer
Progress = Callable[[int], None]
UNFINISHED_STATES = ("waiting", "uploading")


@dataclass
class ArtifactImport:
    """What became of them: `known` were there before, `sent` are the keys of those whose bytes went, `problems` are
    (what, the reason)."""

    artifacts: list[LocalArtifact] = field(default_factory=list)
    known: int = 0
    sent: set[str] = field(default_factory=set)
    bytes: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)


def hash_steps(found: ScanResult, keeping: ArtifactOptions) -> Iterator[LocalArtifact]:
    """Each step as an artifact, hashed when its turn comes. Raises UsageError for a file that can't be read."""
    if keeping.tokenizer:
        yield keeping.tokenizer
    for one in found.steps:
        try:
            yield keeping.build_step_artifact(one)
        except OSError as error:
            raise UsageError(f"{error.filename or one.path} can't be read: {error.strerror or error}.") from error
        except (FileChangedError, ValueError) as error:
            raise UsageError(format_sentence(str(error))) from error


def send_artifact(
    target: UploadTarget, one: LocalArtifact, now: bool, steps: ArtifactImport, patiently: Patiently, progress: Progress
) -> None:
    """Tells of one and, if `now`, sends what the server lacks. Raises RetryLaterError, ActionRequiredError."""
    command = build_import_command(one.path, target.project, target.name, target.attempt)
    shelf = ArtifactUploadQueue(on_message=lambda text: steps.problems.append((str(one.path), text)))
    try:
        answer = patiently(lambda: register_artifact(target.request_run, one, target.attempt, command, now))
        told = parse_response(answer)
    except UploadRejectedError as error:
        steps.problems.append((str(one.path), str(error)))
        return
    shelf.add(one, told["missing"] if now else ())
    if one.role != "tokenizer":
        steps.artifacts.append(one)
        steps.known += answer.status == 200 and not shelf.pending_count
    if now:
        steps.sent.add(one.key)
    left, sent = one.size if now else 0, 0
    while shelf.pending_count:
        errand, before = shelf.pending_uploads[0], len(shelf.sent)
        answer = patiently(lambda: upload_requested_part(shelf, target))
        at = errand.size if len(shelf.sent) > before else parse_received_bytes(answer, errand.size) if answer else sent
        progress(max(0, at - sent))
        left -= max(0, at - sent)
        sent = 0 if len(shelf.sent) > before else at
    steps.bytes += sum(errand.size for errand in shelf.sent)
    progress(max(0, left))


def build_table_row(found: ArtifactImport) -> tuple[str, str, str, str] | None:
    """A line of the table: how many, how many were known, and which steps, by what they count."""
    kept = found.artifacts
    if not kept:
        return None
    kinds = Counter(one.step_kind for one in kept)
    shown = [
        format_step_ranges([one.step for one in kept if one.step_kind == kind])
        + ("" if kind == "global_step" else f" ({kind})")
        for kind in kinds
    ]
    return "to replay", f"{len(kept):,}", f"{found.known:,}", "; ".join(shown)


def load_sent_artifacts(target: UploadTarget, steps: ArtifactImport) -> list[dict[str, Any]]:
    """What the server says of those that were sent. Raises RetryLaterError, ActionRequiredError (the token may not
    read)."""
    found: list[dict[str, Any]] = []
    page: int | None = 1 if steps.sent else None
    while page:
        told = parse_response(target.request_run("GET", "artifacts/", query={"page": page, "page_size": 500}))
        found += [one for one in told["results"] if one["id"] in steps.sent]
        page = page + 1 if told["next"] else None
    return found


def report_replayability(target: UploadTarget, steps: ArtifactImport) -> int:
    """Says what can't be replayed and why; 1 if there is any. Raises RetryLaterError."""
    try:
        found = load_sent_artifacts(target, steps)
    except ActionRequiredError as error:
        print_message(f"Whether the steps can be replayed was not looked at: {format_sentence(str(error))}")
        return 0
    ready = sum(one["state"] == "ready" and one["role"] != "tokenizer" for one in found)
    if ready:
        print(f"Can be replayed: {format_count(ready, 'step')}.")
    bad = [one for one in found if one["state"] in ("unsafe", "gone")]
    for one in bad:
        print_message(f"Step {one['step']} is {one['state']}: {one['message'] or 'no reason given'}")
    return 1 if bad else 0
