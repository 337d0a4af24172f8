"""Stored bytes: raw dumps by hash, Parquet bodies, artifact blobs, decompression.

Depends on: the models and the data folder.
Invariant: a file is written under a temporary name and renamed, so a reader sees complete files only.
A file belongs to one project and is never shared with another.
"""

from rollouts.storage.blobs import (
    count_part_bytes,
    delete_unused_blobs,
    get_blob_part_path,
    get_blob_path,
    open_blob,
    store_blob,
)
from rollouts.storage.decompression import open_decompressed
from rollouts.storage.files import (
    count_free_bytes,
    create_incoming_path,
    delete_on_failure,
    ensure_parts_folder,
    get_body_file_path,
    get_data_root,
    get_raw_dump_path,
    open_raw_dump,
    retire_body_file,
    store_raw_dump,
    write_atomically,
)

__all__ = [
    "count_free_bytes", "count_part_bytes", "create_incoming_path", "delete_on_failure", "delete_unused_blobs",
    "ensure_parts_folder", "get_blob_part_path", "get_blob_path", "get_body_file_path", "get_data_root",
    "get_raw_dump_path", "open_blob", "open_decompressed", "open_raw_dump", "retire_body_file", "store_blob",
    "store_raw_dump", "write_atomically",
]  # fmt: skip
