"""The part of `rolloutdeck import` that uploads replayable steps and the run's tokenizer."""

from __future__ import annotations

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
from rolloutdeck.lib import ServerResponse
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

RetryCall = Callable[[Callable[[], Any]], Any]  # repeats a call if the server does not answer
Progress = Callable[[int], None]  # receives the number of new bytes on the server


@dataclass
class ArtifactImport:
    """The result for replayable steps.

    already_stored: how many the server already had. sent_keys: keys of the artifacts whose files were uploaded.
    problems: (path, reason). replayable_files: sha256 of the files of artifacts that the server has checked.
    """

    artifacts: list[LocalArtifact] = field(default_factory=list)
    already_stored: int = 0
    sent_keys: set[str] = field(default_factory=set)
    bytes: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    replayable_files: set[str] = field(default_factory=set)


def hash_steps(scan: ScanResult, options: ArtifactOptions) -> Iterator[LocalArtifact]:
    """Yields the tokenizer and each step as an artifact, hashed one by one. Raises UsageError."""
    if options.tokenizer:
        yield options.tokenizer
    for step in scan.steps:
        try:
            yield options.build_step_artifact(step)
        except OSError as error:
            raise UsageError(f"{error.filename or step.path} can't be read: {error.strerror or error}.") from error
        except (FileChangedError, ValueError) as error:
            raise UsageError(format_sentence(error)) from error


def send_artifact(
    target: UploadTarget,
    artifact: LocalArtifact,
    now: bool,
    steps: ArtifactImport,
    retry: RetryCall,
    progress: Progress,
) -> None:
    """Registers an artifact and, if `now`, uploads the missing files. Raises RetryLaterError, ActionRequiredError."""
    command = build_import_command(artifact.path, target.project, target.name, target.attempt)
    queue = ArtifactUploadQueue(on_message=lambda text: steps.problems.append((str(artifact.path), text)))

    def register() -> tuple[ServerResponse, Any]:
        response = register_artifact(target.request_run, artifact, target.attempt, command, now)
        return response, parse_response(response)

    try:
        response, registered = retry(register)
    except UploadRejectedError as error:
        steps.problems.append((str(artifact.path), str(error)))
        return
    queue.add(artifact, registered["missing"] if now else ())
    if artifact.role != "tokenizer":
        steps.artifacts.append(artifact)
        steps.already_stored += response.status == 200 and not queue.pending_count
    if now:
        steps.sent_keys.add(artifact.key)
    left, sent = artifact.size if now else 0, 0
    while queue.pending_count:
        upload, before = queue.pending_uploads[0], len(queue.sent)
        response = retry(lambda: upload_requested_part(queue, target))
        is_done = len(queue.sent) > before
        received = upload.size if is_done else parse_received_bytes(response, upload.size) if response else sent
        progress(max(0, received - sent))
        left -= max(0, received - sent)
        sent = 0 if is_done else received
    steps.bytes += sum(upload.size for upload in queue.sent)
    progress(max(0, left))


def build_table_row(result: ArtifactImport) -> tuple[str, str, str, str] | None:
    """Returns the table row of the steps: label, count, already stored, step ranges by step kind; None if no steps."""
    artifacts = result.artifacts
    if not artifacts:
        return None
    ranges = []
    for kind in dict.fromkeys(artifact.step_kind for artifact in artifacts):
        steps = format_step_ranges([artifact.step for artifact in artifacts if artifact.step_kind == kind])
        ranges.append(steps if kind == "global_step" else f"{steps} ({kind})")
    return "to replay", f"{len(artifacts):,}", f"{result.already_stored:,}", "; ".join(ranges)


def _load_sent_artifacts(target: UploadTarget, steps: ArtifactImport) -> list[dict[str, Any]]:
    """Returns the server's records of the uploaded artifacts.

    Raises RetryLaterError, and ActionRequiredError if the token may not read.
    """
    artifacts: list[dict[str, Any]] = []
    page: int | None = 1 if steps.sent_keys else None
    while page:
        response = parse_response(target.request_run("GET", "artifacts/", query={"page": page, "page_size": 500}))
        artifacts += [artifact for artifact in response["results"] if artifact["id"] in steps.sent_keys]
        page = page + 1 if response["next"] else None
    return artifacts


def count_unfinished(target: UploadTarget, steps: ArtifactImport) -> int:
    """Returns how many of the uploaded artifacts the server has not checked. Raises as `_load_sent_artifacts`."""
    return sum(artifact["state"] in ("waiting", "uploading") for artifact in _load_sent_artifacts(target, steps))


def report_replayability(target: UploadTarget, steps: ArtifactImport) -> int:
    """Prints how many steps can be replayed, and why others can't. Returns 1 if any can't. Raises RetryLaterError."""
    try:
        artifacts = _load_sent_artifacts(target, steps)
    except ActionRequiredError as error:
        print_message(f"Can't check whether the steps are replayable: {format_sentence(error)}")
        return 0
    ready = [artifact for artifact in artifacts if artifact["state"] == "ready" and artifact["role"] != "tokenizer"]
    keys = {artifact["id"] for artifact in ready}
    files = [file for artifact in steps.artifacts if artifact.key in keys for file in artifact.files.values()]
    steps.replayable_files = {str(file["sha256"]) for file in files}
    if ready:
        print(f"Replayable: {format_count(len(ready), 'step')}.")
    bad = [artifact for artifact in artifacts if artifact["state"] in ("unsafe", "gone")]
    folders = {artifact.key: artifact.path for artifact in steps.artifacts}
    for artifact in bad:
        reason = artifact["message"] or "no reason given"
        folder = folders.get(artifact["id"])
        print_message(f"Step {artifact['step']}{f' in {folder}' if folder else ''} is {artifact['state']}: {reason}")
    return 1 if bad else 0
