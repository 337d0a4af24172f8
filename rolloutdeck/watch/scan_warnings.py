"""Messages about guesses of the scan that the user should check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rolloutdeck.watch.types import DumpFile

MAX_NAMED_FOLDERS = 4
StepsByFolder = dict[Path, set[int]]


def describe_guessed_splits(guessed: Mapping[tuple[str, str], Sequence[Path]]) -> Iterator[str]:
    """Yields a message for each {(split, reason): folders}."""
    for (split, reason), folders in guessed.items():
        verb = "was" if len(folders) == 1 else "were"
        hint = "Set --split eval or --split train to change it."
        yield f"{format_folders(folders)} {verb} treated as {split}: {reason}. {hint}"


def describe_overlapping_steps(files: Iterable[DumpFile]) -> Iterator[str]:
    """Yields a message for all folders that have the same steps of the same split."""
    for (split, _), folders in group_steps_by_split(files).items():
        for steps, cluster in find_overlaps(folders):
            yield (
                f"{format_folders(cluster)} overlap: more than one of them has {split} step {min(steps)}, "
                "so their samples are added together. If one is another run or split, import it separately with --run "
                "and --split."
            )


def group_steps_by_split(files: Iterable[DumpFile]) -> dict[tuple[str, str], StepsByFolder]:
    """Returns {(split, step kind): {folder: steps}} of samples in one file per step."""
    folders: dict[tuple[str, str], StepsByFolder] = {}
    for file in files:
        kind = file.kind
        if file.step is not None and not kind.adds_columns and not kind.grows and kind.content == "samples":
            folders.setdefault((file.split, file.step_kind), {}).setdefault(file.path.parent, set()).add(file.step)
    return folders


def find_overlaps(folders: StepsByFolder) -> Iterator[tuple[set[int], list[Path]]]:
    """Yields the shared steps and the folders of each group that shares steps, directly or through another folder."""
    clusters: list[tuple[set[int], set[int], list[Path]]] = []  # all steps, the shared ones, the folders
    for folder, folder_steps in folders.items():
        all_steps, members = set(folder_steps), [folder]
        shared: set[int] = set()
        separate = []
        for steps, shared_before, others in clusters:
            if common := steps & folder_steps:
                all_steps, shared, members = all_steps | steps, shared | shared_before | common, [*others, *members]
            else:
                separate.append((steps, shared_before, others))
        clusters = [*separate, (all_steps, shared, members)]
    yield from ((shared, members) for _, shared, members in clusters if shared)


def format_folders(folders: Sequence[Path]) -> str:
    """Returns `a, b and c`; of many folders the first ones and the number of the others."""
    names = [str(folder) for folder in folders[:MAX_NAMED_FOLDERS]]
    if len(folders) > MAX_NAMED_FOLDERS:
        names.append(f"{len(folders) - MAX_NAMED_FOLDERS} more")
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
