"""What a person should know of how their folders were taken: sentences for what no name and no file says for sure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rolloutdeck.watch.types import DumpFile

MAX_NAMED_FOLDERS = 4
Steps = dict[Path, set[int]]


def describe_guessed_splits(taken: Mapping[tuple[str, str], Sequence[Path]]) -> Iterator[str]:
    """A sentence for each {(split, why): folders}."""
    for (split, why), folders in taken.items():
        be = "was" if len(folders) == 1 else "were"
        yield f"{named(folders)} {be} taken as {split}: {why}. Say --split eval or --split train to change it."


def describe_overlapping_steps(files: Iterable[DumpFile]) -> Iterator[str]:
    """A sentence for all folders that claim the same steps of the same split."""
    for (split, _), folders in by_split(files).items():
        for steps, cluster in overlapping(folders):
            yield (
                f"{named(cluster)} look alike: more than one of them has {split} step {min(steps)}, so their samples "
                "are added up. If one is another run or split, import it by itself with --run and --split."
            )


def by_split(files: Iterable[DumpFile]) -> dict[tuple[str, str], Steps]:
    """The folders of samples that come one file a step, with their steps."""
    found: dict[tuple[str, str], Steps] = {}
    for file in files:
        kind = file.kind
        if file.step is not None and not kind.joins and kind.arrives == "whole" and kind.holds == "samples":
            found.setdefault((file.split, file.step_kind), {}).setdefault(file.path.parent, set()).add(file.step)
    return found


def overlapping(folders: Steps) -> Iterator[tuple[set[int], list[Path]]]:
    """Those that share steps with another, directly or over a third, and the steps that more than one of them has."""
    clusters: list[tuple[set[int], set[int], list[Path]]] = []  # all steps, the shared ones, the folders
    for folder, own in folders.items():
        every, members = set(own), [folder]
        shared: set[int] = set()
        apart = []
        for steps, twice, others in clusters:
            if common := steps & own:
                every, shared, members = every | steps, shared | twice | common, [*others, *members]
            else:
                apart.append((steps, twice, others))
        clusters = [*apart, (every, shared, members)]
    yield from ((shared, members) for _, shared, members in clusters if shared)


def named(folders: Sequence[Path]) -> str:
    """`a, b and c`; of many the first ones and how many more."""
    shown = [str(folder) for folder in folders[:MAX_NAMED_FOLDERS]]
    if len(folders) > MAX_NAMED_FOLDERS:
        shown.append(f"{len(folders) - MAX_NAMED_FOLDERS} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
