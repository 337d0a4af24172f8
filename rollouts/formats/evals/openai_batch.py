"""The output of a batch of the OpenAI API, or of a compatible server (`vllm run-batch`): one line per request.

| key                                   | becomes                                                                    |
|---------------------------------------|----------------------------------------------------------------------------|
| custom_id                             | group                                                                      |
| body.choices[]                        | a sample each: chat (reasoning, content, tool calls) or `text`; its index  |
| body.output[]                         | the response of `/v1/responses`: texts and calls, item by item             |
| finish_reason, incomplete_details     | finish reason; truncated                                                   |
| model, usage                          | extras of the first choice                                                 |

The prompts are only in the file of the requests. A request that failed is skipped and counted. Sources:
`BatchRequestOutput` in vllm/entrypoints/openai/run_batch.py of vllm-project/vllm; "Batch" in OpenAI's API reference.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, chat, get_list, get_object, read_jsonl_rows, render_content
from rollouts.samples import LineProblem, Record, SkippedRow, to_integer, to_text

name = "openai-batch"

HEAD = re.compile(rb'\s*\{[^\n]{0,2000}?"custom_id"\s*:')
ANSWERED = re.compile(rb'"response"\s*:\s*(?:null|\{\s*"(?:status_code|request_id|body)")')
LENGTH_REASONS = ("length", "max_output_tokens")


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and bool(ANSWERED.search(head.partition(b"\n")[0]))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield item
            continue
        line, row = item
        if reason := describe_failure(row):
            yield SkippedRow(reason)
            continue
        body = get_object(get_object(row, "response"), "body")
        records = list(build_samples(body))
        if not records:
            yield LineProblem(line, "has neither `choices` nor an `output` with text")
        for record in records[:1]:  # per request: stored with each choice they would be counted n times
            record.extras |= {key: body[key] for key in ("model", "usage") if body.get(key)}
        for record in records:
            record.group = to_text(row.get("custom_id"))
            record.extras |= {} if context.step is not None else {"step": 0}
            yield record


def describe_failure(row: JsonObject) -> str:
    """Returns why a request has no response; empty if it has one."""
    status = to_integer(get_object(row, "response").get("status_code"))
    if status is not None and status >= 400:
        return f"a request that was answered with status {status}"
    if row.get("error") and not get_object(get_object(row, "response"), "body"):
        code = get_object(row, "error").get("code")
        return f"a request that failed: {code[:60]}" if isinstance(code, str) else "a request that failed"
    return ""


def build_samples(body: JsonObject) -> Iterator[Record]:
    for position, choice in enumerate(get_list(body, "choices")):
        if isinstance(choice, dict):
            message, index = choice.get("message"), to_integer(choice.get("index"))
            text = chat.render_message(message) if isinstance(message, dict) else render_content(choice.get("text"))
            yield build_record(text, position if index is None else index, choice.get("finish_reason"))
    if isinstance(body.get("output"), list) and not body.get("choices"):
        text = "\n".join(filter(None, map(render_item, body["output"])))
        yield build_record(text, 0, get_object(body, "incomplete_details").get("reason") or body.get("status"))


def build_record(text: str, index: int, reason: Any) -> Record:
    record = Record("", text, index=index, finish_reason=to_text(reason))
    record.truncated = record.finish_reason in LENGTH_REASONS if record.finish_reason else None
    return record


def render_item(value: Any) -> str:
    """Renders one item of an `output`: reasoning, a message, a call."""
    if not isinstance(value, dict):
        return render_content(value)
    if value.get("type") == "reasoning":
        thought = render_content(value.get("summary") or value.get("content"))
        return f"<think>\n{thought}\n</think>" if thought else ""
    if value.get("type") == "function_call":
        return chat.render_tool_call(value)
    return render_content(value["content"]) if value.get("content") is not None else f"<{value.get('type', 'item')}>"
