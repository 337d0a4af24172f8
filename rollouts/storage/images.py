"""Stores the images of samples: one file per image and owner below images/, named by the sha256 of its bytes.

An owner is a run (`run-7`), whose images are derived from its dumps and are removed with it, or a project
(`project-3`), whose findings show copies. So equal images of all steps of a run are stored once, and no file is shared
between owners.
"""

import os
import shutil
from hashlib import sha256
from pathlib import Path

from rollouts.errors import StorageUnavailableError
from rollouts.storage import files


def get_image_path(owner: str, digest: str) -> Path:
    return get_image_folder(owner) / digest[:2] / digest


def get_image_folder(owner: str) -> Path:
    return files.get_data_root() / "images" / owner


def store_image(owner: str, data: bytes) -> str:
    """Stores an image unless it is stored already. Returns its sha256. Raises StorageUnavailableError."""
    digest = sha256(data).hexdigest()
    target = get_image_path(owner, digest)
    try:
        if not target.exists():
            with files.write_atomically(target) as temporary:
                temporary.write_bytes(data)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {target.parent}: {error.strerror}.") from error
    return digest


def copy_image(source: str, target: str, digest: str) -> bool:
    """Copies an image to another owner. Returns whether the other owner has it now."""
    path = get_image_path(target, digest)
    if path.exists():
        return True
    try:
        with files.write_atomically(path) as temporary:
            os.link(get_image_path(source, digest), temporary)
    except OSError:
        return False
    return True


def read_image(owner: str, digest: str) -> bytes | None:
    """Returns the bytes of an image; None if it is not stored. Raises StorageUnavailableError."""
    try:
        return get_image_path(owner, digest).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnavailableError(f"The image {digest[:12]} cannot be read: {error.strerror}.") from error


def delete_image(owner: str, digest: str) -> None:
    get_image_path(owner, digest).unlink(missing_ok=True)


def delete_images(owner: str) -> None:
    shutil.rmtree(get_image_folder(owner), ignore_errors=True)
