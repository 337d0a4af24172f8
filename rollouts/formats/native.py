"""The native format: one JSON line per row of `Run.log_samples`. Keys that are not in `wire.SAMPLE_KEYS` are extras."""

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from rolloutdeck.protocol import describe_missing_response
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, chat, convert_rows, is_missing_number, read_jsonl_rows
from rollouts.samples import LineProblem, Record, is_number, to_float, to_integer, to_json, to_text

name = "native"

BOOLEAN_TEXTS = {"True": True, "true": True, "False": False, "false": False}
SPLIT_EXTRAS_KEY = "extras_of_split"  # of a part of a file with several steps: extras whose names are keys of a sample
HEAD = re.compile(rb'\s*\{.*"prompt"\s*:\s*["\[]', re.DOTALL)


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and b'"response"' in head


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    build = build_native_record if context.step is not None else build_record_with_step
    return convert_rows(read_jsonl_rows(stream), build, numbers=("score",))


def build_record_with_step(row: JsonObject) -> Record:
    """Converts a row of a file whose rows have the steps. Raises ValueError."""
    step = parse_row_step(row.get("step"), "step")
    record = build_native_record(row)
    if step is not None:
        record.extras["step"] = step
    return record


def parse_row_step(value: Any, column: str) -> int | None:
    """Returns the step of a row; None if there is none. Raises ValueError for a number that the API refuses as a step:
    nobody could open its samples."""
    if value is None or value != value or (isinstance(value, str) and value.strip().lower() in ("", "nan")):
        return None
    step = to_integer(value if isinstance(value, int) and not isinstance(value, bool) else to_float(value))
    if step is None or step < 0:
        raise ValueError(f"`{column[:80]}` is no step: a step is a whole number from 0")
    return step


def build_native_record(row: JsonObject) -> Record:
    """Converts a row. Raises ValueError if there is no response, or if prompt or response is no text. A value of the
    wrong type goes into `extras`, unchanged."""
    if "response" not in row:
        raise ValueError(describe_missing_response(row))
    record = Record(*chat.parse_prompt_response(row.get("prompt", ""), row["response"]))
    for key, value in row.items():
        if value is None or key in ("prompt", "response"):
            continue
        if key == SPLIT_EXTRAS_KEY and isinstance(value, dict):
            record.extras |= value
            continue
        convert = FIELDS.get(key)
        converted = convert(value) if convert else None
        if converted is not None:
            setattr(record, key, converted)
        elif not convert or not is_missing_number(value):
            record.extras[key] = None if value != value else value
    return record


def to_rewards(value: Any) -> dict[str, float | None] | None:
    """Returns {name: number}; None unless every value is a number, numeric text or null."""
    if not isinstance(value, dict):
        return None
    if not all(part is None or isinstance(part, (int, float, str)) for part in value.values()):
        return None
    return {str(key): to_float(part) for key, part in value.items()}


def to_label(value: Any) -> str | None:
    """Returns a short name: text, or a number as text."""
    if isinstance(value, str):
        return value
    return to_json(value) if is_number(value) and value == value else None


def to_boolean(value: Any) -> bool | None:
    if is_number(value) and value in (0, 1):
        return bool(value)
    return BOOLEAN_TEXTS.get(value) if isinstance(value, str) else None


def to_token_ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(i) is int and -(2**31) <= i < 2**31 for i in value) else None


def to_mask(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not all(isinstance(i, (int, float)) and i in (0, 1) for i in value):
        return None
    return [int(i) for i in value]


def to_floats(value: Any) -> list[float | None] | None:
    """Returns one number per token; NaN and null become None."""
    if not isinstance(value, list) or not all(i is None or isinstance(i, (int, float)) for i in value):
        return None
    return [None if i is None else to_float(i) for i in value]


def to_advantages(value: Any) -> list[float | None] | None:
    """Returns one number per token, or one number for the full response as in GRPO."""
    return to_floats([value]) if is_number(value) else to_floats(value)


def to_messages(value: Any) -> list[JsonObject] | None:
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def to_object(value: Any) -> JsonObject | None:
    return value if isinstance(value, dict) else None


def to_list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


FIELDS: dict[str, Callable[[Any], Any]] = {
    "score": to_float,
    "rewards": to_rewards,
    "messages": to_messages,
    "group": to_label,
    "index": to_integer,
    "trajectory": to_label,
    "turn": to_integer,
    "ground_truth": to_text,
    "data_source": to_label,
    "finish_reason": to_label,
    "truncated": to_boolean,
    "prompt_ids": to_token_ids,
    "response_ids": to_token_ids,
    "response_mask": to_mask,
    "logprobs": to_floats,
    "ref_logprobs": to_floats,
    "advantages": to_advantages,
    "policy_version": to_integer,
    "timing": to_object,
    "metrics": to_object,
    "segments": to_list,
    "tools": to_list,
}
