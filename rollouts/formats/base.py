"""What a format module is, and what it is told of the dump that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rollouts.samples import LineProblem, MetricPoint, Record, SkippedRow

HEAD_BYTES = 64 << 10  # what `sniff` sees


@dataclass(frozen=True, slots=True)
class DumpContext:
    """What came with the bytes. `step` is None when nobody said it; then the records' own `extras["step"]` counts.
    `columns`: of a table, as `formats.columns.told` takes it.

    Of a file of an artifact: `path`, where it lies plain; `beside`, where the others of its manifest lie, by name;
    `facts`, see `rolloutdeck.protocol.compatibility`; `decode`, text of token ids where the run's tokenizer is known.
    """

    filename: str = ""
    split: str = "train"
    step: int | None = None
    step_kind: str = "global_step"
    columns: str = ""
    path: Path | None = None
    beside: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    decode: Callable[[Sequence[Sequence[int]]], list[str]] | None = None


class Format(Protocol):
    """A module that turns one kind of dump into records.

    `sniff` sees the first 64 KB. `read` streams, and raises UnreadableDump when nothing in the dump can be read.
    """

    @property
    def name(self) -> str: ...
    def sniff(self, filename: str, head: bytes) -> bool: ...
    def read(
        self, stream: BinaryIO, told: DumpContext
    ) -> Iterator[Record | MetricPoint | LineProblem | SkippedRow]: ...
