"""Renders the messages of a conversation as the two texts of a sample: prompt and response."""

from collections.abc import Sequence
from typing import Any

from rolloutdeck.protocol import is_conversation, is_message, normalize_messages
from rollouts.formats.readers.jsonl import parse_prompt, parse_response_text, render_content
from rollouts.formats.readers.values import JsonObject, get_list
from rollouts.samples import to_json

__all__ = [
    "find_response_start", "is_conversation", "is_message", "normalize_messages", "parse_prompt_response",
    "render_conversation", "render_message", "render_prompt", "render_response", "render_tool_call", "render_turn",
]  # fmt: skip

REASONING_KEYS = ("reasoning_content", "reasoning")


def render_message(message: JsonObject) -> str:
    """Renders reasoning, content and tool calls of a message as chat templates do."""
    thought = next((message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)), "")
    texts = [f"<think>\n{thought}\n</think>"] if thought else []
    texts += [text] if (text := render_content(message.get("content"))) else []
    texts += map(render_tool_call, get_list(message, "tool_calls"))
    return "\n".join(texts)


def render_tool_call(call: Any) -> str:
    """Renders a tool call. Its arguments are the JSON that the model wrote."""
    inner = call.get("function") if isinstance(call, dict) else None
    function = inner if isinstance(inner, dict) else call
    if not isinstance(function, dict):
        return f"<tool_call>\n{to_json(function)}\n</tool_call>"
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else to_json(arguments)
    return f'<tool_call>\n{{"name": {to_json(function.get("name"))}, "arguments": {written}}}\n</tool_call>'


def render_turn(message: JsonObject) -> str:
    return f"{message['role']}\n{render_message(message)}"


def render_prompt(messages: Sequence[JsonObject]) -> str:
    """Renders a prompt as its decoded text: a line with the role, then the message; `assistant` at the end."""
    lines = "".join(f"{render_turn(message)}\n" for message in messages)
    return f"{lines}assistant\n" if messages and messages[-1]["role"] != "assistant" else lines


def render_response(messages: Sequence[JsonObject]) -> str:
    """Renders a response: the first answer of the assistant without its role, every other message with its role."""
    if not messages:
        return ""
    first, *rest = messages
    start = render_message(first) if first["role"] == "assistant" else render_turn(first)
    return "\n".join([start, *map(render_turn, rest)])


def render_conversation(messages: Sequence[JsonObject], start: int | None = None) -> tuple[str, str]:
    """Returns (prompt, response) of a conversation. `start`: the first message of the response, if it is known."""
    start = find_response_start(messages) if start is None else start
    return render_prompt(messages[:start]), render_response(messages[start:])


def parse_prompt_response(prompt: Any, response: Any) -> tuple[str, str, list[JsonObject] | None]:
    """Returns the texts of prompt and response, each text or messages, and the messages if the prompt has them. They
    include those of a response that is more than one text (turns, tool calls, reasoning). Raises ValueError."""
    prompt_text, messages = parse_prompt(prompt)
    if not response or not is_conversation(response):
        return prompt_text, parse_response_text(response), messages
    text = render_response(response)
    is_text_only = response == [{"role": "assistant", "content": text}]
    return prompt_text, text, messages if is_text_only or messages is None else [*messages, *response]


def find_response_start(messages: Sequence[JsonObject]) -> int:
    """Returns the position of the first message of the assistant after the first message of the user."""
    user = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0)
    answers = (i for i, message in enumerate(messages) if i >= user and message["role"] == "assistant")
    return next(answers, len(messages))
