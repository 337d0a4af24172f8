"""Samples as training data: a prompt and a completion, as text or as messages.

The columns are the usual ones of trainers: language modeling, prompt-completion, preference and unpaired preference.
See "Export samples and training data" in docs/user-guide.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, NamedTuple

from rollouts.samples import continues_answer, to_json

EXAMPLE_COLUMNS: Final = ["prompt", "response", "messages", "tools"]  # of the body, as in `Texts`
TEXT_KEYS: Final = ("name", "tool_call_id")
REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")  # of which trainers use one

Message = dict[str, Any]


class Texts(NamedTuple):
    """What was recorded of a sample."""

    prompt: str
    response: str
    messages: Any = None
    tools: Any = None


@dataclass(frozen=True, slots=True)
class Example:
    """`prompt` and `completion` are both texts or both lists of messages. `tools` is JSON text."""

    prompt: Any
    completion: Any
    tools: str | None = None
    images: int = 0  # that were left out

    @property
    def is_conversation(self) -> bool:
        return isinstance(self.prompt, list)

    def replace_completion(self, text: str) -> Example:
        """Returns the example with another answer."""
        completion = [{"role": "assistant", "content": text}] if self.is_conversation else text
        return Example(self.prompt, completion, self.tools)


def build_example(body: Texts, *, as_messages: bool) -> Example:
    if not as_messages:
        return Example(body.prompt, body.response)
    messages, images = collect_messages(body)
    starts = [at for at, message in enumerate(messages) if message["role"] not in ("assistant", "tool")]
    start = starts[-1] + 1 if starts else 0
    tools = to_json(body.tools) if body.tools else None
    return Example(messages[:start], messages[start:], tools, images)


def share_prompt(first: Example, second: Example) -> tuple[Example, Example]:
    """Returns two conversations with one prompt: the messages that both begin with, up to an answer. Turns of a user
    who reacts to answers differ. Without common messages the prompts stay different."""
    if first.prompt == second.prompt or not first.is_conversation:
        return first, second
    messages, others = [*first.prompt, *first.completion], [*second.prompt, *second.completion]
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(messages, others, strict=False))
    end = sum(1 for _pair in equal)
    while end and messages[end - 1]["role"] in ("assistant", "tool"):
        end -= 1
    if not end:
        return first, second
    return (
        replace(first, prompt=messages[:end], completion=messages[end:]),
        replace(second, prompt=messages[:end], completion=others[end:]),
    )


def collect_messages(body: Texts) -> tuple[list[Message], int]:
    """Returns the recorded conversation, else the prompt as the message of a user, with the number of images that are
    left out."""
    if not body.messages:
        return [{"role": "user", "content": body.prompt}, {"role": "assistant", "content": body.response}], 0
    clean = [clean_message(message) for message in body.messages]
    messages = [message for message, _images in clean]
    if body.response and messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": body.response})
    elif body.response and continues_answer(messages[-1]["content"].strip(), body.prompt or "", body.response):
        messages[-1]["content"] += body.response
    return messages, sum(images for _message, images in clean)


def clean_message(message: Message) -> tuple[Message, int]:
    """Returns a message with text only. Arguments of tool calls are JSON text, as in OpenAI's API: calls of different
    tools have no common columns."""
    content, images = join_content(message.get("content"))
    cleaned: Message = {"role": str(message.get("role", "")), "content": content}
    cleaned |= {key: str(message[key]) for key in TEXT_KEYS if message.get(key)}
    if thought := next((join_content(message[key])[0] for key in REASONING_KEYS if message.get(key)), ""):
        cleaned["reasoning_content"] = thought
    if calls := clean_tool_calls(message.get("tool_calls")):
        cleaned["tool_calls"] = calls
    return cleaned, images


def join_content(content: Any) -> tuple[str, int]:
    if content is None or isinstance(content, str):
        return content or "", 0
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
        return "\n".join(texts), len(content) - len(texts)
    return to_json(content), 0


def clean_tool_calls(calls: Any) -> list[Message]:
    if not isinstance(calls, list):
        return []
    return [clean_tool_call(call) for call in calls if isinstance(call, dict)]


def clean_tool_call(call: Message) -> Message:
    function = call.get("function") if isinstance(call.get("function"), dict) else call
    assert isinstance(function, dict)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": text},
    }


def flatten(messages: Any) -> str:
    """Returns a text or messages as one text, to compare them."""
    if isinstance(messages, str):
        return messages
    return "\n".join(map(flatten_message, messages))


def flatten_message(message: Message) -> str:
    thought = f"<think>{message['reasoning_content']}</think> " if "reasoning_content" in message else ""
    return f"{message['role']}: {thought}{message['content']} {join_calls(message)}".rstrip()


def join_calls(message: Message) -> str:
    calls: Iterable[Message] = message.get("tool_calls", ())
    return " ".join(f"{call['function']['name']}({call['function']['arguments']})" for call in calls)
