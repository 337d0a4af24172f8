"""Values of an index row that depend on one record: what a database accepts, and defaults of what is not logged."""

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import orjson

from rollouts.samples.record import Record
from rollouts.samples.values import replace_surrogates

CUT_REASONS = ("length", "max_tokens", "max_length", "truncated")
MAX_NUMBER = 1e100
MAX_PARTS = 16
MAX_PART_CHARS = 60


def limit_number(number: float | None) -> float | None:
    """Returns a number that is safe in an average, else None: PostgreSQL squares values. The body stores any number."""
    return number if number is None or -MAX_NUMBER < number < MAX_NUMBER else None


def serialize_parts(rewards: Mapping[str, Any]) -> str | None:
    """Returns the reward parts with a value as JSON, at most `MAX_PARTS`; None if there are none."""
    if not rewards:
        return None
    if len(rewards) > MAX_PARTS or max(map(len, rewards)) > MAX_PART_CHARS:
        short = ((name, value) for name, value in rewards.items() if len(name) <= MAX_PART_CHARS)
        rewards = dict(islice(short, MAX_PARTS))
    try:
        text = orjson.dumps(rewards)
        if b"null" in text:  # nor NaN, which JSON does not have
            text = orjson.dumps(
                {name: value for name, value in rewards.items() if value is not None and value == value}
            )
        return None if text == b"{}" else clean_text(text.decode())
    except TypeError:  # a name with a lone surrogate
        return None


class ShortNames(dict[tuple[str, int], str]):
    """Names of a batch, shortened to fit their columns. Caches each name because names repeat."""

    def __missing__(self, key: tuple[str, int]) -> str:
        self[key] = shorten_name(*key)
        return self[key]


def clean_text(text: str) -> str:
    """Returns text that any database accepts: no NUL, no lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text)
    return text


def shorten_name(text: str, limit: int) -> str:
    """Returns a name that fits its column. A longer name ends in a hash of the full name, so it stays unique."""
    if len(text) <= limit:
        return clean_text(text)
    ending = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{clean_text(text[: limit - 17])}~{ending}"


def is_correct(record: Record) -> bool | None:
    """Applies the default rule: `acc=1` if it was logged, else `score>0`; None if neither was logged."""
    acc = get_logged_accuracy(record)
    if acc is not None:
        return acc == 1
    return None if record.score is None else record.score > 0


def get_logged_accuracy(record: Record) -> float | None:
    acc = record.rewards.get("acc")
    if acc is None:
        acc = record.extras.get("acc")
    return acc if isinstance(acc, (int, float)) else None


def is_truncated(record: Record) -> bool | None:
    if record.truncated is not None or not record.finish_reason:
        return record.truncated
    return record.finish_reason.lower() in CUT_REASONS


def count_tokens(record: Record) -> int | None:
    """Returns the number of response tokens, or None if neither the tokens nor their number was recorded."""
    if record.response_ids is not None:
        return len(record.response_ids)
    length = record.extras.get("response_length")
    return int(length) if isinstance(length, (int, float)) and 0 <= length < 2**31 else None


def compute_mean_advantage(advantages: list[float | None] | None) -> float | None:
    """Returns the shortest number that is the mean in single precision. The body stores advantages with this precision,
    so an index row that is built from it is equal."""
    known = [value for value in advantages if value is not None] if advantages else []
    if not known:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(known, np.float32).mean(dtype=np.float64).astype(np.float32)
    return float(str(mean))
