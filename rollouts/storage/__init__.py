"""Stored bytes: raw dumps by hash, Parquet bodies, artifact blobs, images, decompression.

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
from rollouts.storage.deletion_lock import allow_deletion, forbid_deletion, skip_during_backup
from rollouts.storage.files import (
    RESERVED_BYTES,
    count_free_bytes,
    create_incoming_path,
    delete_on_failure,
    ensure_parts_folder,
    get_body_file_path,
    get_data_root,
    get_raw_dump_path,
    is_disk_full,
    open_raw_dump,
    retire_body_file,
    store_raw_dump,
    write_atomically,
)
from rollouts.storage.images import copy_image, delete_image, delete_images, get_image_folder, read_image, store_image
from rollouts.storage.raw_dumps import delete_unused_raw_files

__all__ = [
    "RESERVED_BYTES", "allow_deletion", "copy_image", "count_free_bytes", "count_part_bytes", "create_incoming_path",
    "delete_image", "delete_images", "delete_on_failure", "delete_unused_blobs", "delete_unused_raw_files",
    "ensure_parts_folder", "forbid_deletion",
    "get_blob_part_path", "get_blob_path", "get_body_file_path", "get_data_root", "get_image_folder",
    "get_raw_dump_path", "is_disk_full", "open_blob", "open_decompressed", "open_raw_dump", "read_image",
    "retire_body_file", "skip_during_backup", "store_blob", "store_image", "store_raw_dump", "write_atomically",
]  # fmt: skip
