"""Stable sample ids and prompt keys. They survive a re-index, a restore and a move to another database."""

import base64
import hashlib
from array import array
from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from rolloutdeck.protocol import EARLIER_EQUAL_KEY
from rollouts.samples.record import Record
from rollouts.samples.values import to_integer

ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", dtype=np.uint8)
LETTER_VALUES = np.zeros(128, dtype=np.uint64)
LETTER_VALUES[ALPHABET] = np.arange(32)
ID_CHARS = 52  # of a sha256 in base32 without padding
KEY_CHARS = 26


def encode_part(text: str) -> bytes:
    """Returns UTF-8 (lone surrogates allowed) after its length in bytes, which keeps lists of parts distinct."""
    encoded = text.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(encoded), encoded)


FIRST_OCCURRENCE = encode_part("0")


class SampleIdGenerator:
    """Generates the ids of the samples of one dump, or of a chunk of a file, in order.

    An id is 52 characters of lower-case base32: sha256 over the parts of the constructor, prompt, response and k, each
    with its length in bytes in front. See `get_identity_texts` for prompt and response. k counts from 0 among the
    samples of the dump with the same prompt and response, or from the number that `take_earlier_count` returns;
    numbers whose id is in `skip_ids` are left out.
    """

    def __init__(self, run_uid: str, attempt_key: str, split: str, step_kind: str, step: int, producer: str) -> None:
        parts = (run_uid, attempt_key, split, step_kind, str(step), producer)
        self.prefix_hash = hashlib.sha256(b"".join(map(encode_part, parts)))
        self.counts: dict[bytes, int] = {}
        self.skipped: frozenset[bytes] = frozenset()
        self.prompt = ""
        self.prompt_hash = self.prefix_hash.copy()
        self.prompt_hash.update(encode_part(""))

    def generate_ids(self, texts: Sequence[tuple[str, str]], earlier: Sequence[int] | None = None) -> list[str]:
        """Returns the ids of (prompt, response) pairs. `earlier`: how many other dumps have, for each."""
        pairs = zip(texts, repeat(0) if earlier is None else earlier, strict=False)
        return encode_base32([self.compute_digest(prompt, response, count) for (prompt, response), count in pairs])

    def compute_digest(self, prompt: str, response: str, earlier: int) -> bytes:
        if prompt != self.prompt:
            self.prompt, self.prompt_hash = prompt, self.prefix_hash.copy()
            self.prompt_hash.update(encode_part(prompt))
        text = self.prompt_hash.copy()
        text.update(encode_part(response))
        repeated = text.copy()
        text.update(FIRST_OCCURRENCE)
        first = text.digest()
        k = max(self.counts.get(first, 0), earlier)
        digest = compute_repeated_digest(repeated, k) if k else first
        while digest in self.skipped:
            k += 1
            digest = compute_repeated_digest(repeated, k)
        self.counts[first] = k + 1
        return digest

    def skip_ids(self, ids: Collection[str]) -> None:
        """Other samples have these ids. Call it before the first id is generated."""
        self.skipped = frozenset(decode_base32(ids))


def compute_repeated_digest(text: Any, k: int) -> bytes:
    """Returns the digest of the k-th sample with a text; `text` is its hash without k."""
    repeated = text.copy()
    repeated.update(encode_part(str(k)))
    return bytes(repeated.digest())


def get_identity_texts(record: Record) -> tuple[str, str]:
    """Returns the prompt and the response that identify a record in its step.

    A record without text is identified by its token ids, and by its trajectory and turn: the files of a step, one for
    each rank, hold different samples.
    """
    if not record.textless:
        return record.prompt, record.response
    prompt = record.prompt or hash_tokens(record.prompt_ids)
    response = hash_tokens(record.response_ids)
    if record.trajectory:
        response += f" {record.turn} {record.trajectory}"
    return prompt, response


def take_earlier_count(record: Record) -> int:
    """Returns how many equal samples of its step other calls of `Run.log_samples` have, as the row says. Removes the
    value: it says nothing about the sample."""
    value = record.extras.pop(EARLIER_EQUAL_KEY, None)
    count = None if value is None else to_integer(value)
    return count if count is not None and 0 < count < 2**31 else 0


def hash_tokens(ids: Sequence[int] | None) -> str:
    """Returns a text that no prompt is likely to be; "" without tokens."""
    return f"\0tokens:{hashlib.sha256(array('q', ids).tobytes()).hexdigest()}" if ids is not None else ""


def encode_base32(digests: Sequence[bytes]) -> list[str]:
    """Returns lower-case base32 of many sha256 digests at once, without padding.

    8 letters encode 5 bytes, so the 32 bytes are filled up to 35, which are 56 letters; the first 52 encode the digest.
    """
    if not digests:
        return []
    plain = np.zeros((len(digests), 35), dtype=np.uint8)
    plain[:, :32] = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)
    fives = plain.reshape(-1, 7, 5).astype(np.uint64)
    words = (fives << np.arange(32, -1, -8, dtype=np.uint64)).sum(axis=2, dtype=np.uint64)
    shifts = np.arange(35, -1, -5, dtype=np.uint64)
    letters = ALPHABET[(words[:, :, None] >> shifts) & np.uint64(31)].reshape(-1, 56)[:, :ID_CHARS]
    text = letters.tobytes().decode("ascii")
    return [text[at : at + ID_CHARS] for at in range(0, len(text), ID_CHARS)]


def decode_base32(ids: Collection[str]) -> list[bytes]:
    """Returns the digests of ids: the inverse of `encode_base32`."""
    if not ids:
        return []
    letters = np.frombuffer("".join(ids).encode("ascii"), dtype=np.uint8).reshape(-1, ID_CHARS)
    values = np.zeros((len(ids), 56), dtype=np.uint64)
    values[:, :ID_CHARS] = LETTER_VALUES[letters]
    words = (values.reshape(-1, 7, 8) << np.arange(35, -1, -5, dtype=np.uint64)).sum(axis=2, dtype=np.uint64)
    fives = (words[:, :, None] >> np.arange(32, -1, -8, dtype=np.uint64)) & 255
    plain = fives.astype(np.uint8).reshape(-1, 35)[:, :32].tobytes()
    return [plain[at : at + 32] for at in range(0, len(plain), 32)]


def compute_content_key(prompt_key: str, response: str) -> str:
    """Returns 26 characters that are equal on every server for samples with the same prompt and response. `prompt_key`
    is that of the prompt, `response` the one of `get_identity_texts`."""
    digest = hashlib.sha256(encode_part(prompt_key) + encode_part(response)).digest()
    return base64.b32encode(digest)[:KEY_CHARS].decode().lower()
