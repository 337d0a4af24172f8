"""A replay plan as the server tells it to a run, in its answer to `POST runs/{uid}/replay-plan/`: what is replayed at
which step, the files of it, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.errors import BadInput, Unfit
from rolloutdeck.protocol.manifest import check as check_manifest

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class File:
    """A file of an artifact, and where the server has it (below `/api/v1/`)."""

    name: str
    sha256: str
    size: int
    address: str


@dataclass(frozen=True)
class Pinned:
    """An artifact of a pin; fully async has one per prompt. `state` and `message` are the server's, where it told.

    `flagged`: file -> those of its records, counted from 0, that a person flagged bad; `whole`: all its prompts hold
    one. `answers`: how many rows answer a prompt, 0 where that is unknown.
    """

    role: str
    step: int
    state: str
    message: str
    files: Mapping[str, File]
    flagged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: bool = False
    answers: int = 0


@dataclass(frozen=True)
class Entry:
    """A target step of the plan, with the pin that is replayed there."""

    target: int
    pin: Any
    source: Raw
    artifacts: tuple[Pinned, ...]
    differences: tuple[Raw, ...]

    @property
    def refused(self) -> bool:
        return any(one.get("verdict") == "refuse" for one in self.differences)

    def check(self) -> None:
        """Raises Unfit where its bytes will never be given out, BadInput where they are not on the server yet."""
        for one in self.artifacts:
            if one.state in ("unsafe", "gone"):
                raise Unfit(f"its files are {one.state}: {one.message.rstrip('.')}")
            if one.state != "ready":
                told = f"The files of {self} are not on the server yet ({one.state})"
                raise BadInput(f"{told}; the page of pins says what sends them.")

    def __str__(self) -> str:
        return f"step {self.source.get('step')} of {self.source.get('name')}"


@dataclass(frozen=True)
class Plan:
    """A revision of a plan as the server tells it to a run."""

    name: str
    revision: int
    action: str
    on_mismatch: str
    exclude_flagged: bool
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


def plan_of(answer: Any) -> Plan:
    """The server's answer as a plan. Raises BadInput where it is none; each manifest is checked."""
    try:
        entries = tuple(_entry(one) for one in answer["entries"])
        return Plan(
            str(answer["plan"]),
            int(answer["revision"] or 0),
            str(answer["action"]),
            str(answer["on_mismatch"]),
            bool(answer["exclude_flagged"]),
            tuple(sorted(entries, key=lambda entry: entry.target)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"The server's answer is no replay plan: {type(error).__name__} {error}.") from error


def _entry(told: Raw) -> Entry:
    run = str(told["source"]["run"])
    artifacts = tuple(_pinned(run, one) for one in told["artifacts"])
    differences = tuple(dict(one) for one in told.get("differences", ()))
    return Entry(int(told["target_step"]), told["pin"], dict(told["source"]), artifacts, differences)


def _pinned(run: str, told: Raw) -> Pinned:
    message = str(told.get("message") or "")
    flagged = {str(name): tuple(map(int, records)) for name, records in (told.get("flagged") or {}).items()}
    return Pinned(
        str(told["role"]),
        int(told["step"]),
        str(told.get("state") or "ready"),
        message,
        _files(run, told),
        flagged,
        bool(told.get("whole")),
        _answers(told.get("facts") or {}),
    )


def _answers(facts: Raw) -> int:
    """How many rows in a row answer a prompt; 0 where the rows are more, or fewer, than these."""
    prompts, answers, rows = (facts.get(name) for name in ("prompts", "samples_per_prompt", "rows"))
    known = isinstance(answers, int) and isinstance(prompts, int) and prompts * answers == rows
    return int(answers or 0) if known else 0


def _files(run: str, artifact: Raw) -> dict[str, File]:
    check_manifest(artifact["files"])
    base = f"runs/{run}/artifacts/{artifact['id']}/files"
    return {
        name: File(name, file["sha256"], file["bytes"], f"{base}/{file['sha256']}/")
        for name, file in artifact["files"].items()
    }


def left_out_prompts(entry: Entry) -> list[int]:
    """The prompts of a step, where each has its own files, that are left out because of a flag."""
    return sorted(one.step for one in entry.artifacts if one.whole)


def warnings_of(entry: Entry) -> str:
    """What differs without being refused, and what is unknown on either side; empty where nothing is."""
    warned = [one for one in entry.differences if one.get("verdict") != "refuse"]
    unknown = [str(one.get("fact")) for one in warned if None in (one.get("pinned"), one.get("asking"))]
    told = [sentence_of(one) for one in warned if str(one.get("fact")) not in unknown]
    return "; ".join([*told, *([f"not compared, unknown on a side: {', '.join(unknown)}"] if unknown else [])])


def sentence_of(difference: Raw) -> str:
    """`rows: 32 pinned, 64 asked for`."""
    pinned, asking = (_shown(difference.get(name)) for name in ("pinned", "asking"))
    return f"{difference.get('fact')}: {pinned} pinned, {asking} asked for"


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)[:60]
