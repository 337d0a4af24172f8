"""A shared file system as a pattern, like `/shared/rl/{user}/{project}/{run}/{split}`: whose run a folder is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.errors import UsageError
from rolloutdeck.lib import is_safe_to_follow
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.scan import get_absolute_path, parse_split

PLACEHOLDERS = ("user", "project", "run", "split")


@dataclass(frozen=True)
class TreeRun:
    """Whose run of which project; `user` is empty where the pattern has none."""

    project: str
    run: str
    user: str = ""


@dataclass(frozen=True)
class TreePattern:
    """The parts of a path; the part at `run_depth` is the first below which everything is one run's."""

    parts: tuple[str, ...]
    names: frozenset[str]
    run_depth: int
    project: str = ""
    run: str = ""

    @classmethod
    def read(cls, text: str, *, project: str = "", run: str = "") -> TreePattern:
        """Raises UsageError where the pattern leaves open which run or project a folder belongs to."""
        path = get_absolute_path(Path(text))
        if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
            raise UsageError(f"In --tree {text} a brace lacks its other half.")
        found = re.findall(r"\{([^{}]*)\}", str(path))
        for name in found:
            if name not in PLACEHOLDERS:
                raise UsageError(
                    f"{{{name}}} in --tree is unknown; there are {{user}}, {{project}}, {{run}} and {{split}}."
                )
        if len(found) != len(set(found)):
            raise UsageError("A placeholder of --tree may be there only once.")
        for name, given in (("project", project), ("run", run)):
            if name not in found and not given:
                raise UsageError(f"--tree has no {{{name}}}, so say which one it is with --{name}.")
        parts = path.parts[1:]
        deepest = max((at for at, part in enumerate(parts) if re.search(r"\{(user|project|run)\}", part)), default=-1)
        if any("{split}" in part for part in parts[: deepest + 1]):
            raise UsageError("{split} must come after {user}, {project} and {run} in --tree.")
        run_depth = deepest if deepest >= 0 else _before_split(parts)
        return cls(parts, frozenset(found), run_depth, project, run)

    def runs(self) -> dict[TreeRun, list[WatchedFolder]]:
        """The runs that exist now, each with its folders. Folders that can't be read are passed over."""
        found: dict[TreeRun, list[WatchedFolder]] = {}
        for folder, values in self._matches(Path("/"), 0, self.run_depth, {}):
            identity = TreeRun(values.get("project", self.project), values.get("run", self.run), values.get("user", ""))
            found.setdefault(identity, []).extend(self._roots(folder, values))
        return {identity: roots for identity, roots in found.items() if roots}

    def folder_of(self, path: Path) -> Path:
        """The run's own folder, for a folder in it."""
        return Path("/", *path.parts[1 : self.run_depth + 2])

    def _roots(self, folder: Path, values: Mapping[str, str]) -> Iterator[WatchedFolder]:
        """The run's folders: those of a known split, and the files beside them (metrics); all where none is named.

        A file beside the run's folder that has its name is the run's as well.
        """
        beside = folder.with_name(f"{folder.name}.jsonl")
        if beside.is_file() and is_safe_to_follow(beside):
            yield WatchedFolder(beside)
        if "split" not in self.names:
            tails = self._matches(folder, self.run_depth + 1, len(self.parts) - 1, values)
            yield from (WatchedFolder(path) for path, _ in tails)
            return
        yield WatchedFolder(folder, deep=False)
        for path, named in self._matches(folder, self.run_depth + 1, len(self.parts) - 1, values):
            if split := parse_split([named["split"]]):
                yield WatchedFolder(path, split)

    def _matches(
        self, folder: Path, depth: int, last: int, values: Mapping[str, str]
    ) -> Iterator[tuple[Path, Mapping[str, str]]]:
        if depth > last:
            yield folder, values
            return
        part = self.parts[depth]
        if "{" not in part:
            if (folder / part).is_dir() and is_safe_to_follow(folder / part):
                yield from self._matches(folder / part, depth + 1, last, values)
            return
        shape = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(part)) + r"\Z")
        for name in _folders(folder):
            if match := shape.match(name):
                yield from self._matches(folder / name, depth + 1, last, {**values, **match.groupdict()})


def _before_split(parts: tuple[str, ...]) -> int:
    return next((at - 1 for at, part in enumerate(parts) if "{split}" in part), len(parts) - 1)


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []
    return sorted(entry.name for entry in found if not entry.is_symlink() or is_safe_to_follow(Path(entry.path)))
