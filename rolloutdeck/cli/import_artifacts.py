"""The part of `rolloutdeck import` that brings steps that a trainer can load again, and the run's tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.cli.common import plural, say, sentence
from rolloutdeck.client import artifact
from rolloutdeck.client.artifact import Artifact
from rolloutdeck.client.artifact_uploads import Shelf, received, register
from rolloutdeck.errors import BadInput
from rolloutdeck.protocol.schedule import ranges
from rolloutdeck.watch.artifact_collector import Keeping, bring
from rolloutdeck.watch.types import Survey
from rolloutdeck.watch.upload import Denied, Refused, Target, trusted

Patiently = Callable[[Callable[[], Any]], Any]  # tries again a few times when the server does not answer
Progress = Callable[[int], None]
UNSETTLED = ("waiting", "uploading")


@dataclass
class Steps:
    """What became of them: `known` were there before, `sent` are the keys of those whose bytes went, `problems` are
    (what, the reason)."""

    artifacts: list[Artifact] = field(default_factory=list)
    known: int = 0
    sent: set[str] = field(default_factory=set)
    bytes: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)


def measured(found: Survey, keeping: Keeping) -> Iterator[Artifact]:
    """Each step as an artifact, hashed when its turn comes. Raises BadInput for a file that can't be read."""
    if keeping.tokenizer:
        yield keeping.tokenizer
    for one in found.folders:
        try:
            yield keeping.of_folder(one)
        except OSError as error:
            raise BadInput(f"{error.filename or one.path} can't be read: {error.strerror or error}.") from error
        except (artifact.Unsteady, ValueError) as error:
            raise BadInput(sentence(str(error))) from error


def send(target: Target, one: Artifact, now: bool, steps: Steps, patiently: Patiently, progress: Progress) -> None:
    """Tells of one and, if `now`, sends what the server lacks. Raises NotNow, Denied."""
    command = artifact.command_for(one.path, target.project, target.name, target.attempt)
    shelf = Shelf(say=lambda text: steps.problems.append((str(one.path), text)))
    try:
        answer = patiently(lambda: register(target.ask_run, one, target.attempt, command, now))
        told = trusted(answer)
    except Refused as error:
        steps.problems.append((str(one.path), str(error)))
        return
    shelf.put(one, told["missing"] if now else ())
    if one.role != "tokenizer":
        steps.artifacts.append(one)
        steps.known += answer.status == 200 and not shelf.busy
    if now:
        steps.sent.add(one.key)
    left, sent = one.size if now else 0, 0
    while shelf.busy:
        errand, before = shelf.queue[0], len(shelf.sent)
        answer = patiently(lambda: bring(shelf, target))
        at = errand.size if len(shelf.sent) > before else received(answer, errand.size) if answer else sent
        progress(max(0, at - sent))
        left -= max(0, at - sent)
        sent = 0 if len(shelf.sent) > before else at
    steps.bytes += sum(errand.size for errand in shelf.sent)
    progress(max(0, left))


def row(found: Steps) -> tuple[str, str, str, str] | None:
    """A line of the table: how many, how many were known, and which steps, by what they count."""
    kept = found.artifacts
    if not kept:
        return None
    kinds = Counter(one.step_kind for one in kept)
    shown = [
        ranges([one.step for one in kept if one.step_kind == kind]) + ("" if kind == "global_step" else f" ({kind})")
        for kind in kinds
    ]
    return "to replay", f"{len(kept):,}", f"{found.known:,}", "; ".join(shown)


def told_of(target: Target, steps: Steps) -> list[dict[str, Any]]:
    """What the server says of those that were sent. Raises NotNow, Denied (the token may not read)."""
    found: list[dict[str, Any]] = []
    page: int | None = 1 if steps.sent else None
    while page:
        told = trusted(target.ask_run("GET", "artifacts/", query={"page": page, "page_size": 500}))
        found += [one for one in told["results"] if one["id"] in steps.sent]
        page = page + 1 if told["next"] else None
    return found


def verdict(target: Target, steps: Steps) -> int:
    """Says what can't be replayed and why; 1 if there is any. Raises NotNow."""
    try:
        found = told_of(target, steps)
    except Denied as error:
        say(f"Whether the steps can be replayed was not looked at: {sentence(str(error))}")
        return 0
    ready = sum(one["state"] == "ready" and one["role"] != "tokenizer" for one in found)
    if ready:
        print(f"Can be replayed: {plural(ready, 'step')}.")
    bad = [one for one in found if one["state"] in ("unsafe", "gone")]
    for one in bad:
        say(f"Step {one['step']} is {one['state']}: {one['message'] or 'no reason given'}")
    return 1 if bad else 0
