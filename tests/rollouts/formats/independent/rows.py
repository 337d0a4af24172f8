"""The type of rows that the second readers return, and conversions that several of them use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
SKIP: dict[str, Any] = {"skip": True}


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def to_number(value: Any) -> float | None:
    """NaN and infinity are unknown."""
    return None if value is None or not math.isfinite(float(value)) else float(value)


def to_numbers(values: Any) -> list[float | None]:
    return [to_number(value) for value in values]


def to_integers(values: Any) -> list[int]:
    return [int(value) for value in values]


def to_text(value: Any) -> str | None:
    """Converts a ground truth: text stays as it is, other values become JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def drop_empty_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value not in ("", [], {})}


def render_message(message: dict[str, Any]) -> str:
    """Reasoning, content and tool calls of a message."""
    thought, content = message.get("reasoning_content"), message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "<image>") for part in content)
    calls = []
    for call in message.get("tool_calls") or ():
        call = call.get("function", call)
        calls.append(f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>')
    return "\n".join(filter(None, [f"<think>\n{thought}\n</think>" if thought else "", content, *calls]))


def render_prompt(messages: list[dict[str, Any]]) -> str:
    """As verl decodes a chat without special tokens."""
    return "".join(f"{message['role']}\n{render_message(message)}\n" for message in messages) + "assistant\n"


def render_response(messages: list[dict[str, Any]]) -> str:
    """The first answer without its role, every later turn with it."""
    return "\n".join(
        [*map(render_message, messages[:1]), *(f"{turn['role']}\n{render_message(turn)}" for turn in messages[1:])]
    )


def split_conversation(messages: list[dict[str, Any]]) -> dict[str, Any]:
    start = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    texts = {"prompt": render_prompt(messages[:start]), "response": render_response(messages[start:])}
    return {**texts, "messages": messages}


def build_prompt_fields(value: Any) -> dict[str, Any]:
    """The fields of a prompt that is a text or a list of messages."""
    return {"prompt": value} if isinstance(value, str) else {"prompt": render_prompt(value), "messages": value}
