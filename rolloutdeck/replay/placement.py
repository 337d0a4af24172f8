"""Which files lie where, so that a trainer that only knows folders replays a plan: pure, no file is touched.

The plan is the server's, see `plan`; what the trainer loads from where is its own module's word, see `RunRequirements`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import resolve_target
from rolloutdeck.replay.plan import PlanEntry, PlanFile, PlanRevision

MAX_LAYOUT_STEPS = 1_000_000  # of a plan that goes on after its last target


class RunRequirements(Protocol):
    """What a run with certain settings loads, and from where; made by the `asking` of a trainer's module."""

    @property
    def trainer(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def named_by(self) -> Sequence[str]:
        """The settings that name the folder, as lines to paste."""
        ...

    @property
    def first(self) -> int:
        """The number of the run's first step."""
        ...

    @property
    def total_steps(self) -> int | None:
        """How many steps the run makes, from `first` on; None where the settings do not say."""
        ...

    @property
    def shared(self) -> bool:
        """Whether the files of all steps lie in one folder, each under a name of its own."""
        ...

    @property
    def formats(self) -> Mapping[str, Collection[str]]:
        """File name, or its ending like `.pt`, -> the formats that it may have, in the words of `safe.check`, or `json`
        for plain JSON of any size. A file that is not named is a marker: plain JSON, and small."""
        ...

    @property
    def mends(self) -> Collection[str]:
        """Names of the files that may need one of the repairs of `safe.repair`."""
        ...

    @property
    def excludes(self) -> Collection[str]:
        """Names, or endings, of the files that can be replayed without what is flagged in them, by `without`."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether the trainer fills up a batch that has too few prompts by repeating those it has."""
        ...

    def step_folder(self, step: int) -> PurePosixPath: ...
    def called(self, name: str, step: int) -> str:
        """What an artifact's file is called in the folder of this step."""
        ...

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Writes `target` as `source` without the flagged records of `file`; the sentence that says what was done.
        Raises NotReplayableError and safe.SafePickleError."""
        ...

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """Those of an artifact's files that are loaded, the one that completes a folder last. Raises
        NotReplayableError."""
        ...

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        """The number of the step folder for an artifact of a pinned step that is replayed at `step`."""
        ...

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]: ...
    def flags(self, root: str, steps: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True)
class Placement:
    """The folder of one step: where (below the target), what is loaded from it, and which step of the run loads it.

    `names`: what a file is called there, where not as in its artifact. `moved`: its rows stand beside others than those
    they were generated for: another step's, or because some of them are left out. `without`: file -> flagged records;
    where whole prompts are left out with them, those have `answers` each.
    """

    folder: PurePosixPath
    number: int
    step: int
    entry: PlanEntry = field(compare=False)
    files: tuple[PlanFile, ...] = ()
    moved: bool = False
    without: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, file: PlanFile) -> str:
        return self.names.get(file.name, file.name)

    @property
    def paths(self) -> list[PurePosixPath]:
        return [self.folder / self.called(file) for file in self.files]


def match_file_name(names: Iterable[str], file: str) -> str:
    """Which of these names, or endings, means a file; "" where none does."""
    path = PurePosixPath(file)
    return next((name for name in (path.name, path.suffix) if name in names), "")


def find_layout_steps(plan: PlanRevision, asking: RunRequirements, most: int | None) -> range:
    """The steps of the run that are laid out: its first `most`, else as many as the run makes; for `cache` to the last
    target. Raises UsageError where `repeat` has no end."""
    last, first = most or asking.total_steps, asking.first
    if plan.action == "cache":
        end = max((entry.target_step for entry in plan.entries), default=first - 1) + 1
        return range(first, min(first + last, end) if last else end)
    if not last:
        raise UsageError(
            f"The plan {plan} goes on after its last step ({plan.action}): say --steps N, how many steps to lay out."
        )
    if last > MAX_LAYOUT_STEPS:
        raise UsageError(f"{last:,} steps are too many to lay out; say --steps N, at most {MAX_LAYOUT_STEPS:,}.")
    return range(first, first + last)


def build_placements(
    plan: PlanRevision, asking: RunRequirements, steps: Sequence[int]
) -> tuple[list[Placement], list[str]]:
    """A placement for each folder that is loaded at these steps, and a sentence for each entry that is left out.

    Raises UsageError where the plan says to stop, or where two pins would lie in one folder.
    """
    entries = {entry.target_step: entry for entry in plan.entries}
    left_out = {
        target: describe_skipped_entry(plan, entry, _before(asking))
        for target, entry in entries.items()
        if target < asking.first
    }
    found: dict[int, Placement] = {}
    if plan.action == "cache":  # which replays at its targets only, however far away they are
        steps = [target for target in sorted(entries) if target in steps]
    for step in steps:
        target = resolve_target(plan.action, list(entries), step)
        if target is None or target in left_out:
            continue
        entry = entries[target]
        try:
            for placement in _placed(entry, asking, step, leave=plan.exclude_flagged):
                if placement.number in found:
                    raise UsageError(
                        f"Both {found[placement.number].entry} and {entry} would lie in {placement.folder}."
                    )
                found[placement.number] = placement
        except NotReplayableError as error:
            left_out[target] = describe_skipped_entry(plan, entry, error)
    return sorted(found.values(), key=lambda one: one.number), list(left_out.values())


def _before(asking: RunRequirements) -> NotReplayableError:
    return NotReplayableError(f"the first step of this run is {asking.first}")


def describe_skipped_entry(plan: PlanRevision, entry: PlanEntry, why: NotReplayableError) -> str:
    """The sentence for an entry that can't be replayed. Raises UsageError with it where the plan says to stop then."""
    said = f"Target step {entry.target_step} ({entry}) is left out: {why}"
    if plan.on_mismatch == "stop":
        raise UsageError(f"{said}, and the plan {plan} says to stop then.")
    return f"{said}."


def _placed(entry: PlanEntry, asking: RunRequirements, step: int, *, leave: bool) -> list[Placement]:
    """The folders of an entry at one step, `leave`: without what is flagged. Raises NotReplayableError, and UsageError
    where its bytes have not come yet."""
    if not entry.artifacts:
        raise NotReplayableError("the pin has nothing that can be replayed")
    source, kind = int(entry.source["step"]), str(entry.source.get("step_kind", ""))
    chosen = [(one, asking.members(one.role, one.files)) for one in entry.artifacts]
    if entry.refused:
        raise NotReplayableError(
            entry.refusals
            + (f", without its flagged rows ({describe_smaller_batch(asking)})" if leave and _flagged(entry) else "")
        )
    entry.check()
    if leave:
        _check_flagged(entry, asking)
    found = []
    for one, names in chosen:
        if leave and one.whole:
            continue
        place = asking.place(source, kind, one.step, step)
        if place < 0:
            raise NotReplayableError(f"its prompt {one.step} would lie before the first one")
        members = tuple(entry.file(one, name) for name in names)
        without = dict(one.flagged) if leave else {}
        moved = step != source or bool(without)
        folder, called = asking.step_folder(place), {name: asking.called(name, place) for name in names}
        found.append(Placement(folder, place, step, entry, members, moved, without, one.answers, called))
    return found


def _flagged(entry: PlanEntry) -> int:
    return int(entry.source.get("flagged") or 0)


def _check_flagged(entry: PlanEntry, asking: RunRequirements) -> None:
    """Raises NotReplayableError where what is flagged can't be left out, or where nothing would be left."""
    if _flagged(entry) and not asking.excludes:
        raise NotReplayableError(f"it has flagged rows, and a step of {asking.trainer} is replayed whole or not at all")
    unplaced = int(entry.source.get("unplaced", entry.source.get("flagged")) or 0)
    if unplaced:
        count = _flagged(entry)
        raise NotReplayableError(
            f"{unplaced} of its {count} flagged samples can't be found in its files, so they can't be left out"
        )
    if all(one.whole for one in entry.artifacts):
        raise NotReplayableError("all its prompts are flagged")
    names = [name for one in entry.artifacts for name in one.flagged if not one.whole]
    if not all(match_file_name(asking.excludes, name) for name in names):
        raise NotReplayableError(
            f"it has flagged rows, and {asking.trainer} keeps in several files what belongs to a row"
        )


def describe_smaller_batch(asking: RunRequirements) -> str:
    """What a batch with fewer rows means to the trainer."""
    if asking.repeats:
        return f"{asking.trainer} repeats prompts until its batch is full"
    return f"{asking.trainer} takes exactly as many rows as its batch has"


def find_flagged_prompts(plan: PlanRevision, asking: RunRequirements) -> Iterator[tuple[int, PlanEntry]]:
    """The prompts of a run that a flag leaves out, where each has its own files: numbers at the plan's targets."""
    for entry in plan.entries if plan.exclude_flagged else ():
        source, kind = int(entry.source["step"]), str(entry.source.get("step_kind", ""))
        for step in entry.excluded_prompts:
            yield asking.place(source, kind, step, entry.target_step), entry
