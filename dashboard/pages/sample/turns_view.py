"""A conversation as turns: from the logged messages, else from text with roles.

The result of a tool call is shown next to the call; reasoning is a part of its own.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dashboard.pages.common import ShownImage, build_shown_images
from dashboard.pages.sample import chat_roles
from rollouts.samples import IMAGE_PART_TYPES, SampleImage, continues_answer, list_part_images

REASONING_PATTERN = re.compile(r"<(?P<tag>think|thinking)>(?P<inside>.*?)(?:</(?P=tag)>|\Z)", re.DOTALL)
CALL_PATTERN = re.compile(r"<tool_call>(?P<inside>.*?)(?:</tool_call>|\Z)", re.DOTALL)
RESULT_PATTERN = re.compile(r"<tool_response>\n?(?P<inside>.*?)\n?(?:</tool_response>|\Z)", re.DOTALL)
FAILURE_PATTERN = re.compile(r"\A\W*(?:\w*error\b|traceback|exception|failed)", re.IGNORECASE)
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")

ParseParts = Callable[[str], Iterator["TurnPart"]]


@dataclass(slots=True)
class TurnPart:
    """`kind` is text, reasoning, images, call or, until `pair_results_with_calls`, result. A call has a `name`,
    arguments in `text`, and a `result` if there was one; `key` is its id."""

    kind: str
    text: str
    name: str = ""
    key: str = ""
    result: str | None = None
    images: list[ShownImage] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.result is not None and FAILURE_PATTERN.match(self.result[:200]) is not None


@dataclass(slots=True)
class Turn:
    role: str
    parts: list[TurnPart] = field(default_factory=list)

    @property
    def role_name(self) -> str:
        return chat_roles.format_role_name(self.role)

    @property
    def may_answer(self) -> bool:
        """Whether its text can have the answer of the sample: a system prompt only says how an answer looks."""
        return self.role == "assistant" or self.role not in chat_roles.ROLE_NAMES


def build_turns(body: Any, sample_id: str) -> list[Turn]:
    if body.messages:
        return pair_results_with_calls(build_turns_from_messages(collect_messages(body), sample_id))
    return pair_results_with_calls(build_turns_from_text(body.prompt, body.response))


def has_turns(body: Any) -> bool:
    """Whether `build_turns` shows something that the raw text does not; cheap."""
    if body.messages or chat_roles.split_turns(body.prompt):
        return True
    return "<" in body.response and ("</think" in body.response or "<tool_call>" in body.response)


def collect_messages(body: Any) -> list[dict[str, Any]]:
    """The messages, and the response if they are only those of the prompt: as a message, or behind the first words of
    the answer if the prompt ends with them."""
    messages: list[dict[str, Any]] = body.messages
    if not body.response:
        return messages
    *earlier, last = messages
    if last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": body.response}]
    words, images = split_message_content(last.get("content"), "assistant")
    if not continues_answer(words.strip(), body.prompt or "", body.response):
        return messages
    content = [*last["content"], {"type": "text", "text": body.response}] if images else words + body.response
    return [*earlier, {**last, "content": content}]


def build_turns_from_messages(messages: Iterable[dict[str, Any]], sample_id: str) -> Iterator[Turn]:
    for message in messages:
        role = str(message.get("role", ""))
        content, images = split_message_content(message.get("content"), role)
        image_parts = [TurnPart("images", "", images=build_shown_images(images, sample_id))] if images else []
        if role == "tool":
            yield Turn(role, [TurnPart("result", content, key=str(message.get("tool_call_id") or "")), *image_parts])
            continue
        reasoning = next((str(message[key]) for key in REASONING_KEYS if message.get(key)), "")
        parts = [*image_parts, *([TurnPart("reasoning", reasoning)] if reasoning else [])]
        if role == "assistant":
            parts += parse_assistant_parts(content)
        elif content:
            parts.append(TurnPart("text", content))
        calls = message.get("tool_calls")
        parts += [build_tool_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        yield Turn(role, parts)


def split_message_content(content: Any, role: str) -> tuple[str, list[SampleImage]]:
    """A message's content as text, and its images. A list of texts is joined; the name of an image's type marks its
    place."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        return format_json(content), []
    images = [image for item in content for image in list_part_images(item, role)]
    texts = [f"<{item['type']}>" if item.get("type") in IMAGE_PART_TYPES else item.get("text") for item in content]
    if not all(isinstance(text, str) for text in texts):
        return format_json(content), images
    return "\n".join(texts), images


def build_turns_from_text(prompt: str, response: str) -> Iterator[Turn]:
    turns = chat_roles.split_turns(prompt)
    if not turns and prompt:
        yield Turn("prompt", [TurnPart("text", prompt)])
    begun = ""  # a chat template may have started the assistant's turn in the prompt
    if turns and turns[-1][0] == "assistant":
        begun = chat_roles.trim_turn_text(prompt[turns.pop()[1] :])
    for role, start, end in turns:
        yield build_turn(role, prompt[start:end])
    for role, start, end in chat_roles.split_turns(response, "assistant"):
        yield build_turn(role, (f"{begun}\n" if begun else "") + response[start:end])
        begun = ""


def build_turn(role: str, text: str) -> Turn:
    parse_parts = parse_assistant_parts if role == "assistant" else parse_tool_results
    return Turn(role, list(parse_parts(chat_roles.trim_turn_text(text))))


def parse_assistant_parts(text: str) -> Iterator[TurnPart]:
    """Reasoning, tool calls and text. The tag that opens the reasoning may be in the prompt, so a closing tag alone is
    enough."""
    end = re.search(r"</think(?:ing)?>", text)
    if end and not re.search(r"<think(?:ing)?>", text[: end.start()]):
        yield TurnPart("reasoning", text[: end.start()].strip("\n"))
        text = text[end.end() :]
    yield from split_parts(text, REASONING_PATTERN, lambda text: TurnPart("reasoning", text.strip("\n")), parse_calls)


def parse_calls(text: str) -> Iterator[TurnPart]:
    return split_parts(text, CALL_PATTERN, parse_tool_call, build_text_parts)


def parse_tool_results(text: str) -> Iterator[TurnPart]:
    """The text of a user or a tool: results in their tags, and text."""
    return split_parts(text, RESULT_PATTERN, lambda inside: TurnPart("result", inside), build_text_parts)


def split_parts(
    text: str, pattern: re.Pattern[str], build_part: Callable[[str], TurnPart], parse_rest: ParseParts
) -> Iterator[TurnPart]:
    """The matches of `pattern` as parts, and the text between them as `parse_rest` reads it."""
    at = 0
    for match in pattern.finditer(text):
        yield from parse_rest(text[at : match.start()])
        yield build_part(match["inside"])
        at = match.end()
    yield from parse_rest(text[at:])


def build_text_parts(text: str) -> Iterator[TurnPart]:
    if text.strip():
        yield TurnPart("text", text.strip("\n"))


def parse_tool_call(text: str) -> TurnPart:
    """A call as JSON in the text; anything else is shown unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return build_tool_call(value) if isinstance(value, dict) else TurnPart("call", text.strip("\n"), "tool")


def build_tool_call(call: dict[str, Any]) -> TurnPart:
    function = call["function"] if isinstance(call.get("function"), dict) else call
    arguments = function.get("arguments", "")
    text = format_json_arguments(arguments) if isinstance(arguments, str) else format_arguments(arguments)
    return TurnPart("call", text, str(function.get("name", "tool")), str(call.get("id") or ""))


def format_json_arguments(arguments: str) -> str:
    try:
        return format_arguments(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def format_arguments(value: Any) -> str:
    """A single string argument as it is, since it is often code; all else as JSON."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return format_json(value)


def pair_results_with_calls(turns: Iterable[Turn]) -> list[Turn]:
    """Moves results to their calls: by id if both have one, else in order. A result without a call becomes text."""
    paired = []
    waiting: list[TurnPart] = []
    for turn in turns:
        parts = []
        for part in turn.parts:
            if part.kind == "call":
                waiting.append(part)
            elif part.kind == "result":
                if call := find_matching_call(waiting, part):
                    call.result = part.text
                    waiting.remove(call)
                    continue
                part = TurnPart("text", part.text)
            parts.append(part)
        if parts:
            paired.append(Turn(turn.role, parts))
    return paired


def find_matching_call(waiting: list[TurnPart], result: TurnPart) -> TurnPart | None:
    same_key = next((call for call in waiting if result.key and call.key == result.key), None)
    return same_key or next((call for call in waiting if not (call.key and result.key)), None)


def format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
