"""A lock of one stored file of a bucket, between the row that names it and its removal.

On a disk the two are a moment apart. A bucket may take seconds, in which an upload of the same bytes could write its
row between the look at the rows and the removal.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from django.conf import settings
from django.db import connection, transaction


@contextmanager
def lock_key(key: str) -> Iterator[bool]:
    """Yields in a transaction that no other one with the same key overlaps. Yields False on a disk, without one."""
    if not settings.STORAGE_URL:
        yield False
        return
    with transaction.atomic():  # SQLite has one writer at a time
        if connection.vendor == "postgresql":
            number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), signed=True)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
        yield True
