"""Near-duplicate texts, found by MinHash: Broder (1997), "On the resemblance and containment of documents"."""

from __future__ import annotations

from typing import Final

from rensa import RMinHash, RMinHashDeduplicator

MIN_SIMILARITY: Final = 0.85  # Jaccard similarity of the shingles
PERMUTATIONS: Final = 128
BANDS: Final = 16
SEED: Final = 1  # the same texts give the same result
SHINGLE_WORDS, SHINGLE_CHARS = 5, 8
MIN_WORDS: Final = 20  # with fewer, as in a language without spaces, shingles are made of characters
MAX_CHARS: Final = 50_000


class NearDuplicates:
    """Remembers about 1 kB for each text."""

    def __init__(self) -> None:
        self.known = RMinHashDeduplicator(MIN_SIMILARITY, PERMUTATIONS, True, BANDS, SEED)
        self.count = 0

    def add(self, text: str) -> bool:
        """Returns False if a text like it was added before; then it is not added."""
        hashes = RMinHash(PERMUTATIONS, SEED)
        hashes.update(split_shingles(text[:MAX_CHARS]))
        self.count += 1
        return bool(self.known.add(str(self.count), hashes))


def split_shingles(text: str) -> list[str]:
    words = text.split()
    if len(words) >= MIN_WORDS:
        return [" ".join(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1)]
    joined = " ".join(words)
    return [joined[at : at + SHINGLE_CHARS] for at in range(max(1, len(joined) - SHINGLE_CHARS + 1))]
