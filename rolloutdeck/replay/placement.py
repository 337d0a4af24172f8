"""Computes where the files of a plan are placed for a trainer that loads folders. Pure: reads and writes no file.

The plan comes from the server (`plan.py`). The trainer's module says what is loaded from where (`RunRequirements`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, SelectedSamplesError, UsageError
from rolloutdeck.protocol import resolve_target
from rolloutdeck.replay.plan import PlanEntry, PlanFile, PlanRevision

MAX_LAYOUT_STEPS = 1_000_000  # for plans that continue after their last target


@dataclass(frozen=True, kw_only=True)
class RunRequirements(ABC):
    """What a run with certain settings loads, and from where; built by `read_requirements` of a trainer's module.

    facts: see `protocol/compatibility.py`. folder_settings: the settings that determine the folder, as lines to paste.
    first: the number of the run's first step. total_steps: the number of its steps; None if it is not configured.
    shared: the files of all steps are in one folder, each with a different name.
    formats: file name, or suffix like `.pt` -> allowed formats, as named by `check_file_safety`. `json` means plain
    JSON of any size. A file that is not listed is a marker file: small plain JSON.
    repairable_files: names of the files that may need a repair (`safe_pickle.rewrite.drop_columns`).
    changeable_files: names or suffixes of the files that `write_with_action` supports.
    file_actions: what it can do with selected rows, the first one for a server that does not say; plug_in_actions: what
    only a plug-in can do with them.
    repeats_prompts: the trainer fills a batch that has too few prompts by repeating prompts.
    """

    trainer: str
    role: str = "rollout"
    facts: Mapping[str, Any]
    formats: Mapping[str, Collection[str]]
    folder_settings: Sequence[str] = ()
    first: int = 1
    total_steps: int | None = None
    shared: bool = False
    repairable_files: Collection[str] = ()
    changeable_files: Collection[str] = ()
    file_actions: Sequence[str] = ("drop",)
    plug_in_actions: Collection[str] = ()
    repeats_prompts: bool = False

    def describe_assumptions(self, given: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns what else follows from settings that were guessed, by name. `given` are those of the user."""
        facts = ", ".join(f"{name}={value}" for name, value in self.facts.items() if value is not None)
        return {"trainer": self.trainer, **({"batch": facts} if facts and not self.folder_settings else {})}

    @abstractmethod
    def get_step_folder(self, step: int) -> PurePosixPath: ...

    def get_file_name(self, name: str, step: int) -> str:
        """Returns the name of an artifact's file in the folder of this step."""
        return name

    @abstractmethod
    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Writes `target` with `placement.action` applied to `placement.changed_rows`, and returns a message about the
        change. Raises NotReplayableError, SafePickleError."""

    @abstractmethod
    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        """Returns the files to load; the one that makes a folder complete is last. Raises NotReplayableError."""

    def get_folder_number(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        """Returns the number of the step folder for an artifact of a pinned step that is replayed at `step`."""
        return step

    def check_steps(self, steps: Sequence[int]) -> None:  # noqa: B027 - most trainers replay any steps
        """Raises UsageError if a run with files for these steps replays none of them."""

    @abstractmethod
    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        """Returns what the user must know before a replay of these steps, one sentence each."""

    @abstractmethod
    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        """Returns the trainer's settings that load these steps from `root`, quoted for where they are pasted."""


@dataclass(frozen=True)
class Placement:
    """The folder of one step.

    folder: path below the target folder. number: number of the folder. step: the step of the run that loads it.
    moved: the rows are replayed next to other rows than those they were generated with: at another step, or because
    some rows are excluded.
    changed_rows: file -> selected records; `action` says what is done with them in the file: mask or drop.
    answers_per_prompt: if complete prompts are excluded with them. masked_rows: file -> records that a plug-in masks.
    file_names: file -> name in the folder, if it differs from the name in the artifact.
    """

    folder: PurePosixPath
    number: int
    step: int
    entry: PlanEntry = field(compare=False)
    files: tuple[PlanFile, ...] = ()
    moved: bool = False
    changed_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers_per_prompt: int = 0
    file_names: Mapping[str, str] = field(default_factory=dict)
    action: str = "drop"
    masked_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def get_file_name(self, file: PlanFile) -> str:
        """Returns the name of the file in the folder."""
        return self.file_names.get(file.name, file.name)

    @property
    def paths(self) -> list[PurePosixPath]:
        return [self.folder / self.get_file_name(file) for file in self.files]


def match_file_name(names: Iterable[str], file: str) -> str:
    """Returns the first of these names or suffixes that matches the file; "" if none does."""
    path = PurePosixPath(file)
    return next((name for name in (path.name, path.suffix) if name in names), "")


def find_layout_steps(plan: PlanRevision, requirements: RunRequirements, max_steps: int | None) -> range:
    """Returns the steps that get a folder: the first `max_steps`, else all of the run; for `cache` to the last target.

    Raises UsageError if the number of steps is unknown and the plan replays every step after its last target.
    """
    last, first = requirements.total_steps if max_steps is None else max_steps, requirements.first
    if last == 0:
        raise UsageError(f"The run has no steps left: it begins with step {first}, which is its end.")
    if plan.action == "cache":
        end = max((entry.target_step for entry in plan.entries), default=first - 1) + 1
        return range(first, end if last is None else min(first + last, end))
    if last is None:
        raise UsageError(
            f"The plan {plan} also replays steps after its last target ({plan.action}). "
            "Use --steps N for the number of steps to place."
        )
    if last > MAX_LAYOUT_STEPS:
        raise UsageError(f"{last:,} steps are too many. Use --steps N with at most {MAX_LAYOUT_STEPS:,}.")
    return range(first, first + last)


def build_placements(
    plan: PlanRevision, requirements: RunRequirements, steps: Sequence[int], *, has_plug_in: bool = False
) -> tuple[list[Placement], list[str]]:
    """Returns a placement for each folder that these steps load, and a message for each entry that is skipped.

    `has_plug_in`: a plug-in applies `masked_rows`. Raises UsageError if the plan says to stop at a mismatch, or if two
    pins need the same folder.
    """
    entries = {entry.target_step: entry for entry in plan.entries}
    too_early = NotReplayableError(f"the first step of this run is {requirements.first}")
    early = (entry for entry in plan.entries if entry.target_step < requirements.first)
    skipped = {entry.target_step: describe_skipped_entry(plan, entry, too_early) for entry in early}
    placements: dict[int, Placement] = {}
    if plan.action == "cache":  # only targets are replayed; the range of steps may be much larger
        steps = [target for target in sorted(entries) if target in steps]
    for step in steps:
        target = resolve_target(plan.action, list(entries), step)
        if target is None or target in skipped:
            continue
        entry = entries[target]
        try:
            for placement in _build_entry_placements(plan, entry, requirements, step, has_plug_in=has_plug_in):
                if other := placements.get(placement.number):
                    raise UsageError(f"{other.entry} and {entry} need the same folder {placement.folder}.")
                placements[placement.number] = placement
        except NotReplayableError as error:
            skipped[target] = describe_skipped_entry(plan, entry, error)
    return sorted(placements.values(), key=lambda placement: placement.number), list(skipped.values())


def describe_skipped_entry(plan: PlanRevision, entry: PlanEntry, reason: NotReplayableError) -> str:
    """Returns the message for an entry that can't be replayed. Raises UsageError if the plan stops at a mismatch."""
    message = f"Target step {entry.target_step} ({entry}) is skipped: {reason}"
    if isinstance(reason, SelectedSamplesError):
        return f"{message}."
    if plan.on_mismatch == "stop":
        raise UsageError(f"{message}. The plan {plan} stops at a mismatch.")
    return f"{message}."


def _build_entry_placements(
    plan: PlanRevision, entry: PlanEntry, requirements: RunRequirements, step: int, *, has_plug_in: bool
) -> list[Placement]:
    """Raises NotReplayableError, and UsageError if the files are not on the server yet."""
    excludes = plan.changes_selected
    if not entry.artifacts:
        raise NotReplayableError("the pin has no replayable files")
    source, kind = int(entry.source["step"]), str(entry.source.get("step_kind", ""))
    selected = [(artifact, requirements.select_files(artifact.role, artifact.files)) for artifact in entry.artifacts]
    if entry.is_incompatible:
        is_smaller = excludes and entry.selected_count and entry.selected_action in ("", "drop")
        smaller = f", without its {entry.selected_word} rows ({describe_smaller_batch(requirements)})"
        detail = smaller if is_smaller else ""
        raise NotReplayableError(entry.incompatibilities + detail)
    entry.check_files_available()
    action = entry.selected_action or next(iter(requirements.file_actions), "")
    if excludes:
        check_regenerated(plan, entry, requirements.trainer)
        _check_selected(entry, requirements, action, has_plug_in=has_plug_in)
    placements = []
    for artifact, names in selected:
        if excludes and artifact.is_fully_selected:
            continue
        number = requirements.get_folder_number(source, kind, artifact.step, step)
        if number < 0:
            raise NotReplayableError(f"its prompt {artifact.step} would be placed before the first prompt")
        selected_rows = dict(artifact.selected) if excludes else {}
        changed_rows, masked_rows = selected_rows, {}
        if action in requirements.plug_in_actions:
            changed_rows, masked_rows = {}, selected_rows
        moved = step != source or bool(changed_rows)
        folder, answers = requirements.get_step_folder(number), artifact.answers_per_prompt
        files = tuple(entry.build_file(artifact, name) for name in names)
        file_names = {name: requirements.get_file_name(name, number) for name in names}
        rows = (changed_rows, answers, file_names, action, masked_rows)
        placements.append(Placement(folder, number, step, entry, files, moved, *rows))
    return placements


def check_regenerated(plan: PlanRevision, entry: PlanEntry, trainer: str) -> None:
    """Raises SelectedSamplesError if the plan regenerates the step; NotReplayableError if the trainer can do nothing
    else by default."""
    if not entry.regenerates_step:
        return
    if plan.on_selected == "exclude":
        word = entry.selected_word
        raise NotReplayableError(f"it has {word} rows, and {trainer} can only replay a complete step by default")
    raise SelectedSamplesError(f"{describe_selected(entry)}; the plan generates the step again")


def describe_selected(entry: PlanEntry) -> str:
    """Returns `3 of its samples are flagged bad`, or `version 2 of the guidance rules selects 3 of its samples`."""
    count = entry.selected_count
    if entry.guidance_version is None:
        return f"{count} of its samples {'is' if count == 1 else 'are'} flagged bad"
    return f"version {entry.guidance_version} of the guidance rules selects {count} of its samples"


def _check_selected(entry: PlanEntry, requirements: RunRequirements, action: str, *, has_plug_in: bool) -> None:
    """Raises NotReplayableError if the selected samples can't be excluded, or if nothing would remain."""
    count, word, trainer = entry.selected_count, entry.selected_word, requirements.trainer
    if not count:
        return
    if not requirements.changeable_files:
        raise NotReplayableError(f"it has {word} rows, and {trainer} can only replay a complete step")
    if action in requirements.plug_in_actions:
        if not has_plug_in:
            raise NotReplayableError(f"{trainer} can only {action} {word} samples with the plug-in, not with `pull`")
    elif action not in (*requirements.file_actions, "regenerate"):
        raise NotReplayableError(f"{trainer} cannot {action} {word} samples")
    if unplaced := int(entry.source.get("unplaced", count) or 0):
        reason = f"{word} samples can't be found in its files, so they can't be excluded"
        raise NotReplayableError(f"{unplaced} of its {count} {reason}")
    if all(artifact.is_fully_selected for artifact in entry.artifacts):
        raise NotReplayableError(f"all its prompts are {word}")
    names = [name for artifact in entry.artifacts for name in artifact.selected if not artifact.is_fully_selected]
    if not all(match_file_name(requirements.changeable_files, name) for name in names):
        raise NotReplayableError(f"it has {word} rows, and {requirements.trainer} stores a row in several files")


def describe_smaller_batch(requirements: RunRequirements) -> str:
    """Returns what the trainer does with a batch that has fewer rows."""
    if requirements.repeats_prompts:
        return f"{requirements.trainer} repeats prompts until its batch is full"
    return f"{requirements.trainer} needs exactly as many rows as its batch has"


def find_regenerated_prompts(plan: PlanRevision, requirements: RunRequirements) -> Iterator[tuple[int, PlanEntry]]:
    """Yields (folder number, entry) of the prompts that are generated again, because samples of them are selected. For
    trainers with files for each prompt."""
    for entry in plan.entries if plan.changes_selected else ():
        source, kind = int(entry.source["step"]), str(entry.source.get("step_kind", ""))
        for step in entry.excluded_prompts:
            yield requirements.get_folder_number(source, kind, step, entry.target_step), entry
