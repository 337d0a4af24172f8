"""Downloads the files of a plan, checks and repairs them, and moves them to where the trainer's own code loads them.

No file is moved into place before all files of the plan are downloaded, match their hash and are safe to load.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck import lib
from rolloutdeck.errors import NotReplayableError, UnsafeFileError, UsageError
from rolloutdeck.replay.folder import ReplayFolder, StepFiles
from rolloutdeck.replay.placement import Placement, RunRequirements, describe_smaller_batch, match_file_name
from rolloutdeck.replay.plan import PlanEntry, PlanFile
from rolloutdeck.safe_pickle import SafePickleError, check_file_safety, rewrite

MAX_JSON_FILE_BYTES = 1 << 20  # bytes of a marker file
MIN_FREE_BYTES = 64 << 20  # disk space that must remain free


@dataclass
class PlanPull:
    """One `pull`: downloads from `server` into `folder` for a run with these `requirements`.

    on_message: receives a message for each changed file; `repaired` collects them.
    on_skipped: receives each entry whose files can't be repaired, or written without its selected rows, and the reason.
    progress: receives the number of downloaded bytes; `bytes` is their sum.
    download: takes the arguments of `lib.download_file`, which waits for minutes if the server does not respond.
    """

    server: lib.ServerClient
    requirements: RunRequirements
    folder: ReplayFolder
    on_message: Callable[[str], None]
    on_skipped: Callable[[PlanEntry, NotReplayableError], None]
    progress: lib.DownloadProgress = lambda more: None
    download: Callable[..., None] = field(default_factory=lambda: lib.download_file)
    repaired: list[str] = field(default_factory=list)
    bytes: int = 0
    _prepared: dict[tuple[str, bool, tuple[int, ...]], tuple[str, Path]] = field(default_factory=dict)

    def run(self, placements: Sequence[Placement], manifest: Mapping[str, Any]) -> list[Placement]:
        """Places the files and returns the placements that are complete: all but those of skipped entries. If none is,
        the folder stays as it was.

        Raises UsageError; downloaded files remain in the staging folder, and the next call continues with them.
        Raises what `on_skipped` raises.
        """
        coming = [path for placement in placements for path in placement.paths]
        self.folder.claim({placement.folder for placement in placements}, coming, shared=self.requirements.shared)
        requested = {file.sha256: file for placement in placements for file in placement.files}
        self._check_free_space(requested.values())
        blobs = {sha256: self._download_blob(file) for sha256, file in requested.items()}
        prepared = self._prepare_placements(placements, blobs)
        if not prepared:
            self.folder.restore()
            return []
        write = self.folder.write_shared_files if self.requirements.shared else self.folder.write_step_folder
        for placement, parts in prepared:
            write(placement.folder, parts)
        pins = {str(placement.step): placement.entry.pin for placement, _ in prepared}
        self.folder.finish({**manifest, "pins": pins, "repaired": self.repaired})
        return [placement for placement, _ in prepared]

    def _prepare_placements(
        self, placements: Sequence[Placement], blobs: Mapping[str, Path]
    ) -> list[tuple[Placement, StepFiles]]:
        """Returns the files of each placement. If one file of an entry fails, all placements of it are skipped."""
        prepared: list[tuple[Placement, StepFiles]] = []
        skipped: set[int] = set()
        for placement in placements:
            if placement.entry.target_step in skipped:
                continue
            try:
                parts = [
                    (placement.get_file_name(file), *self._prepare_file(placement, file, blobs[file.sha256]))
                    for file in placement.files
                ]
                prepared.append((placement, parts))
            except NotReplayableError as error:
                self.on_skipped(placement.entry, error)
                skipped.add(placement.entry.target_step)
        return [(placement, parts) for placement, parts in prepared if placement.entry.target_step not in skipped]

    def _check_free_space(self, files: Any) -> None:
        needed = sum(file.size for file in files if not self.folder.find_verified_file(file.sha256))
        free = shutil.disk_usage(self.folder.path).free
        if needed + MIN_FREE_BYTES > free:
            available = f"{self.folder.path} has {free >> 20:,} MiB free"
            wanted = f"the plan's files need {-(-needed >> 20):,} MiB and {MIN_FREE_BYTES >> 20} MiB have to stay free"
            raise UsageError(f"{available}, but {wanted}. Free space or choose another folder.")

    def _download_blob(self, file: PlanFile) -> Path:
        """Returns the path of the file in the staging folder, with the right hash and safe to load."""
        staged = self.folder.find_verified_file(file.sha256)
        path = staged or self.folder.staging / file.sha256
        if staged is None:
            try:
                self.download(self.server, file.address, path, file.sha256, file.size, self.progress)
            except (lib.DownloadError, lib.ServerUnreachableError) as error:
                raise UsageError(f"Can't download {file.name} ({file.sha256[:12]}): {error}.") from error
            self.bytes += file.size
        check_loadable_file(path, file.name, self.requirements)
        return path

    def _prepare_file(self, placement: Placement, file: PlanFile, blob: Path) -> tuple[str, Path]:
        """Returns hash and path of the trainer's file: unchanged, unless it has selected rows or needs a repair."""
        key = file.sha256, placement.moved, placement.changed_rows.get(file.name, ())
        if key not in self._prepared:
            self._prepared[key] = self._repair_if_needed(placement, file, *self._apply_action(placement, file, blob))
        return self._prepared[key]

    def _apply_action(self, placement: Placement, file: PlanFile, blob: Path) -> tuple[str, Path]:
        selected, word = placement.changed_rows.get(file.name, ()), placement.entry.selected_word
        if not selected:
            return file.sha256, blob
        tag = hashlib.sha256(repr((sorted(selected), placement.action)).encode()).hexdigest()[:12]
        path = blob.with_name(f"{blob.name}.without-{tag}")
        try:
            message = self.requirements.write_with_action(placement, file, blob, path)
        except (SafePickleError, ImportError) as error:
            raise NotReplayableError(f"{file.name} can't be replayed without its {word} rows: {error}") from error
        check_loadable_file(path, file.name, self.requirements)
        self._report(message)
        return lib.hash_file(path), path

    def _repair_if_needed(self, placement: Placement, file: PlanFile, sha256: str, blob: Path) -> tuple[str, Path]:
        if not match_file_name(self.requirements.repairable_files, file.name):
            return sha256, blob
        columns = find_columns_to_drop(blob, file.name, moved=placement.moved)
        if not columns:
            return sha256, blob
        path = blob.with_name(f"{blob.name}.without-{'-'.join(columns)}")
        try:
            repair = rewrite.drop_columns(blob, path, columns)
        except SafePickleError as error:
            raise NotReplayableError(f"{file.name} can't be repaired: {error}") from error
        check_loadable_file(path, file.name, self.requirements)
        dropped = ", ".join(repair.dropped)
        self._report(
            f"{file.name} of {placement.entry} is replayed without {dropped}: {self.requirements.trainer} would fail "
            f"on them. Its {repair.rows} rows and all other fields are unchanged."
        )
        return lib.hash_file(path), path

    def _report(self, message: str) -> None:
        self.repaired.append(message)
        self.on_message(message)


def check_loadable_file(path: Path, name: str, requirements: RunRequirements) -> None:
    """Raises UnsafeFileError unless the trainer may load this file: plain JSON, or a safe file of an allowed format."""
    pattern = match_file_name(requirements.formats, name)
    allowed = requirements.formats[pattern] if pattern else ()
    if not pattern or "json" in allowed:
        return _check_json_file(path, name, None if pattern else MAX_JSON_FILE_BYTES)
    report = check_file_safety(path)
    if not report.loadable:
        raise UnsafeFileError(f"{name} is not safe to load: {' '.join(report.reasons)}")
    if report.format not in allowed:
        raise UnsafeFileError(f"{name} is not a {pattern} file: its format is {report.format}.")


def _check_json_file(path: Path, name: str, max_bytes: int | None) -> None:
    try:
        if not name.endswith(".json") or (max_bytes and path.stat().st_size > max_bytes):
            raise ValueError
        json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        expected = f"JSON of at most {max_bytes >> 20} MiB" if max_bytes else "JSON"
        raise UnsafeFileError(f"{name} is not {expected}, so it is not given to a trainer.") from None


def find_columns_to_drop(blob: Path, name: str, *, moved: bool) -> tuple[str, ...]:
    """Returns the columns that must be dropped before the trainer can load the batch. Raises UsageError."""
    from rolloutdeck.safe_pickle.batches import open_batch

    try:
        with open_batch(blob) as batch:
            return rewrite.columns_to_drop(batch, moved)
    except SafePickleError as error:
        raise UsageError(f"{name} can't be read: {error}") from error


def write_without_prompts(
    requirements: RunRequirements, placement: Placement, file: PlanFile, source: Path, target: Path
) -> str:
    """Writes a batch without the prompts that have a selected row. Returns a message about what was excluded, and why
    it is more than the selected samples.

    Raises SafePickleError, ImportError (numpy), and NotReplayableError if the trainer needs another number of rows.
    """
    selected = placement.changed_rows[file.name]
    word, hint = placement.entry.selected_word, "Withdraw the flags"
    if placement.entry.guidance_version is not None:
        hint = "Mask the samples instead"
    excluded = rewrite.exclude_prompts(source, target, selected, placement.answers_per_prompt)
    rows, effect = requirements.facts.get("rows"), ""
    if requirements.repeats_prompts:
        smaller_batch = describe_smaller_batch(requirements)
        effect = f" {smaller_batch[0].upper()}{smaller_batch[1:]}."
    elif isinstance(rows, int) and excluded.rows_left != rows:
        raise NotReplayableError(
            f"{file.name} has {excluded.rows_left} rows without its {word} prompts, and {requirements.trainer} "
            f"needs {rows}. {hint}, or configure that many prompts per step"
        )
    prompts, all_rows = excluded.prompts + excluded.prompts_left, excluded.rows + excluded.rows_left
    return (
        f"{file.name} of {placement.entry} is replayed without {excluded.prompts} of its {prompts} prompts "
        f"({excluded.rows} of {all_rows} rows): these prompts have {len(selected)} {word} "
        f"{'sample' if len(selected) == 1 else 'samples'}. All answers to a prompt are excluded, because advantages "
        f"compare them. Rolloutdeck wrote this file; its other rows are unchanged.{effect}"
    )
