"""Our own: one line of JSON per row of `Run.log_samples`, keys as in `wire.SAMPLE_KEYS`, all others kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import Told
from rollouts.formats.readers import chat
from rollouts.formats.readers.jsonl import rows
from rollouts.samples.record import LeftOut, Problem, Record
from rollouts.samples.values import as_json, integer, number, told_text

name = "native"

NANS = frozenset(("nan", "inf", "infinity"))  # in small letters, without a sign
HEAD = re.compile(rb'\s*\{.*"prompt"\s*:\s*["\[]', re.DOTALL)


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and b'"response"' in head


def read(stream: BinaryIO, told: Told) -> Iterator[Record | Problem | LeftOut]:
    """Records in the order of the lines. Raises UnreadableDump when no line holds an object."""
    for row in rows(stream):
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield record(row[1])
        except ValueError as error:
            yield Problem(row[0], str(error))


def record(row: dict[str, Any]) -> Record:
    """Raises ValueError when prompt or response is missing or no text. Any other value that is not what its key asks
    for is kept under `extras`, as it came."""
    if "prompt" not in row or "response" not in row:
        raise ValueError("has no `prompt` or no `response`")
    made = Record(*chat.exchanged(row["prompt"], row["response"]))
    for key, value in row.items():
        if value is None or key in ("prompt", "response"):
            continue
        read_value = FIELDS.get(key)
        taken = read_value(value) if read_value else None
        if taken is None:
            keep(made, key, value)
        else:
            setattr(made, key, taken)
    return made


def keep(made: Record, key: str, value: Any) -> None:
    """NaN is null: a score that is NaN, or the text "nan", is a score that is missing."""
    if key in FIELDS and (isinstance(value, float) or (isinstance(value, str) and value.lower().lstrip("+-") in NANS)):
        return
    made.extras[key] = None if value != value else value


def parts(value: Any) -> dict[str, float | None] | None:
    """Reward parts: {name: number}; None unless every part is a number or null."""
    if not isinstance(value, dict):
        return None
    if not all(part is None or isinstance(part, (int, float, str)) for part in value.values()):
        return None
    return {str(key): number(part) for key, part in value.items()}


def whole_number(value: Any) -> int | None:
    return integer(value)


def label(value: Any) -> str | None:
    """A short name: text, or a number as text."""
    if isinstance(value, str):
        return value
    return as_json(value) if isinstance(value, (int, float)) and value == value else None


def truth(value: Any) -> bool | None:
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    return {"True": True, "true": True, "False": False, "false": False}.get(value) if isinstance(value, str) else None


def ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(i) is int and -(2**31) <= i < 2**31 for i in value) else None


def mask(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(i in (0, 1) for i in value if isinstance(i, (bool, int, float))):
        return [int(i) for i in value] if all(isinstance(i, (bool, int, float)) for i in value) else None
    return None


def reals(value: Any) -> list[float | None] | None:
    """Numbers per token; NaN and null are null."""
    if not isinstance(value, list) or not all(i is None or isinstance(i, (int, float)) for i in value):
        return None
    return [None if i is None else number(i) for i in value]


def advantages(value: Any) -> list[float | None] | None:
    """Per token, or one number for the whole response, as GRPO has it."""
    return reals([value]) if isinstance(value, (int, float)) else reals(value)


def messages(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def sequence(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


FIELDS: dict[str, Callable[[Any], Any]] = {
    "score": number,
    "rewards": parts,
    "messages": messages,
    "group": label,
    "index": whole_number,
    "trajectory": label,
    "turn": whole_number,
    "ground_truth": told_text,
    "data_source": label,
    "finish_reason": label,
    "truncated": truth,
    "prompt_ids": ids,
    "response_ids": ids,
    "response_mask": mask,
    "logprobs": reals,
    "ref_logprobs": reals,
    "advantages": advantages,
    "policy_version": whole_number,
    "timing": mapping,
    "metrics": mapping,
    "segments": sequence,
    "tools": sequence,
}
