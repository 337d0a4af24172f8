"""Keys of prompts and responses, by which a trainer and the server recognize the same text in another step or run."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from rolloutdeck.protocol.sample_texts import is_conversation

KEY_CHARS = 26

# Special tokens that chat templates put around turns. A decode without special tokens leaves only the text between.
TURN_TOKEN = re.compile(
    r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>|<\|begin_of_text\|>|<\|eot_id\|>|<\|start_header_id\|>|<\|end_header_id\|>"
)
ROLES = ("system", "user", "assistant", "tool")
# System prompts that chat templates add if the caller gives none.
DEFAULT_SYSTEM_PROMPTS = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
)


def get_prompt_key(prompt: Any) -> str:
    """Returns the key of a prompt that is text or messages, as the server computes it; "" for anything else."""
    if isinstance(prompt, str):
        return compute_prompt_key(prompt)
    turns = [_render_turn(message) for message in prompt] if is_conversation(prompt) else []
    if not turns or any(turn is None for turn in turns):
        return ""
    end = "" if prompt[-1]["role"] == "assistant" else "assistant\n"
    return compute_prompt_key("".join(map(str, turns)) + end)


def get_response_key(response: Any) -> str:
    """Returns the key of a response that is text, or one message with nothing but text; "" for anything else."""
    if isinstance(response, str):
        return compute_response_key(response)
    message = response[0] if is_conversation(response) and len(response) == 1 else {}
    is_text = message.get("role") == "assistant" and not any(
        value for name, value in message.items() if name not in ("role", "content")
    )
    text = render_text(message.get("content")) if is_text else None
    return "" if text is None else compute_response_key(text)


def _render_turn(message: Mapping[str, Any]) -> str | None:
    text = render_text(message.get("content"))
    return None if text is None else f"{message['role']}\n{text}\n"


def render_text(content: Any) -> str | None:
    """Returns the content of a message as text; a part without text becomes its type, such as `<image>`. None if it is
    neither text nor parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, (str, dict)) for part in content):
        return None
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    return "".join(
        part["text"] if isinstance(part.get("text"), str) else f"<{part.get('type', 'part')}>" for part in parts
    )


def compute_response_key(response: str) -> str:
    """Returns 26 characters that are equal for equal responses."""
    return _encode_digest(response)


def compute_prompt_key(prompt: str) -> str:
    """Returns 26 characters that are equal for equal prompts, compared after `normalize_prompt`."""
    return _encode_digest(normalize_prompt(prompt))


def _encode_digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest)[:KEY_CHARS].decode().lower()


def normalize_prompt(prompt: str) -> str:
    """Normalizes a prompt for comparison: NFC, white space collapsed, chat turns as a `role` line and text.

    Removes the special tokens of chat templates, the empty assistant turn at the end and the default system prompt of
    a template. A single user turn is equal to its bare text.
    """
    text = TURN_TOKEN.sub("\n", prompt) if "<|" in prompt else prompt
    if text.lstrip().startswith(ROLES) or text.rstrip().endswith("assistant"):
        text = "\n".join(strip_template_lines([line for line in text.split("\n") if line.strip()]))
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def strip_template_lines(lines: list[str]) -> list[str]:
    """Removes the lines of a chat that a template adds. Other lines are unchanged."""
    roles = [line.strip() if line.strip() in ROLES else "" for line in lines]
    if roles and roles[-1] == "assistant":
        lines, roles = lines[:-1], roles[:-1]
    if len(lines) > 2 and roles[0] == "system" and roles[2] and lines[1].strip() in DEFAULT_SYSTEM_PROMPTS:
        lines, roles = lines[2:], roles[2:]
    if roles and roles[0] == "user" and not any(roles[1:]):
        lines = lines[1:]
    return lines
