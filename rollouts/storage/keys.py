"""The keys of stored files: `{kind}/…`, equal on a disk and in a bucket. On a disk it is the path in the data folder.

An image owner is a run (`run-7`) or a project (`project-3`).
"""

from typing import Final

KINDS: Final = ("raw", "bodies", "blobs", "images")


def get_raw_dump_key(project_id: int, sha256: str) -> str:
    """Raw dumps are zstd-compressed and named by the sha256 of the plain bytes."""
    return f"raw/{project_id}/{sha256[:2]}/{sha256}.zst"


def get_body_key(name: str) -> str:
    """Parquet files of sample bodies. `name` is `Segment.path`."""
    return f"bodies/{name}"


def get_blob_key(project_id: int, sha256: str) -> str:
    return f"blobs/{project_id}/{sha256[:2]}/{sha256}"


def get_image_key(owner: str, digest: str) -> str:
    return f"{get_image_prefix(owner)}{digest[:2]}/{digest}"


def get_image_prefix(owner: str) -> str:
    return f"images/{owner}/"
