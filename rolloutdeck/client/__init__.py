"""The client in a training process: `init`, `Run`, the spool on disk and its upload.

Depends on: `rolloutdeck.lib`, `rolloutdeck.protocol`, `rolloutdeck.replay` and `rolloutdeck.trainer_api`.
Invariant: a call never raises into the trainer and never waits for the network. A file leaves the spool only
after the server's receipt.
"""

from rolloutdeck.client.artifact import (
    FileChangedError,
    FileStamp,
    LocalArtifact,
    build_artifact,
    build_import_command,
    build_tokenizer_artifact,
    read_file_stamp,
)
from rolloutdeck.client.run import Run
from rolloutdeck.client.serialize import convert_for_json
from rolloutdeck.client.start import init
from rolloutdeck.client.upload import (
    ArtifactUploadQueue,
    SyncResult,
    build_part_headers,
    classify_response,
    fetch_requested_files,
    is_permanent_rejection,
    is_receipt,
    parse_received_bytes,
    read_next_part,
    register_artifact,
    sync_spools,
)

__all__ = [
    "ArtifactUploadQueue", "FileChangedError", "FileStamp", "LocalArtifact", "Run", "SyncResult",
    "build_artifact", "build_import_command", "build_part_headers", "build_tokenizer_artifact",
    "classify_response", "convert_for_json", "fetch_requested_files", "init", "is_permanent_rejection",
    "is_receipt", "parse_received_bytes", "read_file_stamp", "read_next_part", "register_artifact", "sync_spools",
]  # fmt: skip
