"""Secrets in run configs are masked before they are stored; what was never written cannot leak."""

from __future__ import annotations

import math
import re
from typing import Any

from rollouts.errors import InvalidInputError

DEEPEST = 50
NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
MASK = "***"
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SECRET = {"secret", "secrets", "password", "passwords", "passwd", "credential", "credentials", "apikey", "apikeys"}
KEYS = {"api", "access", "private", "secret", "signing", "encryption"}  # `…_key` of these
# A model's tokens are no secrets: pad_token, eos_token, max_token_len, ...
VOCABULARY = {
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "end", "start", "begin", "image", "video", "audio",
    "special", "added", "think", "chat", "prompt", "response", "len", "length", "max", "min", "num", "per", "mean",
    "level", "id", "ids", "type", "loss", "count", "limit", "budget", "file", "split", "agg", "first", "last",
}  # fmt: skip
IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
KNOWN = re.compile(r"\b(?:hf_|rd_|sk-|gh[pousr]_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}")


def is_secret(key: str) -> bool:
    """Whether a config key names a secret: a token that is not a model's, a password, an API key, a credential."""
    words = [word.lower() for word in WORDS.findall(key)]
    if SECRET.intersection(words):
        return True
    if any(one in KEYS and two in ("key", "keys") for one, two in zip(words, words[1:], strict=False)):
        return True
    return bool({"token", "tokens"}.intersection(words)) and not VOCABULARY.intersection(words)


def redact_secrets(value: Any, secret: bool = False, depth: int = 0) -> Any:
    """`value` as it may be stored: secrets masked, and what no database takes (NaN, NUL, half surrogates) replaced.

    Masked are every string below a secret key, every password in a URL and every well-known kind of key.
    Raises BadInput when it is nested deeper than fifty levels.
    """
    if depth > DEEPEST:
        raise InvalidInputError(f"`config` is nested deeper than {DEEPEST} levels.", "config")
    if isinstance(value, dict):
        return {
            storable(str(key)): redact_secrets(inner, secret or is_secret(str(key)), depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_secrets(inner, secret, depth + 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and value:
        return MASK if secret else KNOWN.sub(MASK, IN_URL.sub(rf"\1:{MASK}@", storable(value)))
    return value


def storable(text: str) -> str:
    """`text` without NULs and half surrogates, each replaced by U+FFFD."""
    return NOT_STORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
