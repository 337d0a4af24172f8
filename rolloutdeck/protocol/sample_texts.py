"""Which rows and values are samples: the same rules for the client, which warns, and the server, which rejects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.protocol.columns import JSON_TEXTS, format_column_names

JSON_TYPE_NAMES = {
    dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip
# Roles of the speakers in ShareGPT conversations. Every other name is a role itself.
SPEAKER_ROLES = {
    "human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "function_call": "assistant", "observation": "tool",
    "function_response": "tool", "function": "tool",
}  # fmt: skip
NATIVE_COLUMNS = {"prompt": "prompt", "response": "response"}
TEXT_PARTS = ("prompt", "response", "messages", "response_ids")


def describe_json_type(value: Any) -> str:
    """Returns the JSON type of a value for an error message, e.g. "a list"."""
    return JSON_TYPE_NAMES[type(value)]


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def is_conversation(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_message, value))


def normalize_messages(value: Any) -> Any:
    """Converts ShareGPT turns (`from`, `value`), OpenAI choices and one message to messages; returns other values
    unchanged."""
    if is_message(value):
        return [value]
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return value
    if all(isinstance(item.get("from"), str) and "value" in item for item in value):
        return [
            {"role": SPEAKER_ROLES.get(item["from"], item["from"]), "content": item["value"]}
            | {key: inner for key, inner in item.items() if key not in ("from", "value")}
            for item in value
        ]
    return [item["message"] if isinstance(item.get("message"), dict) else item for item in value]


def parse_json_text(text: Any) -> Any:
    """Returns the JSON value of a cell; the cell itself if it is no text or not JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def describe_wrong_row(row: Any) -> str:
    return f"holds {describe_json_type(row)} where an object is expected"


def describe_missing_response(row: Mapping[str, Any]) -> str:
    return f"has no response; its keys are {format_column_names(list(row))}"


def find_text_problem(part: str, value: Any) -> str:
    """Returns why a value is no `prompt` or `response`; "" if it is one: a text, or messages. A response may be missing
    (null, or the NaN of pandas)."""
    if isinstance(value, str) or is_conversation(value):
        return ""
    if part == "response" and (value is None or value != value):
        return ""
    return f"its {part} is {describe_json_type(value)}, neither a text nor a list of messages"


def find_row_problem(row: Any, columns: Mapping[str, str], *, is_native: bool) -> str:
    """Returns why the server rejects a row, which is the JSON of one sample; "" if it does not.

    `columns` is {part: column} of the table; those of the native format are `NATIVE_COLUMNS`. A response may also be a
    list of several responses.
    """
    if not isinstance(row, dict):
        return describe_wrong_row(row)
    values = {part: row[columns[part]] for part in TEXT_PARTS if columns.get(part) in row}
    if not is_native:
        values = {part: _read_cell(part, value) for part, value in values.items() if not _is_missing(part, value)}
        messages = values.get("messages")
        if messages and is_conversation(messages) and values.get("response") is None:
            return ""
    if "response" not in values and (is_native or "response_ids" not in values):
        return describe_missing_response(row)
    response = values.get("response")
    if (
        not is_native
        and isinstance(response, list)
        and all(not find_text_problem("response", item) for item in response)
    ):
        response = ""
    return find_text_problem("prompt", values.get("prompt", "")) or find_text_problem("response", response)


def _read_cell(part: str, value: Any) -> Any:
    is_json = isinstance(value, str) and (part in ("messages", "response_ids") or value.startswith(JSON_TEXTS))
    return normalize_messages(parse_json_text(value) if is_json else value)


def _is_missing(part: str, value: Any) -> bool:
    return part != "response" and (value is None or value != value)
