"""Rollouts of NeMo-Gym: requests and responses of OpenAI's Responses API with a reward. Real ones: data/nemo_gym."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.formats import nemo_gym
from rollouts.formats.readers.response_items import convert_items
from rollouts.samples.record import LineProblem, SkippedRow
from tests.rollouts.support.trainer_dumps import DATA, read_items, read_records

COLLECTION = DATA / "nemo_gym/math_trajectory_collection.jsonl"


def encode_rollout(*output: dict[str, Any], given: Any = "q", **more: Any) -> bytes:
    row = {"responses_create_params": {"input": given}, "response": {"output": list(output)}, "reward": 1.0, **more}
    return json.dumps(row).encode()


def build_message(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def token_fields(prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    logprobs = [-0.5] * len(tokens)
    return {"prompt_token_ids": prompt, "generation_token_ids": tokens, "generation_log_probs": logprobs}


def test_every_rollout_of_the_file_is_a_sample_with_its_values() -> None:
    rows = [json.loads(line) for line in COLLECTION.read_bytes().splitlines()]
    records = read_records(nemo_gym, COLLECTION.read_bytes())
    assert [(item.score, item.group, item.index, item.ground_truth, item.data_source) for item in records] == [
        (
            row["reward"],
            str(row["_ng_task_index"]),
            row["_ng_rollout_index"],
            row["expected_answer"],
            row["agent_ref"]["name"],
        )
        for row in rows
    ]
    assert [item.truncated for item in records] == [None, True, None, None]
    assert all(item.rewards == {"library_reward": item.score} for item in records)


def test_a_rollout_with_a_tool_shows_its_turns_and_has_the_tokens_of_the_model() -> None:
    record = next(item for item in read_records(nemo_gym, COLLECTION.read_bytes()) if item.tools and item.score)
    assert [message["role"] for message in record.messages] == ["developer", "user", "assistant", "tool", "assistant"]
    assert record.response.startswith("<think>\nI need a sum.\n</think>\n<tool_call>")
    assert "".join(map(chr, record.response_ids)) == "add>4.It is 4"
    assert record.response_mask == [1] * 3 + [0] * 3 + [1] * 7
    assert record.logprobs[2:4] == [-0.5, None]


def test_tokens_whose_prompts_do_not_continue_are_left_out() -> None:
    """This happens after the history was summarized."""
    body = encode_rollout(
        build_message("a", **token_fields([1, 2], [3])), build_message("b", **token_fields([1, 9], [4]))
    )
    (record,) = read_records(nemo_gym, body)
    assert (record.prompt_ids, record.response_ids, record.response) == (None, None, "a\nb")


def test_texts_that_the_trainer_decoded_are_the_texts() -> None:
    """NeMo-RL replaces the ids by them."""
    turns = [("<s>q<a>", "look"), ("<s>q<a>look<t>4<a>", "It is 4")]
    body = encode_rollout(*(build_message(text, prompt_str=prompt, generation_str=text) for prompt, text in turns))
    (record,) = read_records(nemo_gym, body)
    assert (record.prompt, record.response) == ("<s>q<a>", "look<t>4<a>It is 4")


def test_a_failed_rollout_is_skipped_and_counted_and_a_strange_line_is_reported() -> None:
    body = b'{"_ng_failure_class": "agent_error"}\n{"a": 1}\n' + encode_rollout(build_message("a"))
    failed, problem, record = read_items(nemo_gym, body)
    assert failed == SkippedRow("a rollout that failed")
    assert isinstance(problem, LineProblem) and record.response == "a"


def test_components_of_the_reward_and_other_numbers_are_its_parts() -> None:
    (record,) = read_records(
        nemo_gym, encode_rollout(build_message("a"), reward_components={"style": 0.5}, correct=True, info={"a": 1})
    )
    assert (record.rewards, record.extras) == ({"style": 0.5, "correct": 1.0}, {"info": {"a": 1}})


@pytest.mark.parametrize("output", [None, "text", [], [5], [{}], [{"type": "message"}], [{"type": "function_call"}]])
def test_any_output_gives_a_sample(output: Any) -> None:
    row = {"responses_create_params": {"input": [5, {}, {"role": "user"}]}, "response": {"output": output}}
    (record,) = read_records(nemo_gym, json.dumps(row).encode())
    assert record.prompt == "item\n{}\nuser\n\nassistant\n"


def test_items_that_follow_each_other_are_one_turn() -> None:
    items = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        build_message("a"),
        build_message("b"),
        {"type": "reasoning", "summary": [{"text": "and"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "web_search_call", "status": "completed"},
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    first, second, search, user, last = convert_items(items)
    assert first == {"role": "assistant", "reasoning_content": "hm", "content": "a\nb"}
    assert (second["reasoning_content"], second["tool_calls"][0]["function"]["name"]) == ("and", "f")
    assert (search["role"], user["content"], last["content"]) == ("web_search_call", "go", "no")
