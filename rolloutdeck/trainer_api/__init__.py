"""What the trainer side knows of each trainer: a module each, a word in `TRAINERS` or `READ` each.

A module has `KINDS` (the files it writes and we take), `OTHERS` (the files it writes and we leave, with what they are)
and `guess_split`, see `Files`. One in `TRAINERS` has what else there is of it, see `Trainer`: `spots` and `described`
make its steps pinnable for `watch` and `import`, `asking` and `likely` let `pull` lay them out, `check` finds what its
settings would lose.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

if TYPE_CHECKING:
    from rolloutdeck.replay.placement import Asking

TRAINERS = ("verl", "trl", "slime", "roll", "cure")
# Whose files are taken and nothing else: modules with `KINDS`, `OTHERS`, `guess_split`.
READ: tuple[str, ...] = ("nemo_rl", "verifiers", "rllm", "areal", "open_instruct", "swift", "evaluations", "tables")


@dataclass(frozen=True)
class Head:
    """The beginning of a file: its first readable JSON objects, the first key when even one line is too long, and the
    bytes themselves. `unseen`: it is compressed, and only its name is known."""

    rows: tuple[dict[str, Any], ...] = ()
    first_key: str = ""
    start: bytes = b""
    unseen: bool = False

    @classmethod
    def of(cls, start: bytes) -> Head:
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
    recognise: Callable[[str, Head], bool]
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
class Spot:
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
class SkipFolder:
    """A whole step that a trainer can load instead of generating it: `files`, paths below `path`, are its artifact.

    `role` is one of `wire.ROLES`, `layout` the trainer's own word for how the files lie, `facts` those of `compat`.
    """

    path: Path
    role: str
    step: int
    step_kind: str
    files: tuple[str, ...]
    layout: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Something in a trainer's settings. `lost` says what would be lost (empty: only a hint); `paste` mends it."""

    title: str
    lost: str = ""
    paste: tuple[str, ...] = field(default=())


class Files(Protocol):
    """What a module offers of a trainer whose files we take."""

    KINDS: tuple[FileKind, ...]
    OTHERS: Mapping[str, str]

    def guess_split(self, heads: Sequence[Head], steps: Sequence[int]) -> tuple[str, str]:
        """`train` or `eval` for a folder whose name does not say, and why."""


class Trainer(Files, Protocol):
    """What a trainer's module may offer; each command asks those that have what it needs, see `offering`."""

    FIRST: int  # the number of its first step; 1 where it is not said
    LOADS: Sequence[str]  # the `format` facts of the steps that it can load again
    ALONE: bool  # whether a run that loads what `pull` laid out generates nothing, and ends where a step has no file
    MASKS: bool  # whether a flagged row stays in a step that it loads, without weight; else its prompt is left out
    TRAINED: bool  # whether the steps that it loads hold nothing that a filter dropped before it was trained on
    INSIDE: object  # what runs inside of it: it fetches pinned steps by itself; not there where nothing does
    ASKED: Sequence[str]  # settings without which `pull` lays nothing out, as a person types them
    WAYS: Mapping[str, Mapping[str, Any]]  # `pull --way`: the ways in which it loads, as settings
    TREE: str  # where the recommended settings put a run, as `watch --tree` takes it; "" where there is no such place
    WHERE: str  # a sentence: where a person puts the recommended settings

    def spots(self, root: Path) -> list[Spot]:
        """The places of steps below `root`, which may be one itself."""

    def described(self, spot: Spot) -> SkipFolder | str:
        """What is there, read from its batch; else the reason why it is left out."""

    def check(self, settings: Mapping[str, Any], *, complete: bool) -> list[Finding]:
        """What of these settings (dotted names) would lose samples. `complete`: nothing is left to defaults."""

    def asking(self, settings: Mapping[str, Any]) -> Asking:
        """What a run with these settings (dotted names) loads instead of generating. Raises BadInput."""

    def likely(self, project: str, run: str, pinned: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that a run of this name is taken to have when nothing is known of it: those of the pinned run,
        where they are known, else what the `facts` of a pinned step tell."""

    def environment(self, values: Mapping[str, str]) -> list[str]:
        """The lines that give these environment variables to the trainer's workers."""

    def recommended(self) -> list[str]:
        """The settings to start with, as the trainer takes them, Ray's environment included."""

    def keeping(self) -> list[str]:
        """The lines that make a run keep what some of its steps generated, in a form that it can load again."""

    def replaying(self) -> list[str]:
        """The lines by which what runs inside of it fetches the steps of a plan; with INSIDE."""


def load(name: str) -> Trainer:
    return cast(Trainer, importlib.import_module(f"rolloutdeck.trainers.{name}"))


def offering(what: str) -> tuple[str, ...]:
    """The trainers whose modules have this."""
    return tuple(name for name in TRAINERS if hasattr(load(name), what))


def loading(format: str) -> str:
    """The trainer that loads steps of this format again; "" where none does."""
    return next((name for name in TRAINERS if format and format in getattr(load(name), "LOADS", ())), "")


def first_step(format: str) -> int:
    """The number of the first step of the trainer that loads this format."""
    return int(getattr(load(found), "FIRST", 1)) if (found := loading(format)) else 1


def masks(format: str) -> bool:
    """Whether the trainer that loads this format takes flagged rows along, without weight."""
    return bool(getattr(load(found), "MASKS", False)) if (found := loading(format)) else False


def alone(name: str) -> bool:
    """Whether a run of this trainer trains on nothing but what `pull` laid out."""
    return bool(name and getattr(load(name), "ALONE", False))


def only_trained(format: str) -> bool:
    """Whether a step of this format holds what was trained on and nothing that was dropped before."""
    return bool(getattr(load(found), "TRAINED", False)) if (found := loading(format)) else False


def files_of(name: str) -> Files:
    return cast(Files, importlib.import_module(f"rolloutdeck.trainers.{name}"))


def owner_of(format: str) -> Files:
    """The trainer that writes files of this format; ValueError names the formats there are."""
    known = []
    for name in (*TRAINERS, *READ):
        trainer = files_of(name)
        known += [kind.format for kind in trainer.KINDS]
        if format in known:
            return trainer
    raise ValueError(f"There is no format {format!r}; there are: {', '.join(known)}.")


def name_of(format: str) -> str:
    """The word of the trainer that writes files of this format."""
    return next(name for name in (*TRAINERS, *READ) if any(kind.format == format for kind in files_of(name).KINDS))


def kinds(format: str = "") -> list[FileKind]:
    """All kinds of file, or those of one format; ValueError where there is none."""
    every = [kind for name in (*TRAINERS, *READ) for kind in files_of(name).KINDS]
    chosen = owner_of(format).KINDS if format else every
    return [kind for kind in chosen if format in ("", kind.format)]


def spots(root: Path) -> list[Spot]:
    """The places of steps below `root` that some trainer can load again, whole or not."""
    return [spot for name in offering("spots") for spot in load(name).spots(root)]


def described(spot: Spot) -> SkipFolder | str:
    """What is at a spot; else the reason why it is left out. Reads the batch."""
    return load(spot.trainer).described(spot)


def others() -> dict[str, str]:
    """File name patterns that are known and not taken, each with what it is."""
    return {pattern: what for name in (*TRAINERS, *READ) for pattern, what in files_of(name).OTHERS.items()}
