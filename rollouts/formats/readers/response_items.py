"""Converts items of OpenAI's Responses API, the input or output of a model, to messages of a conversation."""

from collections.abc import Iterable
from typing import Any

from rollouts.formats.readers.values import JsonObject, get_list
from rollouts.samples import to_json, to_text


def convert_items(items: Iterable[Any]) -> list[JsonObject]:
    """Returns the messages of some items. Reasoning, text and tool calls that follow each other are one message of the
    assistant; the output of a tool is a message of its own. An item of another type is shown as its JSON."""
    messages: list[JsonObject] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = item.get("type") or ("message" if "role" in item else "")
        if kind == "reasoning":
            texts = [
                part["text"] for part in find_parts(item, "summary", "content") if isinstance(part.get("text"), str)
            ]
            answer = continue_answer(
                messages, is_new="content" in find_last(messages) or "tool_calls" in find_last(messages)
            )
            answer["reasoning_content"] = "\n".join(filter(None, [answer.get("reasoning_content"), *texts]))
        elif kind == "message" and item.get("role") == "assistant":
            answer, text = continue_answer(messages), convert_content(item.get("content"))
            previous = answer.get("content")
            both_text = isinstance(previous, str) and isinstance(text, str)
            answer["content"] = f"{previous}\n{text}" if both_text else text
        elif kind == "message":
            messages.append({"role": str(item.get("role")), "content": convert_content(item.get("content"))})
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = continue_answer(messages).setdefault("tool_calls", [])
            calls.append({"id": item.get("call_id"), "type": "function", "function": call})
        elif kind == "function_call_output":
            output = convert_content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        else:
            messages.append({"role": str(kind) or "item", "content": to_json(item)})
    return messages


def find_last(messages: list[JsonObject]) -> JsonObject:
    """Returns the last message if it is the assistant's, else an empty one."""
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else {}


def continue_answer(messages: list[JsonObject], *, is_new: bool = False) -> JsonObject:
    """Returns the message of the assistant that the next item belongs to, a new one if `is_new`."""
    if is_new or not find_last(messages):
        messages.append({"role": "assistant"})
    return messages[-1]


def find_parts(item: JsonObject, *keys: str) -> list[JsonObject]:
    return [part for key in keys for part in get_list(item, key) if isinstance(part, dict)]


def convert_content(content: Any) -> Any:
    """Returns the text of a content whose parts are all text or refusals; else its parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else to_text(content) or ""
    texts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else part for part in content]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else content
