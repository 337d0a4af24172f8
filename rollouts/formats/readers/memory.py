"""Refuses JSON whose values would need too much memory, before it is parsed.

A text of `[],` needs 40 times its size as Python lists; numbers, messages and log-probs need at most 16 times.
"""

from collections import Counter

import numpy as np
from django.conf import settings

MIN_CHECKED_BYTES = 4 << 20  # a smaller text needs at most 160 MB
MAX_MEMORY_RATIO = 16  # bytes of memory per byte of JSON
WORK_RATIO = 8  # bytes of memory per byte of JSON for copies, columns and Parquet
WORKER_SHARE = 0.75  # of the worker's memory for one record
LIST_BYTES, OBJECT_BYTES, STRING_BYTES, NUMBER_BYTES, POINTER_BYTES = 80, 208, 64, 28, 8  # CPython 3.11, 64 bits
CHUNK_BYTES = 1 << 20
QUOTE = 0x22
SIGNS = "[]{},:"


def check_json_memory(text: bytes) -> None:
    """Raises ValueError with the reason if the parsed values would need too much memory."""
    if len(text) < MIN_CHECKED_BYTES:
        return
    needed = estimate_json_memory(text)
    if needed > MAX_MEMORY_RATIO * len(text):
        raise ValueError(
            f"{len(text) >> 20} MB of JSON with so many small values that they need about {needed >> 20} MB of memory; "
            f"at most {MAX_MEMORY_RATIO} times the size is accepted"
        )
    needed += WORK_RATIO * len(text)
    limit = int(WORKER_SHARE * settings.MAX_WORKER_MEMORY_MB * 1_000_000)
    if needed > limit:
        raise ValueError(
            f"{len(text) >> 20} MB of JSON that need about {needed >> 20} MB of memory; a worker may use "
            f"{limit >> 20} MB for one record (ROLLOUTDECK_MAX_WORKER_MEMORY_MB)"
        )


def estimate_json_memory(text: bytes) -> int:
    """Returns about how many bytes the Python values of a JSON text need."""
    counts: Counter[str] = Counter()
    is_inside = 0  # a string
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    for start in range(0, len(unescaped), CHUNK_BYTES):
        chunk = np.frombuffer(unescaped, np.uint8, min(CHUNK_BYTES, len(unescaped) - start), start)
        quotes = chunk == QUOTE
        inside = np.bitwise_xor(np.cumsum(quotes, dtype=np.uint8) & 1, is_inside).view(bool) | quotes
        plain = chunk[~inside].tobytes()
        quote_count = int(np.count_nonzero(quotes))
        is_inside = (is_inside + quote_count) & 1
        counts.update(quotes=quote_count, plain=len(plain), **{sign: plain.count(sign.encode()) for sign in SIGNS})
    lists, objects = counts["["], counts["{"]
    values = lists + objects + counts[","]
    characters = counts["plain"] - sum(counts[sign] for sign in SIGNS)
    strings = counts["quotes"] // 2
    numbers = min(values, max(0, characters) // 3)  # a number of one or two digits needs no memory of its own
    containers = LIST_BYTES * lists + OBJECT_BYTES * objects
    texts = STRING_BYTES * strings + len(text) - counts["plain"]
    return containers + texts + POINTER_BYTES * values + NUMBER_BYTES * numbers
