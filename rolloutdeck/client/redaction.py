"""`ROLLOUTDECK_REDACT=module:function`: changes every text before it is written to the spool.

The function gets a text and returns the text to store. If it fails, or cannot be imported, the text is replaced by
`REMOVED` and counted. Token ids are removed, since they are the text in another form.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rolloutdeck.lib import logger

REMOVED = "[text removed: ROLLOUTDECK_REDACT failed]"
CHUNK_BYTES = 1 << 18
TOKEN_SUFFIXES = ("ids", "tokens")  # of keys whose lists are token ids


class UnredactableError(Exception):
    """The bytes are no JSON lines, so their texts cannot be found."""


class Redactor:
    """Applies the function that `name` names. `failed_count` is the number of texts that it could not change."""

    def __init__(self, name: str) -> None:
        self.failed_count = 0
        self._function = load_function(name)

    def redact_lines(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the JSON lines of `chunks` with redacted texts. Raises UnredactableError."""
        self.failed_count = 0
        lines: list[bytes] = []
        size = 0
        for line in split_lines(chunks):
            lines.append(self.redact_line(line))
            size += len(lines[-1])
            if size >= CHUNK_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
        yield b"".join(lines)

    def redact_line(self, line: bytes) -> bytes:
        if not line.strip():
            return line
        try:
            return json.dumps(self.redact_value(json.loads(line))).encode() + b"\n"
        except (ValueError, RecursionError):
            raise UnredactableError from None

    def redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list):
            return [self.redact_value(inner) for inner in value]
        if isinstance(value, dict):
            items = ((key, inner) for key, inner in value.items() if not is_token_list(key, inner))
            return {key: self.redact_value(inner) for key, inner in items}
        return value

    def redact_text(self, text: str) -> str:
        try:
            redacted = self._function(text)
        except (Exception, SystemExit) as error:  # the training must go on, without this text
            logger.debug("ROLLOUTDECK_REDACT failed: %s", type(error).__name__)
            redacted = None
        if isinstance(redacted, str):
            return redacted
        self.failed_count += 1
        return REMOVED


def load_function(name: str) -> Callable[[str], Any]:
    """Returns the function `module:function`; if there is none, a function that always fails."""
    module, _, function = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), function)
        if callable(loaded):
            return loaded  # type: ignore[no-any-return]
        reason = "it is no function"
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
    logger.error("ROLLOUTDECK_REDACT=%s cannot be used (%s). All texts are removed.", name, reason)
    return lambda text: None


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def is_token_list(key: str, value: Any) -> bool:
    return isinstance(value, list) and key.lower().endswith(TOKEN_SUFFIXES)
