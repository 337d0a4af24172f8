"""The types of a trainer's module: the files it writes, its settings checks and its replay functions."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from rolloutdeck.trainer_api.timing import TimingMetrics

if TYPE_CHECKING:
    from rolloutdeck.replay import RunRequirements

P = ParamSpec("P")
R = TypeVar("R")
TrainerSettings = Mapping[str, Any]  # the dotted name of a setting -> its value


@dataclass(frozen=True)
class FileHead:
    """The beginning of a file.

    rows: its first readable JSON objects. first_key: the first JSON key, if even the first line is too long.
    start: the first bytes. name_only: the file is compressed and only its name is known.
    """

    rows: tuple[dict[str, Any], ...] = ()
    first_key: str = ""
    start: bytes = b""
    name_only: bool = False

    @classmethod
    def from_bytes(cls, start: bytes) -> FileHead:
        """Parses the first 20 lines of `start`. Invalid lines are skipped, so a truncated line does not hide others."""
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

    def has_key(self, key: str) -> bool:
        return any(key in row for row in self.rows) or self.first_key == key

    def list_csv_columns(self) -> list[str]:
        """Returns the columns in the first line, which are separated by commas, semicolons or tabs.

        Its end may be a carriage return alone. Empty if it is no line of a CSV file.
        """
        first = self.start.partition(b"\n")[0].decode("utf-8-sig", "replace")
        separator = max(",;\t", key=first.count)
        try:
            return next(csv.reader(io.StringIO(first, newline=""), delimiter=separator), [])
        except csv.Error:
            return []

    def list_table_columns(self, suffix: str) -> list[str]:
        """Returns the columns in the first line of a table, `.csv`, `.tsv` or `.jsonl`; empty for other files."""
        if suffix in (".csv", ".tsv"):
            return self.list_csv_columns()
        return list(self.rows[0]) if suffix == ".jsonl" and self.rows else []


@dataclass(frozen=True)
class FileKind:
    """A kind of file.

    format: the server's name of the format. description: what `watch` prints. pattern: what the file names look like.
    matches(name, head): whether a file is of this kind, by its name and first rows.
    grows: rows are appended to the file; otherwise it is written once.
    step(path): the step in the name of the file or its folders; None if there is none.
    missing_step: a file without such a step is skipped for this reason; "" if the kind has other rules (`stepless`).
    rows_have_step(path, head): the steps in the rows count, not the number that the file is named after.
    line_step(line): the step of one line of a growing file; None if there is none.
    split(path): the split in the name of the file; "" if there is none.
    stepless: files without a step in their name are accepted; their rows contain the step.
    step_kind: the unit of the step numbers.
    adds_columns: the rows add columns to samples of another file of the same step.
    guessed: the kind is recognised by its columns only. Next to files of a trainer, such a file has the same samples.
    content: `samples` or `metrics`.
    producer(path): distinguishes files with different samples of the same step; "" if only their paths differ.
    """

    format: str
    description: str
    pattern: str
    matches: Callable[[str, FileHead], bool]
    grows: bool = False
    step: Callable[[Path], int | None] = lambda path: None
    missing_step: str = ""
    rows_have_step: Callable[[Path, FileHead], bool] = lambda path, head: False
    line_step: Callable[[bytes], int | None] = lambda line: None
    split: Callable[[Path], str] = lambda path: ""
    content: Literal["samples", "metrics"] = "samples"
    stepless: bool = False
    step_kind: str = "global_step"
    adds_columns: bool = False
    guessed: bool = False
    producer: Callable[[Path], str] = lambda path: ""


def match_step(pattern: re.Pattern[str], name: str) -> int | None:
    """Returns the number in the last group of `pattern` if it matches the start of the name."""
    match = pattern.match(name)
    return int(match[match.re.groups]) if match else None


def find_step_in_parents(path: PurePath, parse: Callable[[str], int | None], limit: int | None = None) -> int | None:
    """Returns the step in the name of the nearest parent folder that `parse` reads; None if it reads none of them, or
    none of the nearest `limit`."""
    steps = (parse(folder.name) for folder in list(path.parents)[:limit])
    return next((step for step in steps if step is not None), None)


def parse_row_step(line: bytes) -> int | None:
    """Returns the whole number `step` of a JSON line."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def assume_split(split: str, reason: str) -> Callable[[Sequence[FileHead], Sequence[int]], tuple[str, str]]:
    """Returns a `guess_split` for files that do not show their split."""
    return lambda heads, steps: (split, reason)


@dataclass(frozen=True)
class StepLocation:
    """The location of a replayable step that is stored or being written. Its batch has not been read yet.

    files: paths below `path`. reason: why the step can't be used; "" if it can. grows: more files may be written.
    has_samples: the files are also read as samples. overwritten: the trainer will overwrite the files.
    """

    trainer: str
    path: Path
    layout: str
    files: tuple[str, ...]
    reason: str = ""
    grows: bool = False
    has_samples: bool = False
    overwritten: bool = False


@dataclass(frozen=True)
class LoadableStep:
    """A complete step that a trainer can load instead of generating it.

    files: the files of the artifact, as paths below `path`. role: one of `ARTIFACT_ROLES`.
    layout: the trainer's name for its file layout. facts: see `protocol/compatibility.py`.
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
    """An issue in a trainer's settings. lost_data: what would be lost ("" for a hint). fix: lines that prevent it.

    possible_loss: what would be lost with some values of a setting whose value can't be determined, and with which;
    "" for other issues. It is never set together with `lost_data`.
    """

    title: str
    lost_data: str = ""
    fix: tuple[str, ...] = ()
    possible_loss: str = ""


def build_undetermined_issue(setting: str, possible_loss: str, fix: tuple[str, ...] = ()) -> SettingsIssue:
    """Returns the issue of a setting, like `name=$VAR`, whose value its file does not contain."""
    return SettingsIssue(f"cannot determine {setting}", fix=fix, possible_loss=possible_loss)


@dataclass(frozen=True)
class FunctionReference(Generic[P, R]):
    """A function, written as "module:function", whose module is imported at the first call.

    A trainer's own processes and most commands need only the file descriptions, not all functions of all trainers.
    """

    target: str

    def load(self) -> Callable[P, R]:
        module, _, name = self.target.partition(":")
        function: Callable[P, R] = getattr(importlib.import_module(module), name)
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.load()(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class TrainerFiles:
    """The files of one program.

    kinds: the files that are read. others: name patterns of known files that are not read -> description.
    guess_split(heads, steps): `train` or `eval` for a folder whose name does not contain it, and the reason.
    hidden_folders: names that begin with a dot, of folders with such files. Other hidden folders are not searched.
    timing: which of its metrics are the seconds of a step's phases; None if it logs none.
    """

    name: str
    kinds: tuple[FileKind, ...]
    guess_split: Callable[[Sequence[FileHead], Sequence[int]], tuple[str, str]]
    others: Mapping[str, str] = field(default_factory=dict)
    hidden_folders: tuple[str, ...] = ()
    timing: TimingMetrics | None = None


@dataclass(frozen=True, kw_only=True)
class Trainer(TrainerFiles):
    """A trainer with settings checks and replay. A field is None if the trainer does not support it.

    loads: the `format` facts of the steps that it can replay.
    check_settings(settings, complete=): the issues of these settings (dotted names); `complete`: no setting is left to
    its default.
    read_requirements(settings): what a run with these settings loads instead of generating; raises UsageError.
    guess_settings(project, run, pinned, facts): the settings of a run that is not known: those of the pinned run
    (`pinned`), or settings that fit the `facts` of a pinned step; `facts["files"]` are the names of its files.
    recommended_lines(): the recommended settings in the trainer's syntax; `instructions` says where to put them.
    store_lines(): the settings that let a run store generated steps in a replayable form.
    """

    loads: tuple[str, ...]
    instructions: str
    check_settings: FunctionReference[..., list[SettingsIssue]]
    read_requirements: FunctionReference[[TrainerSettings], RunRequirements]
    guess_settings: FunctionReference[[str, str, TrainerSettings, Mapping[str, Any]], dict[str, Any]]
    recommended_lines: FunctionReference[[], list[str]]
    store_lines: FunctionReference[[], list[str]]
    first_step: int = 1
    # A run that loads the files of `pull` never generates, and stops at a step without files.
    replays_only: bool = False
    # What a replay can do with samples that a plan selects (`SELECTED_ACTIONS`), by the role of the pinned files; "" is
    # for any other role. The first action is what `exclude` means.
    selected_actions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ("regenerate",)})
    # A dropped prompt stays in the batch without a token in the loss. Otherwise the batch has fewer prompts.
    drops_in_place: bool = False
    # The group and index of a sample are numbers that say which row of the files it is.
    numbers_rows: bool = False
    # Formats whose steps are replayed with their own prompts and labels, whatever prompts the run would have asked for.
    replays_own_prompts: tuple[str, ...] = ()
    # The stored steps contain only samples that were trained on, without filtered ones.
    only_trained: bool = False
    # Settings that `pull` needs, as the user writes them.
    required_settings: tuple[str, ...] = ()
    # Names of settings that only this trainer's configuration has, or their beginnings if they end with a dot. A file
    # without any of them is not a configuration of a run.
    setting_names: tuple[str, ...] = ()
    # `pull --way`: name of a loading method -> its settings.
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The folder pattern of the recommended settings, for `watch --tree`.
    watch_tree: str = ""
    # Returns the locations of steps below a folder; the folder itself may be a step.
    find_steps: FunctionReference[[Path], list[StepLocation]] | None = None
    # Reads the batch at a location and returns the step, or the reason why it is skipped.
    read_step: FunctionReference[[StepLocation], LoadableStep | str] | None = None
    # Returns the lines that pass these environment variables to the trainer's workers.
    environment_lines: FunctionReference[[Mapping[str, str]], list[str]] | None = None
    # Returns the settings for replay by our code inside the trainer; None if no code of ours runs inside it.
    replay_lines: FunctionReference[[], list[str]] | None = None

    @property
    def ends_without_file(self) -> bool:
        """Whether a run that replays can only train on files: it ends at a step without one."""
        return self.replays_only and not self.replay_lines
