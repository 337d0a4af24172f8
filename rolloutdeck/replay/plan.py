"""A replay plan, as the server reports it: what is replayed at which step, the files of it, and what differs from the
run. `parse_plan` is the only parser; the client, `pull`, the `plan` command and the plug-ins use its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import FactDifference, check_manifest, is_incompatible, resolve_target, resolve_targets

DEFAULT_PLAN = "default"


@dataclass(frozen=True)
class PlanFile:
    """A file of an artifact, and where the server has it (below `/api/v1/`)."""

    name: str
    sha256: str
    size: int
    address: str


@dataclass(frozen=True)
class PinnedArtifact:
    """An artifact of a pin; fully async has one per prompt. `files`: {relative path: {"sha256", "bytes"}}; `url` is its
    address on the server. `state` and `message` are the server's; "" where it does not report a state.

    `flagged`: file -> those of its records, counted from 0, that a person flagged bad; `whole`: all its prompts hold
    one.
    """

    key: str
    role: str
    step: int
    files: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    step_kind: str = "global_step"
    state: str = ""
    flagged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: bool = False
    message: str = ""

    @property
    def answers(self) -> int:
        """How many rows in a row answer a prompt; 0 where that is unknown, or the rows are more or fewer than these."""
        prompts, answers, rows = (self.facts.get(name) for name in ("prompts", "samples_per_prompt", "rows"))
        known = isinstance(answers, int) and isinstance(prompts, int) and prompts * answers == rows
        return int(answers or 0) if known else 0


@dataclass(frozen=True)
class PlanEntry:
    """A pin and the step at which it is replayed. `source`: {run, name, step, step_kind} of where it was generated."""

    target_step: int
    pin: int
    source: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[PinnedArtifact, ...] = ()
    differences: tuple[FactDifference, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the run that asked must not replay it."""
        return is_incompatible(self.differences)

    @property
    def refusals(self) -> str:
        """The differences for which it is refused; empty where there is none."""
        return "; ".join(format_difference(found) for found in self.differences if found.verdict == "refuse")

    @property
    def warnings(self) -> str:
        """What differs without being refused, and what is unknown on either side; empty where nothing is."""
        warned = [found for found in self.differences if found.verdict != "refuse"]
        unknown = [found.fact for found in warned if found.unknown]
        known = [format_difference(found) for found in warned if not found.unknown]
        return "; ".join([*known, *([f"not compared, unknown on a side: {', '.join(unknown)}"] if unknown else [])])

    @property
    def excluded_prompts(self) -> list[int]:
        """The prompts of a step, where each has its own files, that are left out because of a flag."""
        return sorted(artifact.step for artifact in self.artifacts if artifact.whole)

    def file(self, artifact: PinnedArtifact, name: str) -> PlanFile:
        file = artifact.files[name]
        address = f"runs/{self.source.get('run')}/artifacts/{artifact.key}/files/{file['sha256']}/"
        return PlanFile(name, str(file["sha256"]), int(file["bytes"]), address)

    def check(self) -> None:
        """Raises NotReplayableError where its bytes will never be given out, UsageError where they are not on the
        server yet."""
        for artifact in self.artifacts:
            if artifact.state in ("unsafe", "gone"):
                raise NotReplayableError(f"its files are {artifact.state}: {artifact.message.rstrip('.')}")
            if artifact.state not in ("", "ready"):
                told = f"The files of {self} are not on the server yet ({artifact.state})"
                raise UsageError(f"{told}; the page of pins says what sends them.")

    def __str__(self) -> str:
        return f"step {self.source.get('step')} of {self.source.get('name')}"


@dataclass(frozen=True)
class PlanRevision:
    """A revision of a plan; 0 and no entries where there is none. The entries are in the order of their targets."""

    name: str = DEFAULT_PLAN
    revision: int = 0
    action: str = "cache"
    on_mismatch: str = "generate"
    exclude_flagged: bool = False
    entries: tuple[PlanEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def targets(self) -> list[int]:
        return [entry.target_step for entry in self.entries]

    def resolve(self, step: int) -> PlanEntry | None:
        """What this step replays; None where it generates."""
        target = resolve_target(self.action, self.targets, step)
        return next((entry for entry in self.entries if entry.target_step == target), None)

    def strip(self, steps: int) -> list[tuple[int, int | None]]:
        """(step, target or None) for the steps 1 to `steps`."""
        return resolve_targets(self.action, self.targets, range(1, steps + 1))


def parse_plan(answer: Any) -> PlanRevision:
    """The plan in a server's JSON; unknown keys are passed over, each manifest is checked. Raises ValueError where it
    is none."""
    try:
        entries = (_entry(told) for told in answer["entries"])
        return PlanRevision(
            str(answer["plan"]),
            int(answer["revision"] or 0),
            str(answer["action"]),
            str(answer["on_mismatch"]),
            bool(answer["exclude_flagged"]),
            tuple(sorted(entries, key=lambda entry: entry.target_step)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the server's answer is no replay plan: {type(error).__name__} {error}") from error


def _entry(told: Mapping[str, Any]) -> PlanEntry:
    return PlanEntry(
        int(told["target_step"]),
        int(told["pin"]),
        dict(told.get("source") or {}),
        tuple(_artifact(artifact) for artifact in told.get("artifacts") or ()),
        tuple(_difference(found) for found in told.get("differences") or ()),
    )


def _artifact(told: Mapping[str, Any]) -> PinnedArtifact:
    check_manifest(told["files"])
    return PinnedArtifact(
        str(told["id"]),
        str(told["role"]),
        int(told["step"]),
        dict(told["files"]),
        dict(told.get("facts") or {}),
        str(told.get("url") or ""),
        str(told.get("step_kind") or "global_step"),
        str(told.get("state") or ""),
        {str(name): tuple(map(int, records)) for name, records in (told.get("flagged") or {}).items()},
        bool(told.get("whole")),
        str(told.get("message") or ""),
    )


def _difference(told: Mapping[str, Any]) -> FactDifference:
    verdict, loosened = str(told.get("verdict")), bool(told.get("loosened"))
    return FactDifference(str(told.get("fact")), told.get("pinned"), told.get("asking"), verdict, loosened)


def format_difference(found: FactDifference) -> str:
    """`rows: 32 pinned, 64 asked for`."""
    pinned, asking = ("unknown" if value is None else str(value)[:60] for value in (found.pinned, found.asking))
    return f"{found.fact}: {pinned} pinned, {asking} asked for"
