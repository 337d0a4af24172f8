"""Names that outlive a re-index, a restore and a move to another database: of a sample, and of a prompt."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", dtype=np.uint8)
ID_CHARS = 52  # of a sha256 in base32 without padding
KEY_CHARS = 26

# What chat templates put around turns; the text between them is what a decode without special tokens leaves.
TURN_MARK = re.compile(
    r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>|<\|begin_of_text\|>|<\|eot_id\|>|<\|start_header_id\|>|<\|end_header_id\|>"
)
ROLES = ("system", "user", "assistant", "tool")
# System texts that chat templates add by themselves when the caller gives none.
DEFAULT_SYSTEMS = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
)


def piece(text: str) -> bytes:
    """UTF-8 (half surrogates too) preceded by its length in bytes, so that no two lists of pieces read alike."""
    encoded = text.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(encoded), encoded)


FIRST = piece("0")


def compute_sample_id(
    run_uid: str,
    attempt_key: str,
    split: str,
    step_kind: str,
    step: int,
    producer: str,
    prompt: str,
    response: str,
    k: int,
) -> str:
    """52 characters of lower-case base32: sha256 over the parts, each preceded by its length in bytes.

    `k` counts from 0 among the samples of one dump with this very prompt and response.
    """
    parts = (run_uid, attempt_key, split, step_kind, str(step), producer, prompt, response, str(k))
    digest = hashlib.sha256(b"".join(map(piece, parts))).digest()
    return base64.b32encode(digest)[:ID_CHARS].decode().lower()


class SampleIdGenerator:
    """Gives the samples of one dump their ids, in the dump's order; the same names as `sample_id`, much faster."""

    def __init__(self, run_uid: str, attempt_key: str, split: str, step_kind: str, step: int, producer: str) -> None:
        parts = (run_uid, attempt_key, split, step_kind, str(step), producer)
        self.start = hashlib.sha256(b"".join(map(piece, parts)))
        self.seen: dict[bytes, int] = {}
        self.prompt = ""
        self.after_prompt = self.start.copy()
        self.after_prompt.update(piece(""))

    def names(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        """Ids of (prompt, response) pairs."""
        return base32([self.digest(prompt, response) for prompt, response in texts])

    def digest(self, prompt: str, response: str) -> bytes:
        if prompt != self.prompt:
            self.prompt, self.after_prompt = prompt, self.start.copy()
            self.after_prompt.update(piece(prompt))
        text = self.after_prompt.copy()
        text.update(piece(response))
        again = text.copy()
        text.update(FIRST)
        first = text.digest()
        k = self.seen.get(first, 0)
        self.seen[first] = k + 1
        if not k:
            return first
        again.update(piece(str(k)))
        return again.digest()


def base32(digests: Sequence[bytes]) -> list[str]:
    """Lower-case base32 of many sha256 digests at once, without padding."""
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


def compute_prompt_key(prompt: str) -> str:
    """26 characters that two prompts share when they say the same: see `plain_prompt`."""
    digest = hashlib.sha256(plain_prompt(prompt).encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest)[:KEY_CHARS].decode().lower()


def plain_prompt(prompt: str) -> str:
    """The prompt as prompts are compared: NFC, white space collapsed, chat turns as `role` line and text.

    The marks of chat templates, the empty assistant turn at the end and a template's own system text are dropped;
    a single user turn is the same as its bare text.
    """
    text = TURN_MARK.sub("\n", prompt) if "<|" in prompt else prompt
    if text.lstrip().startswith(ROLES) or text.rstrip().endswith("assistant"):
        text = "\n".join(turns([line for line in text.split("\n") if line.strip()]))
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def turns(lines: list[str]) -> list[str]:
    """Lines of a chat, without what a template adds by itself; other lines as they are."""
    roles = [line.strip() if line.strip() in ROLES else "" for line in lines]
    if roles and roles[-1] == "assistant":
        lines, roles = lines[:-1], roles[:-1]
    if len(lines) > 2 and roles[0] == "system" and roles[2] and lines[1].strip() in DEFAULT_SYSTEMS:
        lines, roles = lines[2:], roles[2:]
    if roles and roles[0] == "user" and not any(roles[1:]):
        lines = lines[1:]
    return lines
