"""The protocol of a format module and the context of the dump that it reads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from rollouts.samples import LineProblem, MetricPoint, Record, SkippedRow

HEAD_BYTES = 64 << 10  # the size of the head that `sniff` gets
DECODED_ROWS = 16  # rows that are decoded together
Item = TypeVar("Item", bound=Record | LineProblem | SkippedRow)


@dataclass(frozen=True, slots=True)
class DumpContext:
    """The metadata of a dump. `step` is None if the upload has no step; then `extras["step"]` of each record is used.
    `columns` is the column mapping of a table, in the form that `formats.table.mapping.read_column_mapping` parses.

    For a file of an artifact: `path` is its uncompressed file; `sibling_paths` are the other files of its manifest, by
    name; `facts`, see `rolloutdeck.protocol.compatibility`; `decode_tokens` converts token ids to text, None if the
    tokenizer of the run is unknown.
    """

    filename: str = ""
    split: str = "train"
    step: int | None = None
    step_kind: str = "global_step"
    columns: str = ""
    path: Path | None = None
    sibling_paths: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    decode_tokens: Callable[[Sequence[Sequence[int]]], list[str]] | None = None


class Format(Protocol):
    """A module that converts one kind of dump to records.

    `sniff` gets the first 64 KB. `read` yields records in the order of the file. It raises UnreadableDumpError if
    nothing can be read: the file has another form, or none of its lines holds an object.
    """

    @property
    def name(self) -> str: ...
    def sniff(self, filename: str, head: bytes) -> bool: ...
    def read(
        self, stream: BinaryIO, context: DumpContext
    ) -> Iterator[Record | MetricPoint | LineProblem | SkippedRow]: ...


def decode_texts(items: Iterable[Item], context: DumpContext, *, with_prompts: bool = True) -> Iterator[Item]:
    """Sets the texts of the records from their tokens, if the tokenizer of the run is known."""
    decode, remaining = context.decode_tokens, iter(items)
    while window := list(islice(remaining, DECODED_ROWS)):
        records = [item for item in window if isinstance(item, Record)]
        if decode and records:
            responses = decode([record.response_ids or [] for record in records])
            for record, response in zip(records, responses, strict=True):
                record.response, record.textless = response, False
        if decode and records and with_prompts:
            for record, prompt in zip(records, decode([record.prompt_ids or [] for record in records]), strict=True):
                record.prompt = prompt
        yield from window
