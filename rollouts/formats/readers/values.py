"""Converts values that the safe readers, Parquet and JSON return to the values of a record."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from rolloutdeck.protocol import encode_data_url
from rolloutdeck.safe_pickle.batches import Picture
from rollouts.errors import UnreadableDumpError
from rollouts.samples import Record, to_float, to_integer

MAX_DEPTH = 20
MAX_LIST_VALUES = 1024

JsonObject = dict[str, Any]


def get_object(value: Any, key: str) -> JsonObject:
    """Returns the object under a key of an object; {} if there is none."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def get_list(value: Any, key: str) -> list[Any]:
    """Returns the list under a key of an object; [] if there is none."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else []


def set_batch_tokens(
    record: Record, prompt_ids: list[int], response_ids: list[int], mask: list[int] | None, logprobs: list[float] | None
) -> None:
    """Replaces NaN by None. Raises UnreadableDumpError if an id is negative or exceeds 32 bits."""
    for ids in (prompt_ids, response_ids):
        if ids and not 0 <= min(ids) <= max(ids) < 2**31:
            raise UnreadableDumpError("The batch has invalid token ids: below 0, or 2^31 and more.")
    record.prompt_ids, record.response_ids = prompt_ids, response_ids
    if mask is not None:
        record.response_mask = mask if set(mask) <= {0, 1} else [int(bool(value)) for value in mask]
    if logprobs is not None:
        is_finite = all(map(isfinite, logprobs))
        record.logprobs = list(logprobs) if is_finite else [to_float(value) for value in logprobs]


def to_jsonable(value: Any, depth: int = 0) -> Any:
    """Converts a value to JSON. An image becomes a data URL, a value of another type text such as `<12 bytes>`."""
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, float):
        return to_float(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if to_integer(value) is not None else str(value)
    if isinstance(value, dict):
        if isinstance(value.get("image"), Picture) and value.get("bytes"):  # the same image, decoded
            value = {key: inner for key, inner in value.items() if key != "image"}
        return {str(key): to_jsonable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(inner, depth + 1) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return encode_data_url(bytes(value)) or f"<{len(value):,} bytes>"
    if isinstance(value, Picture):
        return encode_data_url(encode_picture(value) or b"") or f"<{value}>"
    return f"<{value}>"


@lru_cache(maxsize=2)
def encode_picture(picture: Picture) -> bytes | None:
    """Returns the encoded image. Cached, because the rows of a group share their images."""
    return picture.encode()


def summarize_value(value: Any) -> Any:
    """Like `to_jsonable`, but a list of more than `MAX_LIST_VALUES` values becomes their count."""
    count = count_values(value)
    return to_jsonable(value) if count <= MAX_LIST_VALUES else f"<{count:,} values>"


def count_values(value: Any) -> int:
    """Returns the number of values in nested lists; 0 for any other value."""
    return sum(max(1, count_values(inner)) for inner in value) if isinstance(value, (list, tuple)) else 0


def collect_extras(
    row: Mapping[Any, Any], known: Collection[str], convert: Callable[[Any], Any] = to_jsonable
) -> JsonObject:
    """Returns the converted values of the keys that are not in `known`, without empty values."""
    extras = {str(key): convert(value) for key, value in row.items() if key not in known}
    return {key: value for key, value in extras.items() if value not in (None, "", [], {})}
