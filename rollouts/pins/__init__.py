"""Pins: request, store and check the artifacts of a step, and protect them from cleanup.

Depends on: indexing, ingest, live, projects, storage and the safe pickle verifier.
Invariant: a trainer never receives a file that is not loadable. The bytes of a pinned step are never removed.
"""

from rollouts.pins.artifact_check import check_artifact
from rollouts.pins.artifacts import (
    FEED_INDEX_PATTERN,
    PER_PROMPT_ROLE,
    count_received_bytes,
    explain_unavailability,
    find_file_size,
    list_missing_hashes,
    mark_upload_started,
    prefetch_blobs,
    refresh_artifact,
    store_artifact_file,
)
from rollouts.pins.file_requests import list_requested_files
from rollouts.pins.manifests import ArtifactManifest, merge_facts
from rollouts.pins.pins import (
    explain_nothing_to_pin,
    find_bound_pins,
    find_pin,
    find_replayable_artifacts,
    pin_step,
    register_artifact,
    remove_pin,
    update_pin_note,
)
from rollouts.pins.status import PinStatus, UploadHost, load_pin_status, load_pin_statuses

__all__ = [
    "ArtifactManifest", "FEED_INDEX_PATTERN", "PER_PROMPT_ROLE", "PinStatus", "UploadHost",
    "check_artifact", "count_received_bytes", "explain_nothing_to_pin", "explain_unavailability", "find_bound_pins",
    "find_file_size", "find_pin", "find_replayable_artifacts", "list_missing_hashes", "list_requested_files",
    "load_pin_status", "load_pin_statuses", "mark_upload_started", "merge_facts", "pin_step", "prefetch_blobs",
    "refresh_artifact", "register_artifact", "remove_pin", "store_artifact_file", "update_pin_note",
]  # fmt: skip
