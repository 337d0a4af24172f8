"""What a batch of OpenAI's API, or of a server that speaks it (`vllm run-batch`), answers: a request's outcome a line.

| key                                   | becomes                                                                    |
|---------------------------------------|----------------------------------------------------------------------------|
| custom_id                             | group                                                                      |
| body.choices[]                        | a sample each: chat (reasoning, content, tool calls) or `text`; its index  |
| body.output[]                         | the response of `/v1/responses`: what was said and called, item by item    |
| finish_reason, incomplete_details     | finish reason; truncated                                                   |
| model, usage                          | kept with the first choice                                                 |

The prompts are in the file of the requests and not in this one. A request that failed is left out and counted. Sources:
`BatchRequestOutput` in vllm/entrypoints/openai/run_batch.py of vllm-project/vllm; "Batch" in OpenAI's API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import chat
from rollouts.formats.readers.jsonl import read_jsonl_rows, render_content
from rollouts.samples import LineProblem, Record, SkippedRow, to_integer, to_text

name = "openai-batch"

HEAD = re.compile(rb'\s*\{[^\n]{0,2000}?"custom_id"\s*:')
ANSWERED = re.compile(rb'"response"\s*:\s*(?:null|\{\s*"(?:status_code|request_id|body)")')
CUT = ("length", "max_output_tokens")

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and bool(ANSWERED.search(head.partition(b"\n")[0]))


def read(stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Records in the order of the lines. Raises UnreadableDump when no line holds an object."""
    for found in read_jsonl_rows(stream):
        if isinstance(found, LineProblem):
            yield found
            continue
        line, row = found
        if why := failed(row):
            yield SkippedRow(why)
            continue
        body = part(part(row, "response"), "body")
        made = list(samples(body))
        if not made:
            yield LineProblem(line, "has neither `choices` nor an `output` that says something")
        for record in made[:1]:  # they are of the request; told with each choice they would count, and weigh, n times
            record.extras |= {key: body[key] for key in ("model", "usage") if body.get(key)}
        for record in made:
            record.group = to_text(row.get("custom_id"))
            record.extras |= {} if told.step is not None else {"step": 0}
            yield record


def failed(row: Thing) -> str:
    """What came of a request instead of an answer; empty where it was answered."""
    status = to_integer(part(row, "response").get("status_code"))
    if status is not None and status >= 400:
        return f"a request that was answered with status {status}"
    if row.get("error") and not part(part(row, "response"), "body"):
        code = part(row, "error").get("code")
        return f"a request that failed: {code[:60]}" if isinstance(code, str) else "a request that failed"
    return ""


def samples(body: Thing) -> Iterator[Record]:
    choices, output = body.get("choices"), body.get("output")
    for place, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict):
            at = to_integer(choice.get("index"))
            yield ended(Record("", said(choice), index=place if at is None else at), choice.get("finish_reason"))
    if isinstance(output, list) and not choices:
        text = "\n".join(filter(None, map(item, output)))
        yield ended(Record("", text, index=0), part(body, "incomplete_details").get("reason") or body.get("status"))


def said(choice: Thing) -> str:
    message = choice.get("message")
    return chat.render_message(message) if isinstance(message, dict) else render_content(choice.get("text"))


def item(value: Any) -> str:
    """What one item of an `output` says: reasoning, a message, a call."""
    if not isinstance(value, dict):
        return render_content(value)
    if value.get("type") == "reasoning":
        thought = render_content(value.get("summary") or value.get("content"))
        return f"<think>\n{thought}\n</think>" if thought else ""
    if value.get("type") == "function_call":
        return chat.render_tool_call(value)
    return render_content(value["content"]) if value.get("content") is not None else f"<{value.get('type', 'item')}>"


def ended(made: Record, reason: Any) -> Record:
    made.finish_reason = to_text(reason)
    made.truncated = made.finish_reason in CUT if made.finish_reason else None
    return made


def part(value: Thing, key: str) -> Thing:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}
