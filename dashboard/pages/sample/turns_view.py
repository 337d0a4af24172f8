"""A conversation as turns: from the logged messages, else from a text whose roles the trainer flattened.

Calls of tools stand beside their results, reasoning is a part of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dashboard.pages.sample import chat_roles

THOUGHT = re.compile(r"<(?P<tag>think|thinking)>(?P<inside>.*?)(?:</(?P=tag)>|\Z)", re.DOTALL)
CALL = re.compile(r"<tool_call>(?P<inside>.*?)(?:</tool_call>|\Z)", re.DOTALL)
RESULT = re.compile(r"<tool_response>\n?(?P<inside>.*?)\n?(?:</tool_response>|\Z)", re.DOTALL)
FAILED = re.compile(r"\A\W*(?:\w*error\b|traceback|exception|failed)", re.IGNORECASE)
REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(slots=True)
class TurnPart:
    """`kind` is text, reasoning, call, or result until it is `paired`; a call has a `name`, arguments in `text`, and a
    `result` once it came."""

    kind: str
    text: str
    name: str = ""
    key: str = ""
    result: str | None = None

    @property
    def failed(self) -> bool:
        return self.result is not None and FAILED.match(self.result[:200]) is not None


@dataclass(slots=True)
class Turn:
    role: str
    parts: list[TurnPart] = field(default_factory=list)

    @property
    def called(self) -> str:
        return chat_roles.format_role_name(self.role)


def build_turns(body: Any) -> list[Turn]:
    """Empty where neither messages nor roles in the text were recorded, nor any reasoning to set apart."""
    found = list(
        build_turns_from_messages(collect_messages(body))
        if body.messages
        else build_turns_from_text(body.prompt, body.response)
    )
    return pair_results_with_calls(found)


def has_turns(body: Any) -> bool:
    """Whether `of` has something that the raw text does not show; cheap."""
    if body.messages:
        return True
    if chat_roles.split_turns(body.prompt):
        return True
    return "<" in body.response and ("</think" in body.response or "<tool_call>" in body.response)


def collect_messages(body: Any) -> list[dict[str, Any]]:
    """The messages, and the response where they are only those of the prompt."""
    messages: list[dict[str, Any]] = body.messages
    answered = messages[-1].get("role") == "assistant"
    return messages if answered or not body.response else [*messages, {"role": "assistant", "content": body.response}]


def build_turns_from_messages(messages: Iterable[dict[str, Any]]) -> Iterator[Turn]:
    """Chat messages as trainers log them."""
    for message in messages:
        role = str(message.get("role", ""))
        content = format_message_content(message.get("content"))
        if role == "tool":
            yield Turn(role, [TurnPart("result", content, key=str(message.get("tool_call_id") or ""))])
            continue
        thought = next((str(message[name]) for name in REASONING if message.get(name)), "")
        parts = [TurnPart("reasoning", thought)] if thought else []
        parts += (
            list(parse_assistant_parts(content)) if role == "assistant" else [TurnPart("text", content)] * bool(content)
        )
        parts += [build_tool_call(one) for one in as_list(message.get("tool_calls")) if isinstance(one, dict)]
        yield Turn(role, parts)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def format_message_content(content: Any) -> str:
    """A message's content as text; pieces of text in a list are put together."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in content):
        return "\n".join(one["text"] for one in content)
    return as_json(content)


def build_turns_from_text(prompt: str, response: str) -> Iterator[Turn]:
    asked = chat_roles.split_turns(prompt)
    if not asked and prompt:
        yield Turn("prompt", [TurnPart("text", prompt)])
    said_before = chat_roles.trim_turn_text(prompt[asked[-1][1] :]) if asked and asked[-1][0] == "assistant" else ""
    for role, start, end in asked[: -1 if asked and asked[-1][0] == "assistant" else None]:
        yield build_turn(role, prompt[start:end])
    for place, (role, start, end) in enumerate(chat_roles.split_turns(response, "assistant")):
        begun = f"{said_before}\n" if said_before and not place else ""
        yield build_turn(role, begun + response[start:end])


def build_turn(role: str, text: str) -> Turn:
    inside = chat_roles.trim_turn_text(text)
    return Turn(role, list(parse_assistant_parts(inside) if role == "assistant" else parse_tool_results(inside)))


def parse_tool_results(text: str) -> Iterator[TurnPart]:
    """What a user or a tool says: results in their marks, and text."""
    at = 0
    for found in RESULT.finditer(text):
        yield from build_text_parts(text[at : found.start()])
        yield TurnPart("result", found["inside"])
        at = found.end()
    yield from build_text_parts(text[at:])


def parse_assistant_parts(text: str) -> Iterator[TurnPart]:
    """What an assistant says: reasoning, calls in their marks, and text. A template may have opened the reasoning in
    the prompt, so its end alone ends one too."""
    end = re.search(r"</think(?:ing)?>", text)
    if end and not re.search(r"<think(?:ing)?>", text[: end.start()]):
        yield TurnPart("reasoning", text[: end.start()].strip("\n"))
        text = text[end.end() :]
    at = 0
    for found in THOUGHT.finditer(text):
        yield from parse_tool_calls(text[at : found.start()])
        yield TurnPart("reasoning", found["inside"].strip("\n"))
        at = found.end()
    yield from parse_tool_calls(text[at:])


def parse_tool_calls(text: str) -> Iterator[TurnPart]:
    at = 0
    for found in CALL.finditer(text):
        yield from build_text_parts(text[at : found.start()])
        yield parse_tool_call(found["inside"])
        at = found.end()
    yield from build_text_parts(text[at:])


def build_text_parts(text: str) -> Iterator[TurnPart]:
    if text.strip():
        yield TurnPart("text", text.strip("\n"))


def parse_tool_call(text: str) -> TurnPart:
    """A call written as JSON in the text; what is no JSON is shown as it stands."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return build_tool_call(value) if isinstance(value, dict) else TurnPart("call", text.strip("\n"), "tool")


def build_tool_call(one: dict[str, Any]) -> TurnPart:
    function = one["function"] if isinstance(one.get("function"), dict) else one
    arguments = function.get("arguments", "")
    text = format_json_arguments(arguments) if isinstance(arguments, str) else format_arguments(arguments)
    return TurnPart("call", text, str(function.get("name", "tool")), str(one.get("id") or ""))


def format_json_arguments(arguments: str) -> str:
    """Arguments that are JSON in a string, laid out."""
    try:
        return format_arguments(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def format_arguments(value: Any) -> str:
    """Real line ends where the only value is code."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return as_json(value)


def pair_results_with_calls(turns: list[Turn]) -> list[Turn]:
    """Results moved to their calls, by id where both have one, else in order; a result that nobody asked for stays."""
    waiting: list[TurnPart] = []
    for turn in turns:
        left = []
        for part in turn.parts:
            if part.kind == "call":
                waiting.append(part)
            if part.kind == "result" and (asked := find_matching_call(waiting, part)):
                asked.result = part.text
                waiting.remove(asked)
                continue
            left.append(TurnPart("text", part.text) if part.kind == "result" else part)
        turn.parts = left
    return [turn for turn in turns if turn.parts]


def find_matching_call(waiting: list[TurnPart], result: TurnPart) -> TurnPart | None:
    named = next((call for call in waiting if result.key and call.key == result.key), None)
    return named or next((call for call in waiting if not (call.key and result.key)), None)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
