"""Types of a search for dump files: its options and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from rolloutdeck.trainer_api import FileKind, LoadableStep


@dataclass(frozen=True)
class ScanOptions:
    """The user's options for the files; empty values are detected from the files.

    `step_kinds` maps `train`, `eval`, `metrics`, or "" for all, to a step kind. `columns` maps the columns of a table
    to the parts of a sample, see `columns.parse_column_mapping`.
    """

    split: str = ""
    format: str = ""
    step_kinds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    columns: str = ""

    def step_kind(self, axis: str, default: str = "global_step") -> str:
        return self.step_kinds.get(axis) or self.step_kinds.get("") or default


@dataclass(frozen=True)
class DumpFile:
    """A dump file. `source` is its path below the given folder, with "/"; `columns` as in `ScanOptions`."""

    path: Path
    source: str
    kind: FileKind
    split: str = "train"
    step: int | None = None
    step_kind: str = "global_step"
    columns: str = ""


@dataclass
class ScanResult:
    """The result of a scan.

    `steps` can be loaded again, `trainer` is their trainer's name. `skipped` maps a reason to sources. `notes` are
    messages about guesses.
    """

    files: list[DumpFile] = field(default_factory=list)
    steps: list[LoadableStep] = field(default_factory=list)
    trainer: str = ""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
