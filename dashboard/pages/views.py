"""The ways to read a response: raw as it was written, with math and Markdown, as turns, as tokens, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

from dashboard.pages.text import HALF, shielded
from rollouts import decoding
from rollouts.models import Run

MOST_RENDERED = 200_000
WINDOW = 2000

# Images never load from elsewhere, links stay text: both would tell a stranger that somebody reads this.
TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "span",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
MATH = ("\\[", "\\]", "\\(", "\\)")


@dataclass(frozen=True, slots=True)
class View:
    name: str
    key: str


def offered(body: Any) -> list[View]:
    """The views that this sample has data for; `t` opens turns, or tokens where there are no turns."""
    turns = [View("turns", "t")] if body.messages else []
    tokens = [View("tokens", "" if turns else "t")] if body.response_ids else []
    math = [] if body.textless else [View("math", "m")]
    return [View("raw", "r"), *math, *turns, *tokens, View("json", "i")]


def shown(body: Any, wanted: str, start: int, run: Run) -> dict[str, Any]:
    """What the template of the wanted view needs; raw where the sample has no data for it."""
    views = offered(body)
    view = wanted if any(one.name == wanted for one in views) else "raw"
    extra: dict[str, Any] = {}
    if view == "math":
        extra["rendered"] = rendered(body.response)
    elif view == "turns":
        extra["turns"] = [turn(message) for message in talk(body)]
    elif view == "tokens":
        extra["tokens"] = tokens(body, start, run)
    elif view == "json":
        extra["whole"] = whole(body)
    template = f"sample/{view}.html"
    if view == "raw" and body.textless:
        template, extra["command"] = "sample/textless.html", decoding.command_for(run)
    return {"views": views, "view": view, "response_template": template, **extra}


def rendered(text: str) -> SafeString:
    """Markdown as HTML, sanitised. Headings keep their `#`, since on some tasks `####` is what the reward looks for."""
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True}).enable(
        ["table", "strikethrough"]
    )
    markdown.disable(["heading", "lheading", "image", "link", "autolink", "html_block", "html_inline", "entity"])
    html = markdown.render(kept_math(HALF.sub("\ufffd", text[:MOST_RENDERED])))
    cut = "" if len(text) <= MOST_RENDERED else f"<p>… cut after {MOST_RENDERED:,} characters; raw shows all.</p>"
    return mark_safe(shielded(nh3.clean(html + cut, tags=TAGS, attributes={})))


def kept_math(text: str) -> str:
    """Doubles the backslash before math brackets, which Markdown would otherwise take for an escape."""
    for mark in MATH:
        text = text.replace(mark, "\\" + mark)
    return text


def talk(body: Any) -> list[dict[str, Any]]:
    """The messages, and the response where they are only those of the prompt."""
    messages: list[dict[str, Any]] = body.messages
    answered = messages[-1].get("role") == "assistant"
    return messages if answered or not body.response else [*messages, {"role": "assistant", "content": body.response}]


def turn(message: dict[str, Any]) -> dict[str, Any]:
    """{role, text, calls: [{name, arguments}]} of a chat message as trainers log them."""
    content = message.get("content")
    calls = message.get("tool_calls") or []
    return {
        "role": str(message.get("role", "")),
        "text": content if isinstance(content, str) else "" if content is None else as_json(content),
        "calls": [call(one) for one in calls if isinstance(one, dict)],
    }


def call(one: dict[str, Any]) -> dict[str, str]:
    function = one.get("function") if isinstance(one.get("function"), dict) else one
    arguments = function.get("arguments", "")  # type: ignore[union-attr]
    return {
        "name": str(function.get("name", "tool")),  # type: ignore[union-attr]
        "arguments": unfolded(arguments) if isinstance(arguments, str) else as_json(arguments),
    }


def unfolded(arguments: str) -> str:
    """Arguments that are JSON in a string, laid out; real line ends where a value is code."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return as_json(value)


def tokens(body: Any, start: int, run: Run) -> dict[str, Any]:
    """A window of `WINDOW` tokens with what was recorded of each: log-probs in nats, mask, advantage. `text` is that
    of the token by itself, where the run's tokenizer is known."""
    count = len(body.response_ids)
    start = min(start, max(count - 1, 0)) // WINDOW * WINDOW
    end = min(start + WINDOW, count)
    columns = {
        "logprob": body.logprobs,
        "reference": body.ref_logprobs,
        "advantage": body.advantages,
        "mask": body.response_mask,
    }
    there = {name: values for name, values in columns.items() if values}
    texts = decoding.pieces_of(run, body.response_ids[start:end]) or []
    return {
        "texts": bool(texts), "prompt": len(body.prompt_ids or ()),
        "count": count, "start": start, "end": end - 1, "columns": list(there),
        "before": start - WINDOW if start else None, "after": end if end < count else None,
        "rows": [
            {**token(body, at, there), "text": texts[at - start] if texts else ""} for at in range(start, end)
        ],
    }  # fmt: skip


def token(body: Any, at: int, there: dict[str, list[Any]]) -> dict[str, Any]:
    values = [values[at] if at < len(values) else None for values in there.values()]
    logprob = body.logprobs[at] if body.logprobs and at < len(body.logprobs) else None
    return {
        "at": at,
        "id": body.response_ids[at],
        "values": [short(value) for value in values],
        "surprise": surprise(logprob),
    }


def short(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def surprise(logprob: float | None) -> int:
    """0 to 3: how unlikely the token was when it was sampled (p under 0.5, 0.1, 0.01)."""
    if logprob is None:
        return 0
    return sum(logprob < limit for limit in (-0.693, -2.303, -4.605))


def whole(body: Any) -> str:
    """Every field that was recorded, as JSON."""
    names = [name for name in type(body).__dataclass_fields__ if name not in ("seen_in", "textless")]
    found = {name: getattr(body, name) for name in names}
    return as_json({name: value for name, value in found.items() if value not in (None, {}, [])})


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
