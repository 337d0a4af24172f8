"""Masks secrets in run configs before they are stored, so that the database cannot leak them."""

import math
import re
from itertools import pairwise
from typing import Any

from rollouts.errors import InvalidInputError

MAX_DEPTH = 50
NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
MASK = "***"
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SECRET_WORDS = {
    "secret", "secrets", "password", "passwords", "passwd", "credential", "credentials", "apikey", "apikeys",
}  # fmt: skip
KEY_KINDS = {"api", "access", "private", "secret", "signing", "encryption"}  # `…_key` after one of these is secret
# Words that show that a token belongs to a model and is not secret: pad_token, eos_token, max_token_len, ...
MODEL_TOKEN_WORDS = {
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "end", "start", "begin", "image", "video", "audio",
    "special", "added", "think", "chat", "prompt", "response", "len", "length", "max", "min", "num", "per", "mean",
    "level", "id", "ids", "type", "loss", "count", "limit", "budget", "file", "split", "agg", "first", "last",
}  # fmt: skip
URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
KNOWN_KEY = re.compile(r"\b(?:hf_|rd_|sk-|gh[pousr]_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}")


def is_secret(key: str) -> bool:
    """Returns whether a config key names a secret: an access token, a password, an API key or a credential."""
    words = [word.lower() for word in WORDS.findall(key)]
    if SECRET_WORDS.intersection(words):
        return True
    if any(kind in KEY_KINDS and word in ("key", "keys") for kind, word in pairwise(words)):
        return True
    return bool({"token", "tokens"}.intersection(words)) and not MODEL_TOKEN_WORDS.intersection(words)


def redact_secrets(value: Any, secret: bool = False, depth: int = 0) -> Any:
    """Returns `value` in a form that can be stored.

    Masks every string below a secret key, every password in a URL and every well-known kind of key. Replaces what a
    database does not accept (NaN, NUL, half surrogates). Raises InvalidInputError if it is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"`config` is nested deeper than {MAX_DEPTH} levels.", "config")
    if isinstance(value, dict):
        return {
            replace_unstorable(str(key)): redact_secrets(member, secret or is_secret(str(key)), depth + 1)
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_secrets(member, secret, depth + 1) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and value:
        return MASK if secret else KNOWN_KEY.sub(MASK, URL_PASSWORD.sub(rf"\1:{MASK}@", replace_unstorable(value)))
    return value


def replace_unstorable(text: str) -> str:
    """Returns `text` with every NUL and half surrogate replaced by U+FFFD."""
    return NOT_STORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def make_storable(value: Any, depth: int = 0) -> Any:
    """Returns a JSON value that every database stores: NaN and infinities become None, NUL and half surrogates U+FFFD,
    and what is nested deeper than `MAX_DEPTH` levels None."""
    if depth > MAX_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict):
        return {replace_unstorable(str(key)): make_storable(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [make_storable(member, depth + 1) for member in value]
    return replace_unstorable(value) if isinstance(value, str) else value


# One try per word, and possessive repetitions: the time grows with the length of the text, not with its square.
AUTHORIZATION = re.compile(r"(?i)\b((?:proxy-)?authorization\s*+[:=]\s*+(?:bearer|basic|token)?\s*+)[^\s'\"]+")
ASSIGNMENT = re.compile(
    r"""(?<![\w.-])((?:(?![A-Za-z_])[\w.-])*+[A-Za-z_][\w.-]*+)(["']?\s*+[:=]\s*+)(["']?)([^\s"',;&]+)\3"""
)


def redact_text(text: str) -> str:
    """Masks the secrets in a text: values assigned to secret names, passwords in URLs, known kinds of keys."""
    text = KNOWN_KEY.sub(
        MASK, URL_PASSWORD.sub(rf"\1:{MASK}@", AUTHORIZATION.sub(rf"\1{MASK}", replace_unstorable(text)))
    )
    return ASSIGNMENT.sub(lambda match: mask_assignment(match) if is_secret(match[1]) else match[0], text)


def mask_assignment(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{match[3]}{MASK}{match[3]}"


def redact_command(arguments: list[str]) -> list[str]:
    """Masks the secrets in the arguments of a command, also the argument after `--api-key`."""
    result: list[str] = []
    is_value = False
    for argument in arguments:
        result.append(MASK if is_value and not argument.startswith("--") else redact_text(argument))
        is_value = argument.startswith("-") and "=" not in argument and is_secret(argument.lstrip("-"))
    return result
