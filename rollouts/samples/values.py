"""Converts JSON values to finite floats, integers that fit, and text that files and databases can store."""

import json
import math
from typing import Any

import orjson

MAX_STORED_DIGITS = 309  # from which on an integer may be no float


def to_float(value: Any) -> float | None:
    """Returns a finite float, or None. Accepts numbers, booleans and text as `json.dumps(default=str)` writes it."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text_to_float(value)
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text_to_float(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    if len(text) > 40:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def to_integer(value: Any, bits: int = 64) -> int | None:
    """Returns an integer that fits into `bits` bits (signed), else None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def to_text(value: Any) -> str | None:
    """Returns a value (a ground truth, a label) as text: strings unchanged, other values as JSON."""
    if value is None or isinstance(value, str):
        return value
    return to_json(value)


def to_json(value: Any) -> str:
    """Returns JSON of any value, also of lone surrogates and huge integers; `<nested too deep>` if it is too deep."""
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        pass
    try:
        return json.dumps(value)
    except RecursionError:
        return '"<nested too deep>"'


def to_stored_json(value: Any) -> str:
    """Returns JSON of any value that `orjson` reads again: half a surrogate pair becomes U+FFFD, NaN null, and an
    integer that no float can have becomes a text."""
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        plain = json.loads(to_json(value), parse_constant=lambda _name: None, parse_int=parse_stored_integer)
        return replace_surrogates(json.dumps(plain, ensure_ascii=False))


def parse_stored_integer(digits: str) -> int | str:
    return int(digits) if len(digits) < MAX_STORED_DIGITS else digits


def parse_json(text: str) -> Any:
    """Reads JSON of a body. Earlier versions stored halves of surrogate pairs, NaN and huge integers, which `orjson`
    refuses."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(to_stored_json(json.loads(text)))


def replace_surrogates(text: str) -> str:
    """Replaces lone surrogates with U+FFFD and joins split surrogate pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def count_chars(value: Any, depth: int = 4) -> int:
    """Returns the characters of the texts in a value: messages may hold images as text."""
    if isinstance(value, str):
        return len(value)
    members = list(value.values()) if isinstance(value, dict) else value
    if not depth or not isinstance(members, list) or not members or isinstance(members[0], (int, float)):
        return 0
    return sum(count_chars(member, depth - 1) for member in members)
