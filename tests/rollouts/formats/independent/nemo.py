"""NeMo-RL's logger and NeMo-Gym's rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.rows import (
    Rows,
    drop_empty_values,
    read_lines,
    render_prompt,
    render_response,
    split_conversation,
    to_number,
)


def read_nemo_rl(path: Path) -> Rows:
    rows: Rows = []
    for line in read_lines(path):
        values = {key: value[0] if key != "idx" else value for key, value in line.items()}
        reward = values.pop("rewards")
        row: dict[str, Any] = {"score": to_number(values.pop("filtered_rewards", reward))}
        content, end = values.pop("content"), values.pop("input_lengths", None)
        values.pop("idx")
        if isinstance(content[0], dict):
            row |= split_conversation(content)
        else:  # texts without roles: an odd number begins with the system
            start = 1 + len(content) % 2
            row |= {"prompt": "\n".join(content[:start]), "response": "\n".join(content[start:])}
        if "token_ids" in values:
            mask = values.pop("token_loss_mask")[:end]
            first = mask.index(1)
            tokens = values.pop("token_ids")
            row |= {"prompt_ids": tokens[:first], "response_ids": tokens[first:end], "response_mask": mask[first:]}
            row["advantages"] = values.pop("advantages")[first:end]
            row["logprobs"] = values.pop("generation_logprobs")[first:end]
            values["prev_logprobs"] = values["prev_logprobs"][first:end]
        rows.append({**row, "group": row["prompt"], "extras": values})
    return rows


def read_nemo_gym(path: Path) -> Rows:
    rows: Rows = []
    for line in read_lines(path):
        request, response = line["responses_create_params"], line["response"]
        prompt_messages = request["input"]
        if isinstance(prompt_messages, str):
            prompt_messages = [{"role": "user", "content": prompt_messages}]
        prompt_messages = [{"role": turn["role"], "content": turn["content"]} for turn in prompt_messages]
        if request["instructions"]:
            prompt_messages.insert(0, {"role": "system", "content": request["instructions"]})
        response_messages = convert_items(response["output"])
        reason = (response["incomplete_details"] or {}).get("reason")
        rows.append(
            {
                "prompt": render_prompt(prompt_messages),
                "response": render_response(response_messages),
                "messages": [*prompt_messages, *response_messages],
                **join_tokens(response["output"]),
                "score": to_number(line["reward"]),
                "rewards": {"library_reward": to_number(line["library_reward"])},
                "group": line["_ng_task_index"],
                "index": line["_ng_rollout_index"],
                "data_source": line["agent_ref"]["name"],
                "ground_truth": line["expected_answer"],
                "tools": request["tools"] or None,
                "finish_reason": reason or response["status"],
                "truncated": True if reason == "max_output_tokens" else None,
                "step": 0,
                "extras": drop_empty_values(
                    {
                        "model": response["model"],
                        "usage": response["usage"],
                        "expected_answer": line["expected_answer"],
                    }
                ),
            }
        )
    return rows


def convert_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning and the call after it are one message of the assistant."""
    messages: list[dict[str, Any]] = []
    thought = ""
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            thought = "\n".join(part["text"] for part in item["summary"])
            continue
        if kind == "function_call_output":
            messages.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
            continue
        message: dict[str, Any] = {"role": "assistant"}
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            message["tool_calls"] = [{"id": item["call_id"], "type": "function", "function": function}]
        else:
            message["content"] = "".join(part["text"] for part in item["content"])
        if thought:
            message["reasoning_content"], thought = thought, ""
        messages.append(message)
    return messages


def join_tokens(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The prompt of each generation has all tokens before it. What it adds to them is from a tool."""
    generated = [item for item in items if "generation_token_ids" in item]
    if not generated:
        return {}
    start = len(generated[0]["prompt_token_ids"])
    tokens: list[int] = generated[0]["prompt_token_ids"]
    mask: list[int] = []
    logprobs: list[float | None] = []
    for item in generated:
        added = len(item["prompt_token_ids"]) - len(tokens)
        tokens = item["prompt_token_ids"] + item["generation_token_ids"]
        mask += [0] * added + [1] * len(item["generation_token_ids"])
        logprobs += [None] * added + item["generation_log_probs"]
    return {"prompt_ids": tokens[:start], "response_ids": tokens[start:], "response_mask": mask, "logprobs": logprobs}


READERS = [
    (r"nemo_rl/.*_data_step\d+\.jsonl$", read_nemo_rl),
    (r"nemo_gym/.*_trajectory_collection\.jsonl$", read_nemo_gym),
]
