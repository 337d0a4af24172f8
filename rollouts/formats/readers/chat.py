"""Messages of a conversation as the two texts of a sample: what was asked, and what the model said to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollouts.formats.readers.jsonl import parse_prompt, parse_response_text, render_content
from rollouts.samples import to_json

REASONING = ("reasoning_content", "reasoning")

# Who speaks in conversations as ShareGPT has them; every other name is a role.
SPEAKERS = {
    "human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "function_call": "assistant", "observation": "tool",
    "function_response": "tool", "function": "tool",
}  # fmt: skip

Message = dict[str, Any]


def is_conversation(value: Any) -> bool:
    """Whether it is a list of messages with roles."""
    return isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in value)


def normalize_messages(value: Any) -> Any:
    """Messages with roles of a conversation as ShareGPT has it (`from`, `value`), or in which answers stand as OpenAI's
    choices; every other value as it is."""
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        return value
    if all(isinstance(one.get("from"), str) and "value" in one for one in value):
        return [
            {"role": SPEAKERS.get(one["from"], one["from"]), "content": one["value"]}
            | {key: inner for key, inner in one.items() if key not in ("from", "value")}
            for one in value
        ]
    return [one["message"] if isinstance(one.get("message"), dict) else one for one in value]


def render_message(message: Message) -> str:
    """All that a message says: its reasoning, its content, the tools that it calls, as chat templates write them."""
    thought = next((message[name] for name in REASONING if isinstance(message.get(name), str)), "")
    calls = message.get("tool_calls")
    texts = [f"<think>\n{thought}\n</think>"] if thought else []
    texts += [text] if (text := render_content(message.get("content"))) else []
    texts += [render_tool_call(call) for call in calls] if isinstance(calls, list) else []
    return "\n".join(texts)


def render_tool_call(call: Any) -> str:
    """A call of a tool: arguments are the JSON that the model wrote."""
    inner = call.get("function") if isinstance(call, dict) else None
    one = inner if isinstance(inner, dict) else call
    if not isinstance(one, dict):
        return f"<tool_call>\n{to_json(one)}\n</tool_call>"
    arguments = one.get("arguments")
    written = arguments if isinstance(arguments, str) else to_json(arguments)
    return f'<tool_call>\n{{"name": {to_json(one.get("name"))}, "arguments": {written}}}\n</tool_call>'


def render_prompt(messages: Sequence[Message]) -> str:
    """A prompt, as its decoded text reads: a line with the role, then what was said; `assistant` at the end."""
    lines = "".join(f"{message['role']}\n{render_message(message)}\n" for message in messages)
    return f"{lines}assistant\n" if messages and messages[-1]["role"] != "assistant" else lines


def render_response(messages: Sequence[Message]) -> str:
    """A response: what the one message says, or turn by turn, each with its role, where others stand between."""
    if not messages:
        return ""
    if len(messages) == 1 and messages[0]["role"] == "assistant":
        return render_message(messages[0])
    first, *rest = messages
    begun = render_message(first) if first["role"] == "assistant" else f"{first['role']}\n{render_message(first)}"
    return "\n".join([begun, *(f"{message['role']}\n{render_message(message)}" for message in rest)])


def parse_prompt_response(prompt: Any, response: Any) -> tuple[str, str, list[Message] | None]:
    """Texts of a prompt and a response, each a text or messages, and the messages that are known. Those of a response
    that says more than its text (turns, tool calls, reasoning) are among them. Raises ValueError."""
    asks, known = parse_prompt(prompt)
    if not response or not is_conversation(response):
        return asks, parse_response_text(response), known
    text = render_response(response)
    plain = response == [{"role": "assistant", "content": text}]
    return asks, text, known if plain or known is None else [*known, *response]


def find_response_start(messages: Sequence[Message]) -> int:
    """Where the response begins: at the first message that the assistant says after the first user's."""
    user = next((at for at, message in enumerate(messages) if message["role"] == "user"), 0)
    answers = (at for at, message in enumerate(messages) if at >= user and message["role"] == "assistant")
    return next(answers, len(messages))
