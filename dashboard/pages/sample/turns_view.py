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
class Part:
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
    parts: list[Part] = field(default_factory=list)

    @property
    def called(self) -> str:
        return chat_roles.called(self.role)


def of(body: Any) -> list[Turn]:
    """Empty where neither messages nor roles in the text were recorded, nor any reasoning to set apart."""
    found = list(from_messages(talk(body)) if body.messages else from_text(body.prompt, body.response))
    return paired(found)


def are_there(body: Any) -> bool:
    """Whether `of` has something that the raw text does not show; cheap."""
    if body.messages:
        return True
    if chat_roles.split(body.prompt):
        return True
    return "<" in body.response and ("</think" in body.response or "<tool_call>" in body.response)


def talk(body: Any) -> list[dict[str, Any]]:
    """The messages, and the response where they are only those of the prompt."""
    messages: list[dict[str, Any]] = body.messages
    answered = messages[-1].get("role") == "assistant"
    return messages if answered or not body.response else [*messages, {"role": "assistant", "content": body.response}]


def from_messages(messages: Iterable[dict[str, Any]]) -> Iterator[Turn]:
    """Chat messages as trainers log them."""
    for message in messages:
        role = str(message.get("role", ""))
        content = said(message.get("content"))
        if role == "tool":
            yield Turn(role, [Part("result", content, key=str(message.get("tool_call_id") or ""))])
            continue
        thought = next((str(message[name]) for name in REASONING if message.get(name)), "")
        parts = [Part("reasoning", thought)] if thought else []
        parts += list(parts_of(content)) if role == "assistant" else [Part("text", content)] * bool(content)
        parts += [call(one) for one in listed(message.get("tool_calls")) if isinstance(one, dict)]
        yield Turn(role, parts)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def said(content: Any) -> str:
    """A message's content as text; pieces of text in a list are put together."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in content):
        return "\n".join(one["text"] for one in content)
    return as_json(content)


def from_text(prompt: str, response: str) -> Iterator[Turn]:
    asked = chat_roles.split(prompt)
    if not asked and prompt:
        yield Turn("prompt", [Part("text", prompt)])
    said_before = chat_roles.trimmed(prompt[asked[-1][1] :]) if asked and asked[-1][0] == "assistant" else ""
    for role, start, end in asked[: -1 if asked and asked[-1][0] == "assistant" else None]:
        yield turn(role, prompt[start:end])
    for place, (role, start, end) in enumerate(chat_roles.split(response, "assistant")):
        begun = f"{said_before}\n" if said_before and not place else ""
        yield turn(role, begun + response[start:end])


def turn(role: str, text: str) -> Turn:
    inside = chat_roles.trimmed(text)
    return Turn(role, list(parts_of(inside) if role == "assistant" else results(inside)))


def results(text: str) -> Iterator[Part]:
    """What a user or a tool says: results in their marks, and text."""
    at = 0
    for found in RESULT.finditer(text):
        yield from words(text[at : found.start()])
        yield Part("result", found["inside"])
        at = found.end()
    yield from words(text[at:])


def parts_of(text: str) -> Iterator[Part]:
    """What an assistant says: reasoning, calls in their marks, and text. A template may have opened the reasoning in
    the prompt, so its end alone ends one too."""
    end = re.search(r"</think(?:ing)?>", text)
    if end and not re.search(r"<think(?:ing)?>", text[: end.start()]):
        yield Part("reasoning", text[: end.start()].strip("\n"))
        text = text[end.end() :]
    at = 0
    for found in THOUGHT.finditer(text):
        yield from calls(text[at : found.start()])
        yield Part("reasoning", found["inside"].strip("\n"))
        at = found.end()
    yield from calls(text[at:])


def calls(text: str) -> Iterator[Part]:
    at = 0
    for found in CALL.finditer(text):
        yield from words(text[at : found.start()])
        yield told(found["inside"])
        at = found.end()
    yield from words(text[at:])


def words(text: str) -> Iterator[Part]:
    if text.strip():
        yield Part("text", text.strip("\n"))


def told(text: str) -> Part:
    """A call written as JSON in the text; what is no JSON is shown as it stands."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return call(value) if isinstance(value, dict) else Part("call", text.strip("\n"), "tool")


def call(one: dict[str, Any]) -> Part:
    function = one["function"] if isinstance(one.get("function"), dict) else one
    arguments = function.get("arguments", "")
    text = unfolded(arguments) if isinstance(arguments, str) else laid_out(arguments)
    return Part("call", text, str(function.get("name", "tool")), str(one.get("id") or ""))


def unfolded(arguments: str) -> str:
    """Arguments that are JSON in a string, laid out."""
    try:
        return laid_out(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def laid_out(value: Any) -> str:
    """Real line ends where the only value is code."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return as_json(value)


def paired(turns: list[Turn]) -> list[Turn]:
    """Results moved to their calls, by id where both have one, else in order; a result that nobody asked for stays."""
    waiting: list[Part] = []
    for turn in turns:
        left = []
        for part in turn.parts:
            if part.kind == "call":
                waiting.append(part)
            if part.kind == "result" and (asked := match(waiting, part)):
                asked.result = part.text
                waiting.remove(asked)
                continue
            left.append(Part("text", part.text) if part.kind == "result" else part)
        turn.parts = left
    return [turn for turn in turns if turn.parts]


def match(waiting: list[Part], result: Part) -> Part | None:
    named = next((call for call in waiting if result.key and call.key == result.key), None)
    return named or next((call for call in waiting if not (call.key and result.key)), None)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
