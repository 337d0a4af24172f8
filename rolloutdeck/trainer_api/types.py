"""What a trainer's module is made of: the kinds of file it writes, and all else that the commands ask of a trainer."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rolloutdeck.replay import RunRequirements

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class FileHead:
    """The beginning of a file: its first readable JSON objects, the first key when even one line is too long, and the
    bytes themselves. `unseen`: it is compressed, and only its name is known."""

    rows: tuple[dict[str, Any], ...] = ()
    first_key: str = ""
    start: bytes = b""
    unseen: bool = False

    @classmethod
    def of(cls, start: bytes) -> FileHead:
        """Reads whole lines of `start`; bad ones are passed over, so that one torn line hides nothing."""
        rows = []
        for line in start.split(b"\n")[:20]:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                rows.append(row)
        first = re.match(rb'\s*\{\s*"([^"\\]{1,200})"\s*:', start)
        return cls(tuple(rows), first.group(1).decode("utf-8", "replace") if first else "", start)

    def has(self, key: str) -> bool:
        return any(key in row for row in self.rows) or self.first_key == key


@dataclass(frozen=True)
class FileKind:
    """One kind of file. `format` is the name the server knows it by; `pattern` what its file names look like.

    `recognise(name, head)` decides by file name and first rows; `step(path)` is the step that the file's name or its
    folders say; `line_step(line)` that of one line of a growing file. Both give None where there is none; `stepless`
    kinds are taken then too, their rows say it. `split(path)` is empty where the file's own name does not say it.
    `step_kind` is what their steps count. Rows of a kind that `joins` are samples of another file of their step. A
    `guessed` kind is known by its columns alone: beside what a trainer wrote it tells of the same samples once more.
    `producer(path)` tells files apart that hold other samples of one step; "" where only their paths do.
    """

    format: str
    what: str
    pattern: str
    arrives: Literal["whole", "append"]
    recognise: Callable[[str, FileHead], bool]
    step: Callable[[Path], int | None] = lambda path: None
    line_step: Callable[[bytes], int | None] = lambda line: None
    split: Callable[[Path], str] = lambda path: ""
    holds: Literal["samples", "metrics"] = "samples"
    stepless: bool = False
    step_kind: str = "global_step"
    joins: bool = False
    guessed: bool = False
    producer: Callable[[Path], str] = lambda path: ""


@dataclass(frozen=True)
class StepLocation:
    """A place where a step that can be loaded again is, or is being written; its batch was not read yet.

    `files` are paths below `path`; `reason` says why it can't be taken, "" where it can; `open`: more files may come.
    `dumps`: its files are samples that are taken as such, too; `fleeting`: its trainer will write over them.
    """

    trainer: str
    path: Path
    layout: str
    files: tuple[str, ...]
    reason: str = ""
    open: bool = False
    dumps: bool = False
    fleeting: bool = False


@dataclass(frozen=True)
class LoadableStep:
    """A whole step that a trainer can load instead of generating it: `files`, paths below `path`, are its artifact.

    `role` is one of `wire.ARTIFACT_ROLES`, `layout` the trainer's own word for how the files are stored; the names
    of `facts` are in `compatibility`.
    """

    path: Path
    role: str
    step: int
    step_kind: str
    files: tuple[str, ...]
    layout: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SettingsIssue:
    """Something in a trainer's settings. `lost` says what would be lost (empty: only a hint); `paste` mends it."""

    title: str
    lost: str = ""
    paste: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class FunctionReference(Generic[P, R]):
    """A function, written as "module:function". Its module is imported by the first call, since a trainer's own
    processes and most commands need only what tells its files."""

    target: str

    def load(self) -> Callable[P, R]:
        module, _, name = self.target.partition(":")
        function: Callable[P, R] = getattr(importlib.import_module(module), name)
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.load()(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class TrainerFiles:
    """The files of one program. `kinds`: those that we take. `others`: name patterns of those that we do not take,
    each with what it is. `guess_split(heads, steps)`: `train` or `eval` for a folder whose name does not say it, and
    why."""

    name: str
    kinds: tuple[FileKind, ...]
    guess_split: Callable[[Sequence[FileHead], Sequence[int]], tuple[str, str]]
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trainer(TrainerFiles):
    """A trainer whose settings we check and whose steps we replay. A field that is None is what it does not offer.

    `loads`: the `format` facts of the steps that it can load again. `check_settings(settings, complete=)`: what of
    these settings (dotted names) would lose samples; `complete`: nothing is left to defaults.
    `read_requirements(settings)`: what a run with these settings loads instead of generating; raises UsageError.
    `guess_settings(project, run, pinned, facts)`: the settings of a run of this name when nothing is known of it: those
    of the pinned run where they are known, else what the `facts` of a pinned step tell. `recommended_lines()`: the
    settings to start with, as the trainer takes them; `instructions` says where to put them. `keep_lines()`: those
    that make a run keep what some of its steps generated, in a form that it can load again.
    """

    loads: tuple[str, ...]
    instructions: str
    check_settings: FunctionReference[..., list[SettingsIssue]]
    read_requirements: FunctionReference[[Mapping[str, Any]], RunRequirements]
    guess_settings: FunctionReference[[str, str, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    recommended_lines: FunctionReference[[], list[str]]
    keep_lines: FunctionReference[[], list[str]]
    first_step: int = 1
    # A run that loads what `pull` wrote generates nothing, and ends where a step has no file.
    replays_only: bool = False
    # A flagged row stays in a step that it loads, without weight; else its prompt is left out.
    masks_flagged: bool = False
    # The steps that it loads hold nothing that a filter dropped before it was trained on.
    only_trained: bool = False
    # Settings without which `pull` writes nothing, as the user types them.
    required_settings: tuple[str, ...] = ()
    # `pull --way`: the ways in which it loads, as settings.
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Where the recommended settings put a run, as `watch --tree` takes it.
    watch_tree: str = ""
    # The places of steps below a folder, which may be one itself.
    find_steps: FunctionReference[[Path], list[StepLocation]] | None = None
    # What is at one of these places, read from its batch; else the reason why it is left out.
    read_step: FunctionReference[[StepLocation], LoadableStep | str] | None = None
    # The lines that give these environment variables to the trainer's workers.
    environment_lines: FunctionReference[[Mapping[str, str]], list[str]] | None = None
    # The lines by which what runs inside the trainer fetches the steps of a plan; None where nothing runs inside.
    replay_lines: FunctionReference[[], list[str]] | None = None
