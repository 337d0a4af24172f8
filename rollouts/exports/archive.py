"""An export as one ZIP file, which is written while it is sent: the data, then the card, which knows the counts."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, dropwhile, islice
from typing import Final

from django.contrib.auth.models import AnonymousUser, User

from rollouts.exports.card import build_card
from rollouts.exports.label_rows import iterate_label_rows
from rollouts.exports.options import ExportOptions
from rollouts.exports.rows import Batch, ExportCounts, TrainingRows
from rollouts.exports.schemas import build_schema
from rollouts.exports.tables import iterate_samples
from rollouts.exports.writers import RowWriter, open_writer
from rollouts.labels import RubricVersion, load_rubric
from rollouts.models import Project, SampleQuerySet
from rollouts.samples import DrainableBuffer

EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first time that ZIP knows: the same rows give the same bytes


@dataclass(frozen=True)
class Export:
    """`samples` are those of one query, one query set for each run. `query` describes it on the card, `skipped_runs`
    are the names of runs without a key that it asks for."""

    project: Project
    options: ExportOptions
    samples: Sequence[SampleQuerySet]
    query: Mapping[str, str]
    split: str = "train"
    reader: User | AnonymousUser | None = None
    skipped_runs: Sequence[str] = ()

    @property
    def data_path(self) -> str:
        return f"data/{self.split}.{self.options.format}"

    @property
    def file_name(self) -> str:
        return f"{self.project.slug}-{self.options.layout}.zip"


def stream_archive(export: Export) -> Iterator[bytes]:
    """Yields the bytes of the ZIP file. Keeps two batches of samples in memory: one is written while the next is read.
    Raises StorageUnavailableError."""
    counts, rubric = ExportCounts(), load_rubric(export.project)  # a version that is saved meanwhile changes nothing
    buffer = DrainableBuffer()
    with zipfile.ZipFile(buffer, "w") as archive:
        with (
            archive.open(describe_file(export.data_path), "w", force_zip64=True) as file,
            ThreadPoolExecutor(1, "export") as thread,  # ends before the file closes, also if the client leaves
        ):

            def write(make_pieces: Callable[[], Sequence[bytes]]) -> list[bytes]:
                for piece in make_pieces():
                    file.write(piece)
                return buffer.take_pieces()

            writing: Future[list[bytes]] | None = None
            data = DataFile(export, rubric, counts)
            for make_pieces in data.iterate():
                if writing:
                    yield from writing.result()
                writing = thread.submit(write, make_pieces)
                del make_pieces
            if writing:
                yield from writing.result()
        path, checksum = export.data_path, archive.getinfo(export.data_path).CRC
        columns = data.writer.get_columns() if data.writer else None
        card = build_card(
            export.project,
            rubric,
            export.options,
            export.query,
            counts,
            path,
            export.split,
            checksum,
            columns,
            export.skipped_runs,
        )
        archive.writestr(describe_file("README.md"), card)
    yield buffer.take()


def describe_file(path: str) -> zipfile.ZipInfo:
    """Files are not compressed, which would take longer than everything else. Parquet compresses its columns."""
    info = zipfile.ZipInfo(path, EPOCH)
    info.external_attr = 0o644 << 16
    return info


@dataclass
class DataFile:
    """The data of an export. The `writer` is known once the first rows are."""

    export: Export
    rubric: RubricVersion
    counts: ExportCounts
    writer: RowWriter | None = None

    def iterate(self) -> Iterator[Callable[[], Sequence[bytes]]]:
        """Yields for each batch a function that returns its bytes, and one for the end of the file. They may be called
        in another thread, in this order."""
        options, counts = self.export.options, self.counts
        training = None
        if options.is_training_data:
            training = TrainingRows(self.export.project, options, counts, self.export.reader)
        batches: Iterator[Batch] = chain.from_iterable(
            iterate_rows(self.export, self.rubric, samples, counts, training) for samples in self.export.samples
        )
        if training:
            batches = dropwhile(lambda _batch: training.as_messages is None, batches)  # no row before the first text
        first: list[Batch] = list(islice(batches, 1))  # which says whether there are messages
        as_messages = bool(training and training.as_messages)
        self.writer = writer = open_writer(options.format, build_schema(self.rubric, options, as_messages=as_messages))
        if first:
            yield partial(writer.write, first.pop())
        yield from (partial(writer.write, batch) for batch in batches)
        yield writer.finish


def iterate_rows(
    export: Export, rubric: RubricVersion, samples: SampleQuerySet, counts: ExportCounts, training: TrainingRows | None
) -> Iterator[Batch]:
    if training:
        return training.iterate(samples)
    if export.options.layout == "labels":
        return iterate_label_rows(samples, counts, export.reader, ids=export.options.ids)
    return iterate_samples(export.project, rubric, samples, counts, export.reader)
