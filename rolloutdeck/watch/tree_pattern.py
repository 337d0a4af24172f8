"""Patterns of a shared file system, like `/shared/rl/{user}/{project}/{run}/{split}`: they assign folders to runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rolloutdeck.errors import UsageError
from rolloutdeck.lib import get_path_type, is_safe_to_follow
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.scan import get_absolute_path, parse_split

PLACEHOLDERS = ("user", "project", "run", "split")


@dataclass(frozen=True)
class TreeRun:
    """A run of a project; `user` is empty if the pattern has no user."""

    project: str
    run: str
    user: str = ""


@dataclass(frozen=True)
class TreePattern:
    """The parts of a path. Everything below the part at `run_depth` belongs to one run."""

    parts: tuple[str, ...]
    names: frozenset[str]
    run_depth: int
    project: str = ""
    run: str = ""

    @classmethod
    def parse(cls, text: str, *, project: str = "", run: str = "") -> TreePattern:
        """Parses a pattern. Raises UsageError if it does not determine the run or project of a folder."""
        path = get_absolute_path(Path(text))
        if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
            raise UsageError(f"--tree {text} has an unmatched brace.")
        placeholders = re.findall(r"\{([^{}]*)\}", str(path))
        if unknown := [name for name in placeholders if name not in PLACEHOLDERS]:
            known = "Use {user}, {project}, {run} or {split}."
            raise UsageError(f"--tree has an unknown placeholder {{{unknown[0]}}}. {known}")
        if len(placeholders) != len(set(placeholders)):
            raise UsageError("--tree must not repeat a placeholder.")
        for name, given in (("project", project), ("run", run)):
            if name not in placeholders and not given:
                raise UsageError(f"--tree has no {{{name}}}, so set it with --{name}.")
        parts = path.parts[1:]
        named = [index for index, part in enumerate(parts) if re.search(r"\{(user|project|run)\}", part)]
        deepest = max(named, default=-1)
        if any("{split}" in part for part in parts[: deepest + 1]):
            raise UsageError("{split} must come after {user}, {project} and {run} in --tree.")
        run_depth = deepest if deepest >= 0 else _find_depth_before_split(parts)
        return cls(parts, frozenset(placeholders), run_depth, project, run)

    def find_runs(self) -> dict[TreeRun, list[WatchedFolder]]:
        """Returns the runs that exist now, each with its folders. Folders that can't be read are skipped."""
        folders_by_run: dict[TreeRun, list[WatchedFolder]] = {}
        for folder, values in self._match_folders(Path("/"), 0, self.run_depth, {}):
            tree_run = TreeRun(values.get("project", self.project), values.get("run", self.run), values.get("user", ""))
            folders_by_run.setdefault(tree_run, []).extend(self._find_folders(folder, values))
        return {tree_run: folders for tree_run, folders in folders_by_run.items() if folders}

    def build_run_folder(self, tree_run: TreeRun) -> Path:
        """Returns the run's own folder. The files of the run are in it, or next to it."""
        values = {"user": tree_run.user, "project": tree_run.project, "run": tree_run.run}
        parts = (re.sub(r"\{(\w+)\}", lambda match: values[match[1]], part) for part in self.parts)
        return Path("/", *islice(parts, self.run_depth + 1))

    def _find_folders(self, folder: Path, values: Mapping[str, str]) -> Iterator[WatchedFolder]:
        """Yields the run's folders.

        With {split} in the pattern: the folders of a known split, and the files next to them (metrics); else all
        folders. A file next to the run's folder that has its name belongs to the run too.
        """
        run_file = folder.with_name(f"{folder.name}.jsonl")
        if get_path_type(run_file) == "file" and is_safe_to_follow(run_file):
            yield WatchedFolder(run_file)
        if "split" not in self.names:
            tails = self._match_folders(folder, self.run_depth + 1, len(self.parts) - 1, values)
            yield from (WatchedFolder(path) for path, _ in tails)
            return
        yield WatchedFolder(folder, deep=False)
        for path, match_values in self._match_folders(folder, self.run_depth + 1, len(self.parts) - 1, values):
            if split := parse_split([match_values["split"]]):
                yield WatchedFolder(path, split)

    def _match_folders(
        self, folder: Path, depth: int, last: int, values: Mapping[str, str]
    ) -> Iterator[tuple[Path, Mapping[str, str]]]:
        if depth > last:
            yield folder, values
            return
        part = self.parts[depth]
        if "{" not in part:
            if get_path_type(folder / part) == "folder" and is_safe_to_follow(folder / part):
                yield from self._match_folders(folder / part, depth + 1, last, values)
            return
        pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(part)) + r"\Z")
        for name in _list_subfolders(folder):
            if match := pattern.match(name):
                yield from self._match_folders(folder / name, depth + 1, last, {**values, **match.groupdict()})


def _find_depth_before_split(parts: tuple[str, ...]) -> int:
    return next((index - 1 for index, part in enumerate(parts) if "{split}" in part), len(parts) - 1)


def _list_subfolders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and (not entry.is_symlink() or is_safe_to_follow(Path(entry.path)))
    except OSError:  # a link in a circle, or to a folder that can't be read
        return False
