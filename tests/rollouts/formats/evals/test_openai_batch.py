"""Answers of batches of OpenAI's API. A complete file, written with OpenAI's own types: data/others/batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import select_format
from rollouts.formats.evals import openai_batch
from rollouts.samples.record import LineProblem, Record, SkippedRow
from tests.rollouts.support.trainer_dumps import DATA, read_items

WHOLE = DATA / "others" / "batch" / "batch_68a1_output.jsonl"


def encode_line(body: Any, **more: Any) -> bytes:
    answer = {"status_code": 200, "request_id": "r", "body": body}
    return json.dumps({"id": "1", "custom_id": "q-7", "response": answer, "error": None, **more}).encode() + b"\n"


def test_each_choice_is_a_sample_of_its_request_and_failures_are_counted() -> None:
    result = read_items(openai_batch, WHOLE.read_bytes())
    created = [item for item in result if isinstance(item, Record)]
    assert [(item.group, item.index, item.finish_reason, item.truncated) for item in created] == [
        ("q-0", 0, "stop", False), ("q-0", 1, "length", True), ("q-1", 0, "tool_calls", False),
        ("q-2", 0, "stop", False), ("q-3", 0, "max_output_tokens", True),
    ]  # fmt: skip
    assert created[2].response == '<tool_call>\n{"name": "times", "arguments": {"a": 6}}\n</tool_call>'
    assert created[4].response.startswith("<think>\nhm\n</think>\n42\n<tool_call>")
    assert [item.reason for item in result if isinstance(item, SkippedRow)] == [
        "a request that was answered with status 429", "a request that failed: batch_expired",
    ]  # fmt: skip


def test_the_usage_of_a_request_is_stored_once() -> None:
    body = {"model": "m", "usage": {"total_tokens": 9}, "choices": [{"text": "a"}, {"text": "b"}]}
    first, second = read_items(openai_batch, encode_line(body))
    assert (first.extras, second.extras) == ({"model": "m", "usage": {"total_tokens": 9}}, {})


@pytest.mark.parametrize("name", ["out.jsonl", "requests.jsonl", "batch.jsonl"])
def test_answers_are_recognised_by_their_content_and_requests_are_refused(name: str) -> None:
    assert select_format(name, encode_line({"choices": []})).name == "openai-batch"
    assert select_format(name, encode_line(None, response=None, error={"code": "x"})).name == "openai-batch"
    requested = {"custom_id": "q-7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
    with pytest.raises(UnreadableDumpError):
        select_format(name, json.dumps(requested).encode())


@pytest.mark.parametrize(
    "body", [None, [], {"data": [{"embedding": [0.5]}]}, {"choices": {}}, {"choices": [5, None]}, {"output": "text"}]
)
def test_an_answer_without_output_is_reported_and_the_others_are_kept(body: Any) -> None:
    good = encode_line({"choices": [{"text": "x"}]})
    problem, record = read_items(openai_batch, encode_line(body) + good, step=None)
    assert isinstance(problem, LineProblem) and problem.line == 1
    assert (record.response, record.group, record.extras) == ("x", "q-7", {"step": 0})


def test_each_item_of_an_output_is_shown_or_named() -> None:
    items = ["a", 5, {"type": "image_generation_call", "result": "iVBOR"}, {"type": "message", "content": "b"}]
    (record,) = read_items(openai_batch, encode_line({"output": items, "status": "completed"}))
    assert record.response == "a\n5\n<image_generation_call>\nb"
