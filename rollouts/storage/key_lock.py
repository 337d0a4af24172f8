"""A lock of one stored file, between the row that names it and its removal.

Otherwise an upload of the same bytes could write its row between the look at the rows and the removal. A bucket takes
seconds for it. On a disk the two are a moment apart, but a clock that jumps ahead makes a file of this moment look old.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from django.db import connection, transaction


@contextmanager
def lock_key(key: str) -> Iterator[None]:
    """The block is a transaction that no other one with the same key overlaps."""
    with transaction.atomic():  # SQLite has one writer at a time
        if connection.vendor == "postgresql":
            number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), signed=True)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
        yield
