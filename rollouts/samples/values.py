"""Conversion of JSON values: finite numbers, whole numbers that fit, and text of any value."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson


def describe_json_type(value: Any) -> str:
    """What a JSON value is, for a person."""
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names[type(value)]


def to_float(value: Any) -> float | None:
    """A finite float, or None: of numbers, booleans and the strings that `json.dumps(default=str)` makes of them."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text_to_float(value)
    if not isinstance(value, (int, float)):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def text_to_float(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    if len(text) > 40:
        return None
    try:
        real = float(text)
    except ValueError:
        return None
    return real if math.isfinite(real) else None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def to_integer(value: Any, bits: int = 64) -> int | None:
    """A whole number that fits, else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def to_text(value: Any) -> str | None:
    """A value that is shown as text (a ground truth, a label): strings as they are, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value
    return to_json(value)


def to_json(value: Any) -> str:
    """JSON text of any JSON value, half surrogates and huge integers included; of one that is nested too deep to be
    written, a text that says so."""
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        pass
    try:
        return json.dumps(value)
    except RecursionError:
        return '"<nested too deep>"'
