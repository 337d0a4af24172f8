"""JSON Lines as trainers really write them, and texts of the messages in them.

Lines end at `\\n` only: U+2028, U+2029 and U+0085 stand raw inside them. `NaN` and `Infinity` stand bare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from rolloutdeck.protocol import MAX_LINE_BYTES
from rollouts.errors import UnreadableDumpError
from rollouts.samples import LineProblem, describe_json_type, to_json

BOM = b"\xef\xbb\xbf"
BROKEN_UTF8 = "not valid UTF-8; what could not be read is shown as U+FFFD"


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number from 1 and bytes of each line that is not blank; None for a line over `wire.MAX_LINE_BYTES`."""
    most = MAX_LINE_BYTES
    number = 0
    while line := stream.readline(most + 1):
        number += 1
        if len(line) > most and not line.endswith(b"\n"):
            while (rest := stream.readline(most)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif not line.isspace():
            yield number, line.removeprefix(BOM) if number == 1 else line


def read_jsonl_rows(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]] | LineProblem]:
    """Number and object of each line. Raises UnreadableDumpError if no line holds an object."""
    good, first = 0, None
    for number, line in lines(stream):
        try:
            row, whole = orjson.loads(line or b""), True
        except orjson.JSONDecodeError:
            row = None
        try:
            if type(row) is not dict:
                row, whole = parse(line)
        except ValueError as error:
            problem = LineProblem(number, str(error))
            first = first or problem
            yield problem
            continue
        good += 1
        if not whole:
            yield LineProblem(number, BROKEN_UTF8, repaired=True)
        yield number, row
    if first and not good:
        raise UnreadableDumpError(f"No line of it can be read; line {first.line}: {first.reason}.")
    if not good:
        raise UnreadableDumpError("The file is empty: its writer was stopped before the first line.")


def parse(line: bytes | None) -> tuple[dict[str, Any], bool]:
    """The object of a line, and False if its bytes were not UTF-8. Raises ValueError that says what is wrong."""
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    whole = True
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row, whole = parse_json_leniently(line)
    if not isinstance(row, dict):
        raise ValueError(f"holds {describe_json_type(row)} where an object is expected")
    return row, whole


def parse_json_leniently(line: bytes) -> tuple[Any, bool]:
    """With Python's parser: takes bare NaN and Infinity, half surrogates, huge integers."""
    try:
        text, whole = line.decode(), True
    except UnicodeDecodeError:
        text, whole = line.decode("utf-8", "replace"), False
    try:
        return json.loads(text, strict=False), whole
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (RecursionError, ValueError):
        raise ValueError("not JSON that can be read: nested too deep, or a number with too many digits") from None


def render_messages(messages: list[Any]) -> str | None:
    """A message list as its decoded text reads: a line with the role, then the content. None when it is none."""
    turns = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return None
        turns.append(f"{message['role']}\n{render_content(message.get('content'))}\n")
    return "".join(turns)


def render_content(content: Any) -> str:
    """Text of a message's content: a string, or parts of which the texts are joined and the others named."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part_text(part) for part in content)
    return "" if content is None else to_json(content)


def part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        return part["text"] if isinstance(part.get("text"), str) else f"<{part.get('type', 'part')}>"
    return to_json(part)


def parse_prompt(value: Any) -> tuple[str, list[dict[str, Any]] | None]:
    """Text and messages of a prompt that is a string or a message list. Raises ValueError for anything else."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list):
        text = render_messages(value)
        if text is not None:
            asks = value and value[-1]["role"] != "assistant"
            return text + "assistant\n" if asks else text, value
    raise ValueError(f"its prompt is {describe_json_type(value)}, neither a text nor a list of messages")


def parse_response_text(value: Any) -> str:
    """Text of a response that is a string or a message list. Raises ValueError for anything else."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], dict) and value[0].get("role") == "assistant":
            return render_content(value[0].get("content"))
        text = render_messages(value)
        if text is not None:
            return text
    raise ValueError(f"its response is {describe_json_type(value)}, neither a text nor a list of messages")
