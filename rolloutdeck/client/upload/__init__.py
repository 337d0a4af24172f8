"""Uploads the spool and the files of artifacts to the server, in a trainer and by `rolloutdeck sync`.

Depends on: the spool, its lease and `artifact.py` in `rolloutdeck.client`; `rolloutdeck.lib`, `rolloutdeck.protocol`.
Invariant: a spool file is deleted only after the server's receipt. A file that the server rejects
permanently moves to the folder `rejected`.
"""

from rolloutdeck.client.upload.artifact_uploads import (
    ArtifactUploadQueue,
    fetch_requested_files,
    is_permanent_rejection,
    register_artifact,
)
from rolloutdeck.client.upload.delivery import classify_response
from rolloutdeck.client.upload.parts import build_part_headers, is_receipt, parse_received_bytes, read_next_part
from rolloutdeck.client.upload.sender import Heartbeat, Sender
from rolloutdeck.client.upload.sync import SyncResult, sync_spools

__all__ = [
    "ArtifactUploadQueue", "Heartbeat", "Sender", "SyncResult", "build_part_headers", "classify_response",
    "fetch_requested_files", "is_permanent_rejection", "is_receipt", "parse_received_bytes", "read_next_part",
    "register_artifact", "sync_spools",
]  # fmt: skip
