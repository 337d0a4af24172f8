"""Finds the rows of selected samples in the files of artifacts.

A sample is found in a file through the dumps that were created from the file: the dump of the sample, or one that was
merged with it. A dump with the same bytes as the file counts too if no record of it was skipped. A dump of which the
retention policy dropped samples does not count, since its rows have other numbers now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollouts.errors import StorageUnavailableError
from rollouts.models import Artifact, Dump, DuplicateSource, Sample
from rollouts.samples import load_bodies

MAX_IDS_PER_QUERY = 900
ArtifactKey = tuple[int, str]  # run id, key


def find_filtered_samples(index: SelectedRowIndex, samples: set[str]) -> set[str]:
    """Returns the samples that the trainer filtered out before it wrote the files, so no file contains them."""
    missing = samples - {sample for sample, *_ in index.iter_rows()} if samples else set()
    if not missing:
        return set()
    try:
        rows = [row for ids in chunk(missing) for row in Sample.objects.filter(pk__in=ids).select_related("dump")]
        bodies = load_bodies(rows)
    except StorageUnavailableError:
        return set()
    return {sample for sample, body in bodies.items() if body.extras.get("filtered")}


class SelectedRowIndex:
    """The rows of selected samples in the files of artifacts, and the `groups` of the samples.

    `hidden` samples are of an older version of their step. `masked` artifacts count all records of their files, also
    unreadable ones. Their files may be dumps themselves.
    """

    def __init__(self, samples: Iterable[str], masked: Iterable[Artifact] = ()) -> None:
        self.groups: dict[str, str] = {}
        self.indices: dict[str, int | None] = {}  # in the group
        self.prompts: dict[str, str] = {}
        self.hidden: set[str] = set()
        self._rows: list[tuple[str, int, int]] = []  # (sample, dump, ordinal)
        columns = ("pk", "dump", "ordinal", "group", "index", "prompt_key", "visible")
        for ids in chunk(samples):
            rows = Sample.objects.filter(pk__in=ids).values_list(*columns)
            for sample, dump, ordinal, group, number, key, visible in rows:
                self._rows.append((sample, dump, ordinal))
                self.groups[sample], self.indices[sample], self.prompts[sample] = group, number, group or key
                if not visible:
                    self.hidden.add(sample)
            duplicates = DuplicateSource.objects.filter(sample__in=ids)
            self._rows += duplicates.values_list("sample", "dump", "ordinal")
        complete = Dump.objects.filter(pk__in={dump for _, dump, _ in self._rows}, samples_dropped_at=None)
        from_artifacts = complete.filter(source__startswith=Dump.ARTIFACT_PREFIX)
        self._files: dict[int, tuple[ArtifactKey, str]] = {}  # dump id -> artifact and path
        for pk, run, source in from_artifacts.values_list("pk", "run", "source"):
            key, _, path = source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
            self._files[pk] = (run, key), path
        files = {
            (artifact.run_id, file["sha256"]): ((artifact.run_id, artifact.key), path)
            for artifact in masked
            for path, file in artifact.files.items()
        }
        same_bytes = complete if files else complete.none()
        for pk, run, sha256, skipped in same_bytes.values_list("pk", "run", "sha256", "left_out"):
            if (run, sha256) in files:
                self._files.pop(pk, None)
                if not skipped:  # else the row numbers of the dump are not the record numbers of the file
                    self._files[pk] = files[run, sha256]

    def iter_rows(self) -> Iterator[tuple[str, ArtifactKey, str, int]]:
        """Yields (sample, artifact, path, record)."""
        for sample, dump, ordinal in self._rows:
            if dump in self._files:
                yield sample, *self._files[dump], ordinal

    def find_numbered_row(self, sample: str, artifact: Artifact) -> tuple[str, int] | None:
        """Returns path and record of a sample whose group and index are the position of its row in the step."""
        group, index = self.groups.get(sample, ""), self.indices.get(sample)
        answers, rows = (artifact.facts.get(name) for name in ("samples_per_prompt", "rows"))
        files = sorted(artifact.files, key=lambda name: (len(name), name))
        is_number = group.isascii() and group.isdigit() and len(group) < 16
        if not is_number or index is None or not isinstance(answers, int) or not isinstance(rows, int):
            return None
        row, rows_per_file = int(group) * answers + index, rows // max(1, len(files))
        return (files[row // rows_per_file], row % rows_per_file) if rows_per_file and row < rows else None


def chunk(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yields lists that fit into one query."""
    ordered = list(ids)
    for start in range(0, len(ordered), MAX_IDS_PER_QUERY):
        yield ordered[start : start + MAX_IDS_PER_QUERY]
