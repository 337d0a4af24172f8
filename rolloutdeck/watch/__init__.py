"""Follows the folders that a trainer writes: scan, wait until files are complete, upload.

Depends on: `rolloutdeck.client`, `rolloutdeck.trainer_api`, `rolloutdeck.lib` and `rolloutdeck.protocol`.
Invariant: the bytes are sent as they are. A file of another user is never followed through a symlink.
"""

from rolloutdeck.watch.artifact_collector import ArtifactCollector, ArtifactOptions, upload_requested_part
from rolloutdeck.watch.compression import remove_compression_ending
from rolloutdeck.watch.file_endings import COMPLETENESS_CHECKS, describe_truncation
from rolloutdeck.watch.file_parts import FilePart, read_finished_file
from rolloutdeck.watch.follower import ChangedFile, Follower, WatchedFolder
from rolloutdeck.watch.prune import SourcePruner
from rolloutdeck.watch.recover import recover_state
from rolloutdeck.watch.scan import (
    TABLE_SUFFIXES,
    find_base_folder,
    find_files,
    get_absolute_path,
    read_file_head,
    scan_folders,
)
from rolloutdeck.watch.state import WatchState
from rolloutdeck.watch.tree_pattern import TreePattern, TreeRun
from rolloutdeck.watch.types import DumpFile, ScanOptions, ScanResult
from rolloutdeck.watch.upload import (
    ActionRequiredError,
    RetryLaterError,
    UploadRejectedError,
    UploadTarget,
    parse_response,
)

__all__ = [
    "ActionRequiredError", "ArtifactCollector", "ArtifactOptions", "COMPLETENESS_CHECKS", "ChangedFile", "DumpFile",
    "FilePart", "Follower", "RetryLaterError", "ScanOptions", "ScanResult", "SourcePruner", "TABLE_SUFFIXES",
    "TreePattern", "TreeRun", "UploadRejectedError", "UploadTarget", "WatchState", "WatchedFolder",
    "describe_truncation", "find_base_folder", "find_files", "get_absolute_path", "parse_response", "read_file_head",
    "read_finished_file", "recover_state", "remove_compression_ending", "scan_folders", "upload_requested_part",
]  # fmt: skip
