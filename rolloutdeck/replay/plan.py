"""A replay plan as returned by the server. The client, `pull`, the `plan` command and the plug-ins use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import FactDifference, check_manifest, is_incompatible, resolve_target

DEFAULT_PLAN = "default"
PER_PROMPT_ROLE = "async_rollout"


@dataclass(frozen=True)
class PlanFile:
    """A file of an artifact. `address`: its path on the server, below `/api/v1/`."""

    name: str
    sha256: str
    size: int
    address: str


@dataclass(frozen=True)
class PinnedArtifact:
    """An artifact of a pin; a fully async trainer has one per prompt.

    files: {relative path: {"sha256", "bytes"}}. url: its URL on the server.
    state, message: reported by the server; "" if it reports none.
    selected: file -> indexes (from 0) of the records that the plan selects.
    is_fully_selected: nothing of the artifact would remain.
    """

    key: str
    role: str
    step: int
    files: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    step_kind: str = "global_step"
    state: str = ""
    selected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_fully_selected: bool = False
    message: str = ""

    @property
    def answers_per_prompt(self) -> int:
        """The number of consecutive rows per prompt; 0 if it is unknown or does not match the number of rows."""
        prompts, answers, rows = (self.facts.get(name) for name in ("prompts", "samples_per_prompt", "rows"))
        is_consistent = isinstance(answers, int) and isinstance(prompts, int) and prompts * answers == rows
        return int(answers or 0) if is_consistent else 0


@dataclass(frozen=True)
class PlanEntry:
    """A pin and the step at which it is replayed. `source`: {run, name, step, step_kind} of the pinned step.

    preview: {state, label, reason}, what the server expects there; {} from a server that reports none.
    outcome: {state, label, reason}, what the compared run reported; {} if it does not use the entry.
    selected: {action, samples, prompts, guidance_version, complete}, what the plan selects and does with it; {} from an
    older server. effect: the same prompt by prompt, in a response for the command line.
    """

    target_step: int
    pin: int
    source: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[PinnedArtifact, ...] = ()
    differences: tuple[FactDifference, ...] = ()
    preview: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    selected: Mapping[str, Any] = field(default_factory=dict)
    effect: Mapping[str, Any] = field(default_factory=dict)

    @property
    def selected_action(self) -> str:
        """What happens to the selected samples: keep, mask, drop or regenerate; "" if the server does not say."""
        return str(self.selected.get("action") or "")

    @property
    def selected_count(self) -> int:
        return int(self.source.get("flagged") or 0)

    @property
    def guidance_version(self) -> int | None:
        """The version of the rules that select the samples; None if flags do."""
        version = self.selected.get("guidance_version")
        return version if isinstance(version, int) else None

    @property
    def selected_word(self) -> str:
        """What a selected sample is called."""
        return "flagged" if self.guidance_version is None else "selected"

    @property
    def regenerates_step(self) -> bool:
        """Whether the run must generate the step, since the plan selects samples of it. Where each prompt has files of
        its own, only prompts are generated again."""
        is_step = all(artifact.role != PER_PROMPT_ROLE for artifact in self.artifacts)
        return self.selected_action == "regenerate" and bool(self.selected_count) and is_step

    @property
    def conflict(self) -> str:
        """Why the entry does not fit the plan's other entries; empty if it does."""
        return str(self.preview.get("reason")) if self.preview.get("state") == "conflict" else ""

    @property
    def is_incompatible(self) -> bool:
        """Whether the run must not replay the pin."""
        return is_incompatible(self.differences)

    @property
    def incompatibilities(self) -> str:
        """The differences that prevent the replay, as text; empty if there are none."""
        return "; ".join(format_difference(item) for item in self.differences if item.verdict == "refuse")

    @property
    def warnings(self) -> str:
        """The other differences, and the facts that are unknown on either side, as text; empty if there are none."""
        warned = [difference for difference in self.differences if difference.verdict != "refuse"]
        unknown = [difference.fact for difference in warned if difference.unknown]
        known = [format_difference(difference) for difference in warned if not difference.unknown]
        return "; ".join([*known, *([f"not compared because unknown: {', '.join(unknown)}"] if unknown else [])])

    @property
    def excluded_prompts(self) -> list[int]:
        """The prompts that are generated again because of a selected sample, where each prompt has its own files."""
        return sorted(artifact.step for artifact in self.artifacts if artifact.is_fully_selected)

    def build_file(self, artifact: PinnedArtifact, name: str) -> PlanFile:
        file = artifact.files[name]
        address = f"runs/{self.source.get('run')}/artifacts/{artifact.key}/files/{file['sha256']}/"
        return PlanFile(name, str(file["sha256"]), int(file["bytes"]), address)

    def check_files_available(self) -> None:
        """Raises NotReplayableError if the files are lost or unsafe, UsageError if they are not on the server yet."""
        for artifact in self.artifacts:
            if artifact.state in ("unsafe", "gone"):
                raise NotReplayableError(f"its files are {artifact.state}: {artifact.message.rstrip('.')}")
            if artifact.state not in ("", "ready"):
                message = f"The files of {self} are not on the server yet ({artifact.state})"
                raise UsageError(f"{message}. The Pins page shows the command that uploads them.")

    def __str__(self) -> str:
        return f"step {self.source.get('step')} of {self.source.get('name')}"


@dataclass(frozen=True)
class PlanRevision:
    """A revision of a plan; revision 0 without entries if there is no plan. Entries are ordered by target step.

    `changes_selected`: selected samples are not replayed as they are. `on_selected` and `selected_by` are the plan's
    settings; `exclude` is the default of the trainer. `failure`: why the plan is not known, if a later request may
    return it; "" in every plan of a server.
    """

    name: str = DEFAULT_PLAN
    revision: int = 0
    action: str = "cache"
    on_mismatch: str = "generate"
    changes_selected: bool = False
    entries: tuple[PlanEntry, ...] = ()
    on_selected: str = "exclude"
    selected_by: str = "flags"
    failure: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def targets(self) -> list[int]:
        return [entry.target_step for entry in self.entries]

    def resolve(self, step: int) -> PlanEntry | None:
        """Returns the entry that this step replays; None if the step generates."""
        target = resolve_target(self.action, self.targets, step)
        return next((entry for entry in self.entries if entry.target_step == target), None)


def parse_plan(response: Any) -> PlanRevision:
    """Returns the plan of a server's JSON response. Ignores unknown keys. Raises ValueError if it is invalid."""
    try:
        entries = (_parse_entry(data) for data in response["entries"])
        return PlanRevision(
            str(response["plan"]),
            int(response["revision"] or 0),
            str(response["action"]),
            str(response["on_mismatch"]),
            bool(response["exclude_flagged"]),
            tuple(sorted(entries, key=lambda entry: entry.target_step)),
            str(response.get("on_selected") or ("exclude" if response["exclude_flagged"] else "keep")),
            str(response.get("selected_by") or "flags"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the server's response is not a replay plan: {type(error).__name__} {error}") from error


def _parse_entry(data: Mapping[str, Any]) -> PlanEntry:
    return PlanEntry(
        int(data["target_step"]),
        int(data["pin"]),
        dict(data.get("source") or {}),
        tuple(_parse_artifact(artifact) for artifact in data.get("artifacts") or ()),
        tuple(_parse_difference(difference) for difference in data.get("differences") or ()),
        dict(data.get("preview") or {}),
        dict(data.get("outcome") or {}),
        dict(data.get("selected") or {}),
        dict(data.get("effect") or {}),
    )


def _parse_artifact(data: Mapping[str, Any]) -> PinnedArtifact:
    check_manifest(data["files"])
    return PinnedArtifact(
        str(data["id"]),
        str(data["role"]),
        int(data["step"]),
        dict(data["files"]),
        dict(data.get("facts") or {}),
        str(data.get("url") or ""),
        str(data.get("step_kind") or "global_step"),
        str(data.get("state") or ""),
        {str(name): tuple(map(int, records)) for name, records in (data.get("flagged") or {}).items()},
        bool(data.get("whole")),
        str(data.get("message") or ""),
    )


def _parse_difference(data: Mapping[str, Any]) -> FactDifference:
    verdict, loosened = str(data.get("verdict")), bool(data.get("loosened"))
    return FactDifference(str(data.get("fact")), data.get("pinned"), data.get("asking"), verdict, loosened)


def format_difference(difference: FactDifference) -> str:
    """Returns `rows: 32 pinned, 64 requested`."""
    values = (difference.pinned, difference.asking)
    pinned, current = ("unknown" if value is None else str(value)[:60] for value in values)
    return f"{difference.fact}: {pinned} pinned, {current} requested"
