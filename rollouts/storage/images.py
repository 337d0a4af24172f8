"""Stores the images of samples: one file per image and owner below images/, named by the sha256 of its bytes.

An owner is a run (`run-7`), whose images are derived from its dumps and are removed with it, or a project
(`project-3`), whose findings show copies. So equal images of all steps of a run are stored once, and no file is shared
between owners.
"""

from hashlib import sha256

from rollouts.errors import StorageUnavailableError
from rollouts.storage import access
from rollouts.storage.keys import get_image_key, get_image_prefix


def store_image(owner: str, data: bytes, known: set[str] | None = None) -> str:
    """Stores an image unless it is stored already. The storage is not asked for those whose hashes are `known`. Returns
    its sha256. Raises StorageUnavailableError."""
    digest = sha256(data).hexdigest()
    if known is not None and digest in known:
        return digest
    key = get_image_key(owner, digest)
    try:
        if access.find_file(key) is None:
            with access.write_file(key) as temporary:
                temporary.write_bytes(data)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {key}: {error.strerror}.") from error
    if known is not None:
        known.add(digest)
    return digest


def copy_image(source: str, target: str, digest: str) -> bool:
    """Copies an image to another owner. Returns whether the other owner has it now."""
    key = get_image_key(target, digest)
    try:
        if access.find_file(key) is None:
            access.copy_file(get_image_key(source, digest), key)
    except OSError:
        return False
    return True


def read_image(owner: str, digest: str) -> bytes | None:
    """Returns the bytes of an image; None if it is not stored. Raises StorageUnavailableError."""
    try:
        return access.fetch_file(get_image_key(owner, digest)).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnavailableError(f"The image {digest[:12]} cannot be read: {error.strerror}.") from error


def measure_images(owner: str) -> int:
    """Returns the bytes of the owner's images. Raises OSError."""
    return sum(file.bytes for file in access.list_files(get_image_prefix(owner)))


def delete_images(owner: str) -> None:
    """Raises OSError if the bucket does not answer."""
    access.delete_files(get_image_prefix(owner))
