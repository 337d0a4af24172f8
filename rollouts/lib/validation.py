"""Checks values that callers send, so that no NUL, half surrogate or huge number reaches the database."""

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError

MAX_INT64 = 2**63 - 1


def parse_text(value: Any, field: str, *, max_chars: int, default: str = "") -> str:
    """Returns `value` as a string of at most `max_chars`, `default` if it is None. Raises InvalidInputError."""
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidInputError(_("`{field}` must be a string.").format(field=field), field)
    if len(value) > max_chars:
        message = _("`{field}` can have at most {limit} characters; it has {count}.")
        raise InvalidInputError(message.format(field=field, limit=max_chars, count=len(value)), field)
    if any(character < " " or "\ud800" <= character <= "\udfff" or character == "\x7f" for character in value):
        message = _("`{field}` contains control characters or unpaired surrogates. Send plain UTF-8 text.")
        raise InvalidInputError(message.format(field=field), field)
    return value


def parse_multiline_text(value: Any, field: str, *, max_chars: int) -> str:
    """Returns `value` as a text that may have several lines. Raises InvalidInputError, also for None."""
    if not isinstance(value, str) or len(value) > max_chars:
        message = _("`{field}` must be text of at most {limit} characters.")
        raise InvalidInputError(message.format(field=field, limit=f"{max_chars:,}"), field)
    if any(character == "\x00" or "\ud800" <= character <= "\udfff" for character in value):
        message = _("`{field}` contains an invalid character (NUL or an unpaired surrogate).")
        raise InvalidInputError(message.format(field=field), field)
    return value


def parse_integer(value: Any, field: str, *, minimum: int = 0, maximum: int = MAX_INT64) -> int | None:
    """Returns `value` as an integer from `minimum` to `maximum`, None for an empty value. Raises InvalidInputError."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and len(value) < 30 and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(_("`{field}` must be a whole number.").format(field=field), field)
    if not minimum <= value <= maximum:
        message = _("`{field}` must be between {minimum} and {maximum}.")
        raise InvalidInputError(message.format(field=field, minimum=minimum, maximum=maximum), field)
    return value


def parse_choice(value: Any, field: str, allowed: Sequence[str], *, default: str) -> str:
    """Returns `value` if it is one of `allowed`, `default` if it is empty. Raises InvalidInputError."""
    if value is None or value == "":
        return default
    if value not in allowed:
        message = _("`{field}` must be one of: {allowed}.")
        raise InvalidInputError(message.format(field=field, allowed=", ".join(allowed)), field)
    return str(value)


def parse_boolean(value: Any, field: str) -> bool:
    """Returns a boolean from JSON or from a query parameter. Raises InvalidInputError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("", "1", "true", "yes"):
        return True
    if isinstance(value, str) and value.lower() in ("0", "false", "no"):
        return False
    raise InvalidInputError(_("`{field}` must be true or false.").format(field=field), field)
