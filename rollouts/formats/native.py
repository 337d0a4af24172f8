"""The native format: one JSON line per row of `Run.log_samples`. Keys that are not in `wire.SAMPLE_KEYS` are extras."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import chat
from rollouts.formats.readers.jsonl import read_jsonl_rows
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_integer, to_json, to_text

name = "native"

NANS = frozenset(("nan", "inf", "infinity"))  # in lower case, without a sign
HEAD = re.compile(rb'\s*\{.*"prompt"\s*:\s*["\[]', re.DOTALL)


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and b'"response"' in head


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Records in the order of the lines. Raises UnreadableDumpError if no line holds an object."""
    for row in read_jsonl_rows(stream):
        if isinstance(row, LineProblem):
            yield row
            continue
        try:
            yield build_native_record(row[1])
        except ValueError as error:
            yield LineProblem(row[0], str(error))


def build_native_record(row: dict[str, Any]) -> Record:
    """Converts a row. Raises ValueError if prompt or response is missing or not text. A value of the wrong type goes
    into `extras`, unchanged."""
    if "prompt" not in row or "response" not in row:
        raise ValueError("has no `prompt` or no `response`")
    made = Record(*chat.parse_prompt_response(row["prompt"], row["response"]))
    for key, value in row.items():
        if value is None or key in ("prompt", "response"):
            continue
        read_value = FIELDS.get(key)
        converted = read_value(value) if read_value else None
        if converted is None:
            store_extra(made, key, value)
        else:
            setattr(made, key, converted)
    return made


def store_extra(made: Record, key: str, value: Any) -> None:
    """Stores a value as an extra. A NaN, or the text "nan", under a known key counts as missing and is dropped."""
    if key in FIELDS and (isinstance(value, float) or (isinstance(value, str) and value.lower().lstrip("+-") in NANS)):
        return
    made.extras[key] = None if value != value else value


def parts(value: Any) -> dict[str, float | None] | None:
    """Returns reward parts {name: number}; None unless every part is a number, numeric text or null."""
    if not isinstance(value, dict):
        return None
    if not all(part is None or isinstance(part, (int, float, str)) for part in value.values()):
        return None
    return {str(key): to_float(part) for key, part in value.items()}


def whole_number(value: Any) -> int | None:
    return to_integer(value)


def to_label(value: Any) -> str | None:
    """Returns a short name: text, or a number as text."""
    if isinstance(value, str):
        return value
    return to_json(value) if isinstance(value, (int, float)) and value == value else None


def to_boolean(value: Any) -> bool | None:
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    return {"True": True, "true": True, "False": False, "false": False}.get(value) if isinstance(value, str) else None


def to_token_ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(i) is int and -(2**31) <= i < 2**31 for i in value) else None


def to_mask(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(i in (0, 1) for i in value if isinstance(i, (bool, int, float))):
        return [int(i) for i in value] if all(isinstance(i, (bool, int, float)) for i in value) else None
    return None


def to_floats(value: Any) -> list[float | None] | None:
    """Returns one number per token; NaN and null become None."""
    if not isinstance(value, list) or not all(i is None or isinstance(i, (int, float)) for i in value):
        return None
    return [None if i is None else to_float(i) for i in value]


def advantages(value: Any) -> list[float | None] | None:
    """Returns one number per token, or one number for the full response as in GRPO."""
    return to_floats([value]) if isinstance(value, (int, float)) else to_floats(value)


def to_messages(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def to_list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


FIELDS: dict[str, Callable[[Any], Any]] = {
    "score": to_float,
    "rewards": parts,
    "messages": to_messages,
    "group": to_label,
    "index": whole_number,
    "trajectory": to_label,
    "turn": whole_number,
    "ground_truth": to_text,
    "data_source": to_label,
    "finish_reason": to_label,
    "truncated": to_boolean,
    "prompt_ids": to_token_ids,
    "response_ids": to_token_ids,
    "response_mask": to_mask,
    "logprobs": to_floats,
    "ref_logprobs": to_floats,
    "advantages": advantages,
    "policy_version": whole_number,
    "timing": mapping,
    "metrics": mapping,
    "segments": to_list,
    "tools": to_list,
}
