"""The replay plan that a run follows, as the server told it; a plan that could not be had is an empty one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.lib.http import RunClient, Server
from rolloutdeck.protocol import schedule, wire
from rolloutdeck.protocol.compatibility import Difference, refused

DEFAULT = "default"
DIFFERENCE = ("fact", "pinned", "asking", "verdict", "loosened")


@dataclass(frozen=True)
class Source:
    """An artifact of a pin. `files`: {relative path: {"sha256", "bytes"}}; `url` is its address on the server.

    `flagged`: file -> its records, counted from 0, that a person flagged bad; `whole`: in all its prompts there is one.
    """

    key: str
    role: str
    step: int
    files: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    step_kind: str = "global_step"
    state: str = ""
    flagged: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True)
class Entry:
    """A pin and the step at which it is replayed. `source`: {run, name, step, step_kind} of where it was generated."""

    target_step: int
    pin: int
    source: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[Source, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the run that asked must not replay it."""
        return refused(self.differences)


@dataclass(frozen=True)
class Plan:
    """A revision of a plan; 0 and no entries where there is none."""

    name: str = DEFAULT
    revision: int = 0
    action: str = "cache"
    on_mismatch: str = "generate"
    exclude_flagged: bool = False
    entries: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def resolve(self, step: int) -> Entry | None:
        """What this step replays; None where it generates."""
        target = schedule.resolve(self.action, [entry.target_step for entry in self.entries], step)
        return next((entry for entry in self.entries if entry.target_step == target), None)

    def strip(self, steps: int) -> list[tuple[int, int | None]]:
        """(step, target or None) for the steps 1 to `steps`."""
        return schedule.strip(self.action, [entry.target_step for entry in self.entries], range(1, steps + 1))


def ask(
    header: wire.SpoolHeader,
    server: Server | None,
    name: str,
    facts: Mapping[str, Any],
    bind: bool,
    timeout: float,
) -> Plan:
    """Asks which plan the run follows; `name` may be `name@revision`. Empty without a server.

    Raises NotReachable, and ValueError with the server's sentence when it says no.
    """
    if server is None:
        return Plan()
    body = json.dumps({"plan": name or DEFAULT, "facts": dict(facts), "bind": bind}, default=str).encode()
    told = {"Content-Type": "application/json"}
    answer = RunClient(server, header, timeout).request("POST", "replay-plan/", body=body, headers=told)
    if not answer.ok:
        raise ValueError(answer.error)
    return read(answer.json())


def read(told: Any) -> Plan:
    """The plan in a server's JSON; unknown keys are passed over. Raises ValueError where it is none."""
    try:
        return Plan(
            str(told["plan"]),
            int(told["revision"] or 0),
            str(told["action"]),
            str(told["on_mismatch"]),
            bool(told["exclude_flagged"]),
            tuple(_entry(entry) for entry in told["entries"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the answer is no replay plan ({error!r})") from error


def _entry(told: Mapping[str, Any]) -> Entry:
    return Entry(
        int(told["target_step"]),
        int(told["pin"]),
        dict(told.get("source") or {}),
        tuple(_source(one) for one in told.get("artifacts") or ()),
        tuple(
            Difference(**{name: one[name] for name in DIFFERENCE if name in one})
            for one in told.get("differences") or ()
        ),
    )


def _source(told: Mapping[str, Any]) -> Source:
    return Source(
        str(told["id"]),
        str(told["role"]),
        int(told["step"]),
        dict(told["files"]),
        dict(told.get("facts") or {}),
        str(told.get("url") or ""),
        str(told.get("step_kind") or "global_step"),
        str(told.get("state") or ""),
        dict(told.get("flagged") or {}),
        bool(told.get("whole")),
    )
