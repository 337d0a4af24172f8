"""Counts equal samples over the deliveries of a step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from rolloutdeck.protocol import EARLIER_EQUAL_KEY


class EqualSampleMarker:
    """Marks rows that are equal to rows of an earlier delivery. Without the mark, the server takes both for one sample
    that was sent twice."""

    MAX_STEPS = 16  # the newest steps whose rows are counted

    def __init__(self) -> None:
        self._counts: dict[Hashable, Counter[bytes]] = {}

    def mark_rows(self, rows: Sequence[dict[str, Any]], step: Hashable) -> None:
        counts = self._counts.pop(step, Counter[bytes]())
        digests = [hash_texts(row) for row in rows]
        for row, digest in zip(rows, digests, strict=True):
            if counts[digest]:
                row[EARLIER_EQUAL_KEY] = counts[digest]
        counts.update(digests)
        self._counts[step] = counts
        if len(self._counts) > self.MAX_STEPS:
            del self._counts[next(iter(self._counts))]


def hash_texts(row: dict[str, Any]) -> bytes:
    texts = repr((row.get("prompt"), row.get("response")))
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
