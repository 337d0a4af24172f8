"""Puts the files of a plan where a trainer's own code loads them: fetched, checked, mended where it must be, in place.

Nothing is in place before every file of the plan is here, has its hash and is judged loadable.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.lib import (
    DownloadError,
    DownloadProgress,
    ServerClient,
    ServerUnreachableError,
    download_file,
    hash_file,
)
from rolloutdeck.replay.folder import ReplayFolder, StepFiles
from rolloutdeck.replay.placement import Placement, RunRequirements, match_file_name
from rolloutdeck.replay.plan import PlanEntry, PlanFile
from rolloutdeck.safe_pickle import SafePickleError, check_file_safety, rewrite

MAX_JSON_FILE_BYTES = 1 << 20  # bytes of a marker file
MIN_FREE_BYTES = 64 << 20  # bytes that are left free


@dataclass
class PlanPull:
    """One `pull`: from `server`, for what `asking` wants, into `folder`. `say` is told what was mended, a sentence
    each, which `repaired` collects; `leave` of an entry that can't be made without its flagged rows; `progress` of
    bytes as they come, `bytes` counts them."""

    server: ServerClient
    asking: RunRequirements
    folder: ReplayFolder
    say: Callable[[str], None]
    leave: Callable[[PlanEntry, NotReplayableError], None]
    progress: DownloadProgress = lambda more: None
    repaired: list[str] = field(default_factory=list)
    bytes: int = 0
    _made: dict[tuple[str, bool, tuple[int, ...]], tuple[str, Path]] = field(default_factory=dict)

    def run(self, placements: Sequence[Placement], about: Mapping[str, Any]) -> list[Placement]:
        """Those that are in place now, all but the entries that `leave` was told of.

        Raises UsageError with a sentence; what was fetched until then stays aside, and the next call goes on. Raises
        what `leave` does.
        """
        coming = [path for placement in placements for path in placement.paths]
        self.folder.claim({placement.folder for placement in placements}, coming, shared=self.asking.shared)
        wanted = {file.sha256: file for placement in placements for file in placement.files}
        self._room(wanted.values())
        blobs = {sha256: self._blob(file) for sha256, file in wanted.items()}
        made = self._ready_parts(placements, blobs)
        put = self.folder.put_among if self.asking.shared else self.folder.put
        for placement, parts in made:
            put(placement.folder, parts)
        pins = {str(placement.step): placement.entry.pin for placement, _ in made}
        self.folder.finish({**about, "pins": pins, "repaired": self.repaired})
        return [placement for placement, _ in made]

    def _ready_parts(
        self, placements: Sequence[Placement], blobs: Mapping[str, Path]
    ) -> list[tuple[Placement, StepFiles]]:
        """The files of each placement; an entry comes whole or not at all."""
        made: list[tuple[Placement, StepFiles]] = []
        gone: set[int] = set()
        for placement in placements:
            if placement.entry.target_step in gone:
                continue
            try:
                made.append((placement, self._parts(placement, blobs)))
            except NotReplayableError as error:
                self.leave(placement.entry, error)
                gone.add(placement.entry.target_step)
        return [(placement, parts) for placement, parts in made if placement.entry.target_step not in gone]

    def _room(self, files: Any) -> None:
        needed = sum(file.size for file in files if not self.folder.known(file.sha256))
        free = shutil.disk_usage(self.folder.path).free
        if needed + MIN_FREE_BYTES > free:
            raise UsageError(
                f"{self.folder.path} has {free >> 20:,} MiB free, the plan's files take {needed >> 20:,} MiB."
            )

    def _blob(self, file: PlanFile) -> Path:
        """The file's bytes below the folder, verified and judged."""
        known = self.folder.known(file.sha256)
        path = known or self.folder.aside / file.sha256
        if known is None:
            try:
                download_file(self.server, file.address, path, file.sha256, file.size, self.progress)
            except (DownloadError, ServerUnreachableError) as error:
                raise UsageError(f"{file.name} ({file.sha256[:12]}) can't be had: {error}.") from error
            self.bytes += file.size
        check_loadable_file(path, file.name, self.asking)
        return path

    def _parts(self, placement: Placement, blobs: Mapping[str, Path]) -> StepFiles:
        files = placement.files
        return [(placement.called(file), *self._ready(placement, file, blobs[file.sha256])) for file in files]

    def _ready(self, placement: Placement, file: PlanFile, blob: Path) -> tuple[str, Path]:
        """The hash and place of the file as the trainer may have it: the very bytes, unless rows of it are flagged or
        a repair is named."""
        case = file.sha256, placement.moved, placement.without.get(file.name, ())
        if case not in self._made:
            self._made[case] = self._mend(placement, file, *self._without(placement, file, blob))
        return self._made[case]

    def _without(self, placement: Placement, file: PlanFile, blob: Path) -> tuple[str, Path]:
        """The file without what is flagged in it."""
        flagged = placement.without.get(file.name, ())
        if not flagged:
            return file.sha256, blob
        path = blob.with_name(f"{blob.name}.without-{build_exclusion_tag(flagged)}")
        try:
            told = self.asking.without(placement, file, blob, path)
        except (SafePickleError, ImportError) as error:
            raise NotReplayableError(f"{file.name} can't be replayed without its flagged rows: {error}") from error
        check_loadable_file(path, file.name, self.asking)
        self._tell(told)
        return hash_file(path), path

    def _mend(self, placement: Placement, file: PlanFile, sha256: str, blob: Path) -> tuple[str, Path]:
        if not match_file_name(self.asking.mends, file.name):
            return sha256, blob
        drop = dropped_from(blob, file.name, moved=placement.moved)
        return self._repaired(placement, file, blob, drop) if drop else (sha256, blob)

    def _repaired(self, placement: Placement, file: PlanFile, blob: Path, drop: tuple[str, ...]) -> tuple[str, Path]:
        path = blob.with_name(f"{blob.name}.without-{'-'.join(drop)}")
        try:
            difference = rewrite.drop_columns(blob, path, drop)
        except SafePickleError as error:
            raise UsageError(f"{file.name} of {placement.entry} can't be mended: {error}") from error
        check_loadable_file(path, file.name, self.asking)
        dropped = ", ".join(difference.dropped)
        self._tell(
            f"{file.name} of {placement.entry} is replayed without {dropped}: {self.asking.trainer} would end on them. "
            f"Its {difference.rows} rows and all other fields are the pinned ones."
        )
        return hash_file(path), path

    def _tell(self, sentence: str) -> None:
        self.repaired.append(sentence)
        self.say(sentence)


def build_exclusion_tag(flagged: Sequence[int]) -> str:
    """What tells a file without these records from one without others."""
    return hashlib.sha256(repr(sorted(flagged)).encode()).hexdigest()[:12]


def check_loadable_file(path: Path, name: str, asking: RunRequirements) -> None:
    """Raises UsageError unless the trainer may be given this file: plain JSON, or loadable and what its name says."""
    known = match_file_name(asking.formats, name)
    allowed = asking.formats[known] if known else ()
    if not known or "json" in allowed:
        return _check_json_file(path, name, None if known else MAX_JSON_FILE_BYTES)
    verdict = check_file_safety(path)
    if not verdict.loadable:
        raise UsageError(f"{name} is not safe to load: {' '.join(verdict.reasons)}")
    if verdict.format not in allowed:
        raise UsageError(f"{name} is no {known}: it is {verdict.format}.")


def _check_json_file(path: Path, name: str, most: int | None) -> None:
    try:
        if not name.endswith(".json") or (most and path.stat().st_size > most):
            raise ValueError
        json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        what = f"JSON of at most {most >> 20} MiB" if most else "JSON"
        raise UsageError(f"{name} is no {what}; a trainer is not given it.") from None


def dropped_from(blob: Path, name: str, *, moved: bool) -> tuple[str, ...]:
    """The columns that a batch has to lose before the trainer can load it; none for most. Raises UsageError."""
    try:
        from rolloutdeck.safe_pickle.batches import open_batch
        from rolloutdeck.safe_pickle.rewrite import columns_to_drop
    except ImportError as error:
        raise UsageError(f"Looking into {name} needs numpy: run this where the trainer is installed.") from error
    try:
        with open_batch(blob) as batch:
            return columns_to_drop(batch, moved)
    except SafePickleError as error:
        raise UsageError(f"{name} can't be read: {error}") from error
