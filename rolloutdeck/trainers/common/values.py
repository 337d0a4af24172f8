"""Conversions of the values of settings and facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def parse_int(value: Any) -> int | None:
    """Returns the value if it is an int and no bool, otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
