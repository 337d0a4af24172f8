"""Episodes of prime-rl and verifiers, rLLM and ART, and rows of AReaL and open-instruct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.rollouts.formats.independent.rows import (
    SKIP,
    Rows,
    drop_empty_values,
    read_lines,
    render_prompt,
    render_response,
    split_conversation,
    to_number,
    to_text,
)


def read_verifiers(path: Path) -> Rows:
    rows: Rows = []
    for episode in read_lines(path):
        if episode.get("traces") == []:  # it failed before the model answered
            rows.append(SKIP)
        for trace in episode.get("traces", [episode]):
            nodes = trace["nodes"]
            leaves = set(range(len(nodes))) - {node.get("parent") for node in nodes}
            for turn, leaf in enumerate(sorted(leaves)):
                branch: list[dict[str, Any]] = []
                at: int | None = leaf
                while at is not None:
                    branch.insert(0, nodes[at])
                    at = nodes[at].get("parent")
                row = read_branch(branch) | read_trace(trace, episode)
                row["turn"] = turn if len(leaves) > 1 else None
                if row["advantages"] is None and "advantage" in trace["info"]:
                    row["advantages"] = [trace["info"]["advantage"]]
                if path.parent.name == "effective":
                    row["extras"]["trained"] = True
                rows.append(row)
    return rows


def read_branch(branch: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens and mask of a path; log-probs and advantages exist for sampled tokens only."""
    first = next(index for index, node in enumerate(branch) if node["sampled"])
    messages = [node["message"] for node in branch]
    tokens = [token for node in branch for token in node["token_ids"]]
    mask = [int(sampled) for node in branch for sampled in node["mask"]]
    start = mask.index(1)
    row: dict[str, Any] = {
        "prompt": render_prompt(messages[:first]),
        "response": render_response(messages[first:]),
        "messages": messages,
        "prompt_ids": tokens[:start],
        "response_ids": tokens[start:],
        "response_mask": mask[start:],
    }
    for field, key in (("logprobs", "logprobs"), ("advantages", "advantages"), ("ref_logprobs", "reference_logprobs")):
        values: list[Any] = []
        for node in branch:
            sampled = iter(node.get(key) or ())
            values += [next(sampled, None) if is_sampled else None for is_sampled in node["mask"]]
        row[field] = None if set(values) == {None} else values[start:]
    return row


def read_trace(trace: dict[str, Any], episode: dict[str, Any]) -> dict[str, Any]:
    rewards, calls, task = trace["rewards"], trace["calls"], trace["task"]
    work = episode["run"].get("work", {})
    scored = [part for part in rewards.values() if part]
    usage: dict[str, float] = {}
    for call in calls:
        for key, value in call["usage"].items():
            usage[key] = usage.get(key, 0) + value
    extras = {
        "agent": trace["agent"]["name"], "model": calls[0]["model"], "trainable": trace["agent"]["trainable"],
        "stop_condition": trace["stop_condition"], "ok": trace["ok"], "errors": trace["errors"], "usage": usage,
        "info": trace["info"], "episode": episode["id"] if "traces" in episode else None, "task": task["data"],
        "policy": work.get("policy"),
    }  # fmt: skip
    return {
        "trajectory": trace["id"],
        "score": sum(part["score"] * part["weight"] for part in scored) if scored else None,
        "rewards": {name: part and to_number(part["score"]) for name, part in rewards.items()},
        "metrics": trace["metrics"],
        "timing": trace["timing"],
        "tools": trace["tools"],
        "finish_reason": calls[-1]["finish_reason"],
        "group": (episode.get("group") or {"id": task["hash"]})["id"],
        "data_source": episode.get("env", {}).get("name"),
        "ground_truth": task["data"]["answer"],
        "policy_version": (work.get("policy") or {}).get("end"),
        "step": work.get("step", 0),
        "extras": drop_empty_values(extras),
    }


def read_rllm(path: Path) -> Rows:
    episode = json.loads(path.read_text())
    name = episode.get("episode_id", episode.get("id"))
    task = {**episode["task"].get("metadata", {}), **episode["task"]}
    rows: Rows = []
    for trajectory_number, trajectory in enumerate(episode["trajectories"]):
        conversations: list[list[dict[str, Any]]] = []  # a step that does not continue the chat starts another
        for step in trajectory["steps"]:
            before = conversations[-1][-1].get("chat_completions") if conversations else None
            if before and step["chat_completions"][: len(before)] == before:
                conversations[-1].append(step)
            else:
                conversations.append([step])
        for turn, steps in enumerate(conversations):
            last = steps[-1]
            chat = last.get("chat_completions")
            texts = split_conversation(chat) if chat else {"prompt": last["input"], "response": last["output"]}
            keys = ("session_id", "epoch", "episode_id", "eval_idx", "task", "task_hash", "is_correct", "metadata")
            step_keys = ("thought", "action", "reward", "done", "timing")
            reward = trajectory.get("reward")
            reason = episode.get("termination_reason")
            row = {
                **texts,
                "trajectory": f"{name}/{trajectory_number}",
                "turn": turn if len(conversations) > 1 else None,
                "score": to_number(last.get("reward") if reward is None else reward),
                "rewards": {key: to_number(value) for key, value in trajectory.get("signals", {}).items()},
                "timing": trajectory.get("timing"),
                "metrics": episode["metrics"],
                "group": episode.get("task_hash") or episode["task"]["id"],
                "index": int(name.split(":")[1]),
                "finish_reason": reason,
                "truncated": reason.startswith("max_") and reason.endswith("_exceeded") if reason else None,
                "ground_truth": to_text(task.get("ground_truth", task.get("answer"))),
                "data_source": task["data_source"],
                "step": episode.get("training_step", 0),
                "extras": {key: episode[key] for key in keys if episode.get(key) is not None},
            }
            row["rewards"]["acc"] = float(episode["is_correct"])
            row["extras"]["steps"] = [{key: step.get(key) for key in step_keys} for step in steps]
            row["extras"]["agent"] = trajectory["name"]
            if episode.get("artifacts"):
                row["extras"]["artifacts"] = episode["artifacts"]
            if len(steps) == 1:
                row |= {key: last.get(key) or None for key in ("prompt_ids", "response_ids", "logprobs")}
            rows.append(row)
    return rows


def read_art(path: Path) -> Rows:
    rows: Rows = []
    for line in pq.read_table(path).to_pylist():
        messages = []
        for turn in line["messages"]:
            message = {"role": turn["role"], "content": turn["content"]}
            message |= drop_empty_values({"tool_call_id": turn["tool_call_id"], "trainable": turn["trainable"] or None})
            message |= {"tool_calls": json.loads(turn["tool_calls"])} if turn["tool_calls"] else {}
            messages.append(message)
        values = {key: json.loads(line[key]) for key in ("metadata", "group_metadata", "group_metrics") if line[key]}
        values |= {"logs": line["logs"], "group_logs": line["group_logs"]}
        rows.append(
            {
                **split_conversation(messages),
                "score": to_number(line["reward"]),
                "metrics": json.loads(line["metrics"]) if line["metrics"] else None,
                "tools": json.loads(line["tools"]) if line["tools"] else None,
                "group": line["group_index"],
                "extras": drop_empty_values(values),
            }
        )
    return rows


def read_areal(path: Path) -> Rows:
    return [
        {
            "prompt": line["prompt"], "response": line["completion"], "score": to_number(line["reward"]),
            "group": line["task_id"], "index": line["sample_idx"], "policy_version": line["tail_version"], "step": 0,
            "extras": {key: line[key] for key in ("seqlen", "prompt_len", "head_version", "version_rle")},
        }
        for line in read_lines(path)
    ]  # fmt: skip


def read_open_instruct(path: Path) -> Rows:
    return [
        {
            "textless": True, "prompt_ids": line["prompt_tokens"], "response_ids": line["response_tokens"],
            "score": to_number(line["reward"]), "advantages": [line["advantage"]], "group": line["prompt_idx"],
            "index": line["sample_idx"], "finish_reason": line["finish_reason"], "data_source": line["dataset"],
            "logprobs": line["logprobs"], "step": line["step"], "ground_truth": line["ground_truth"],
        }
        for line in read_lines(path)
    ]  # fmt: skip


READERS = [
    (r"verifiers/.*traces\.jsonl$", read_verifiers),
    (r"rllm/.*/episode_[^/]*\.json$", read_rllm),
    (r"trajectories/\w+/\d{4}\.parquet$", read_art),
    (r"areal/.*/\d+\.jsonl$", read_areal),
    (r"open_instruct/.*\.jsonl$", read_open_instruct),
]
