"""What a search for dump files is given and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from rolloutdeck.trainer_api import FileKind, LoadableStep


@dataclass(frozen=True)
class ScanOptions:
    """What the person said about the files; empty where they are to speak for themselves.

    `step_kinds` maps `train`, `eval`, `metrics`, or "" for all, to a step kind; `columns` says which column of a table
    is which part of a sample, see `columns.parse_column_mapping`.
    """

    split: str = ""
    format: str = ""
    step_kinds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    columns: str = ""

    def step_kind(self, axis: str, usual: str = "global_step") -> str:
        return self.step_kinds.get(axis) or self.step_kinds.get("") or usual


@dataclass(frozen=True)
class DumpFile:
    """A file to take. `source` is its path below the given folder, with "/"; `columns` as in `ScanOptions`."""

    path: Path
    source: str
    kind: FileKind
    split: str = "train"
    step: int | None = None
    step_kind: str = "global_step"
    columns: str = ""


@dataclass
class ScanResult:
    """`folders`: steps that can be loaded again, `trainer` their trainer's name. `left_out`: what it is -> sources.
    `notes`: sentences about what was decided."""

    files: list[DumpFile] = field(default_factory=list)
    folders: list[LoadableStep] = field(default_factory=list)
    trainer: str = ""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
