"""Stored bytes: raw dumps by hash, Parquet bodies, artifact blobs, images; in the data folder or in a bucket.

Depends on: the models and the data folder. Other folders name files by keys, never by paths of their own.
Invariant: a reader sees complete files only, and a row is written after its file is durable.
A file belongs to one project and is never shared with another. docs/decisions/object-storage.md says why.
"""

from rollouts.storage.access import (
    checkout_file,
    delete_file,
    delete_on_failure,
    delete_orphan,
    fetch_body_file,
    fetch_file,
    find_file,
    has_file,
    list_files,
    list_folders,
    put_file,
    remove_unused_copies,
    touch_file,
    write_file,
)
from rollouts.storage.blobs import (
    count_part_bytes,
    delete_unused_blobs,
    fetch_blob,
    get_blob_part_path,
    get_blob_upload_name,
    has_blob_file,
    open_blob,
    store_blob,
)
from rollouts.storage.bucket import BucketError
from rollouts.storage.decompression import open_decompressed
from rollouts.storage.deletion_lock import allow_deletion, forbid_deletion, skip_during_backup
from rollouts.storage.files import (
    RESERVED_BYTES,
    count_free_bytes,
    create_incoming_path,
    ensure_parts_folder,
    get_data_root,
    is_disk_full,
    is_file_lost,
)
from rollouts.storage.images import copy_image, delete_images, measure_images, read_image, store_image
from rollouts.storage.keys import (
    KINDS,
    get_blob_key,
    get_body_key,
    get_image_key,
    get_image_prefix,
    get_raw_dump_key,
)
from rollouts.storage.location import (
    StorageRefusedError,
    check_data_folder,
    check_storage,
    finish_move,
    load_location,
    open_store,
    own_data_folder,
    prepare_place,
    probe_bucket,
    read_owner,
    set_location,
    start_move,
    switch_move,
    use_folder,
)
from rollouts.storage.parts import (
    PART_LIFETIME_SECONDS,
    append_shared_parts,
    delete_shared_parts,
    delete_stale_shared_parts,
    has_shared_parts,
    list_shared_uploads,
    share_part,
)
from rollouts.storage.raw_dumps import (
    confirm_raw_dump,
    delete_raw_file,
    delete_unused_raw_files,
    is_raw_dump_stored,
    measure_raw_dumps,
    open_raw_dump,
    store_raw_dump,
)
from rollouts.storage.store import Store, StoredFile

__all__ = [
    "BucketError", "KINDS", "PART_LIFETIME_SECONDS", "RESERVED_BYTES", "StorageRefusedError", "Store", "StoredFile",
    "allow_deletion", "append_shared_parts", "check_data_folder", "check_storage", "checkout_file", "confirm_raw_dump",
    "copy_image", "count_free_bytes", "count_part_bytes", "create_incoming_path", "delete_file", "delete_images",
    "delete_on_failure", "delete_orphan", "delete_raw_file", "delete_shared_parts", "delete_stale_shared_parts",
    "delete_unused_blobs", "delete_unused_raw_files", "ensure_parts_folder", "fetch_blob", "fetch_body_file",
    "fetch_file", "find_file", "finish_move", "forbid_deletion", "get_blob_key", "get_blob_part_path",
    "get_blob_upload_name", "get_body_key", "get_data_root", "get_image_key", "get_image_prefix", "get_raw_dump_key",
    "has_blob_file", "has_file", "has_shared_parts", "is_disk_full", "is_file_lost", "is_raw_dump_stored", "list_files",
    "list_folders", "list_shared_uploads", "load_location", "measure_images", "measure_raw_dumps", "open_blob",
    "open_decompressed", "open_raw_dump", "open_store", "own_data_folder", "prepare_place", "probe_bucket", "put_file",
    "read_image", "read_owner", "remove_unused_copies", "set_location", "share_part", "skip_during_backup",
    "start_move", "store_blob", "store_image", "store_raw_dump", "switch_move", "touch_file", "use_folder",
    "write_file",
]  # fmt: skip
