"""Reads JSON Lines as trainers write them, and renders the messages in them as text.

A line ends only at `\\n`: it may contain U+2028, U+2029 and U+0085. `NaN` and `Infinity` are accepted.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

import orjson

from rolloutdeck.protocol import MAX_LINE_BYTES, describe_wrong_row, find_text_problem
from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.memory import check_json_memory
from rollouts.formats.readers.values import JsonObject
from rollouts.samples import LineProblem, describe_json_type, to_float, to_json

BOM = b"\xef\xbb\xbf"
BROKEN_UTF8 = "not valid UTF-8; invalid bytes are shown as U+FFFD"
OUT_OF_MEMORY = "needs more memory than a worker may use (ROLLOUTDECK_MAX_WORKER_MEMORY_MB)"
NAN_TEXTS = frozenset(("nan", "inf", "infinity"))  # in lower case, without a sign
EMPTY_FILE = "The file is empty: its writer was stopped before the first line."

NumberedRow = tuple[int, JsonObject] | LineProblem
Converted = TypeVar("Converted")


def iterate_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yields number (from 1) and bytes of each line that is not blank; None for a line over `wire.MAX_LINE_BYTES`."""
    limit = MAX_LINE_BYTES
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(limit)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif not line.isspace():
            yield number, line.removeprefix(BOM) if number == 1 else line


def read_jsonl_rows(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Yields number and object of each line. Raises UnreadableDumpError if no line holds an object."""
    rows, first = 0, None
    for number, line in iterate_lines(stream):
        try:
            row, is_utf8 = parse_row(line)
        except ValueError as error:
            problem = LineProblem(number, str(error))
            first = first or problem
            yield problem
            continue
        rows += 1
        if not is_utf8:
            yield LineProblem(number, BROKEN_UTF8, repaired=True)
        yield number, row
    if first and not rows:
        raise UnreadableDumpError(f"No line can be read. Line {first.line}: {first.reason}.")
    if not rows:
        raise UnreadableDumpError(EMPTY_FILE)


def convert_rows(
    rows: Iterable[NumberedRow], convert: Callable[[JsonObject], Converted], numbers: Sequence[str] = ()
) -> Iterator[Converted | LineProblem]:
    """Converts numbered rows. A row for which `convert` raises ValueError becomes a problem. A value of a key in
    `numbers` that is no number is a problem next to its row."""
    for row in rows:
        if isinstance(row, LineProblem):
            yield row
            continue
        try:
            yield convert(row[1])
        except ValueError as error:
            yield LineProblem(row[0], str(error))
        else:
            yield from check_numbers(*row, numbers)


def check_numbers(line: int, row: JsonObject, keys: Sequence[str]) -> Iterator[LineProblem]:
    """Yields a problem for each value that is no number. A missing one, such as null or NaN, is none."""
    for key in keys:
        value = row.get(key)
        if value is not None and to_float(value) is None and not is_missing_number(value):
            reason = f"`{key}` is {describe_json_type(value)}, not a finite number, so the sample has no {key}"
            yield LineProblem(line, reason, repaired=True)


def is_missing_number(value: Any) -> bool:
    """Returns whether a value that is no number is a NaN, or text such as "nan"."""
    return isinstance(value, float) or (isinstance(value, str) and value.lower().lstrip("+-") in NAN_TEXTS)


def parse_row(line: bytes | None) -> tuple[JsonObject, bool]:
    """Returns the object of a line, and False if its bytes were not UTF-8. Raises ValueError with the reason."""
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    check_json_memory(line)
    is_utf8 = True
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row, is_utf8 = parse_json_leniently(line)
    except MemoryError:
        raise ValueError(OUT_OF_MEMORY) from None
    if not isinstance(row, dict):
        raise ValueError(describe_wrong_row(row))
    return row, is_utf8


def parse_json_leniently(text: bytes) -> tuple[Any, bool]:
    """Parses NaN, lone surrogates and huge integers too. Returns also whether it is UTF-8. Raises ValueError."""
    try:
        decoded, is_utf8 = text.decode(), True
    except UnicodeDecodeError:
        decoded, is_utf8 = text.decode("utf-8", "replace"), False
    try:
        return json.loads(decoded, strict=False), is_utf8
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # of some messages, which the position follows
        raise ValueError(f"not JSON: {reason} at character {error.pos + 1}") from None
    except MemoryError:
        raise ValueError(OUT_OF_MEMORY) from None
    except (RecursionError, ValueError):
        raise ValueError("not readable JSON: nested too deep, or a number with too many digits") from None


def render_messages(messages: list[Any]) -> str | None:
    """Renders messages as their decoded text: a line with the role, then the content. None if they are no messages."""
    turns = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return None
        turns.append(f"{message['role']}\n{render_content(message.get('content'))}\n")
    return "".join(turns)


def render_content(content: Any) -> str:
    """Renders the content of a message: text, or parts. A part without text becomes its type, such as `<image>`."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(render_part, content))
    return "" if content is None else to_json(content)


def render_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        return part["text"] if isinstance(part.get("text"), str) else f"<{part.get('type', 'part')}>"
    return to_json(part)


def parse_prompt(value: Any) -> tuple[str, list[JsonObject] | None]:
    """Returns text and messages of a prompt that is text or a list of messages. Raises ValueError."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list) and (text := render_messages(value)) is not None:
        needs_answer = value and value[-1]["role"] != "assistant"
        return text + "assistant\n" if needs_answer else text, value
    raise ValueError(find_text_problem("prompt", value))


def parse_prompt_or_empty(value: Any) -> tuple[str, list[JsonObject] | None]:
    """Like `parse_prompt`, but returns ("", None) for any other value: a batch may have only tokens."""
    try:
        return parse_prompt(value)
    except ValueError:
        return "", None


def parse_response_text(value: Any) -> str:
    """Returns the text of a response that is text, missing (null, or the NaN of pandas) or a list of messages. Raises
    ValueError."""
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], dict) and value[0].get("role") == "assistant":
            return render_content(value[0].get("content"))
        if (text := render_messages(value)) is not None:
            return text
    raise ValueError(find_text_problem("response", value))
