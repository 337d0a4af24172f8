"""tinker-cookbook's summaries and evaluations, and flat files of metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.rows import Rows, number, read_lines, render_response


def read_summaries(path: Path) -> Rows:
    rows: Rows = []
    split = "train" if path.name.startswith("train") else "eval"
    for line in read_lines(path):
        rewards: dict[str, Any] = {}
        for step in line["steps"]:
            rewards |= step["metrics"]
        rewards |= line["trajectory_metrics"]
        extras = {key: line[key] for key in ("group_idx", "final_reward", "tags", "steps", "final_ob_len")}
        if split == "train":
            extras["trainer_version"] = line["iteration"]
        rows.append(
            {
                "textless": True,
                "score": number(line["total_reward"]),
                "rewards": {key: number(value) for key, value in rewards.items()},
                "group": line["group_idx"],
                "trajectory": (line["group_idx"], line["traj_idx"]),
                "index": line["traj_idx"],
                "policy_version": line["sampling_client_step"],
                "data_source": line["tags"][0] if line["tags"] else None,
                "step": line["iteration"],
                "extras": extras,
            }
        )
    return rows


def read_eval(path: Path) -> Rows:
    rows: Rows = []
    for line in read_lines(path):
        messages: list[dict[str, Any]] = []
        before = ""
        for turn in line["turns"]:  # a later observation repeats the conversation
            content = turn["content"]
            if turn["role"] != "assistant":
                content, before = content.removeprefix(before).lstrip() if before else content, content
            elif messages:
                before += " " + content
            messages.append({"role": turn["role"], "content": content})
        first = next(index for index, turn in enumerate(messages) if turn["role"] == "assistant")
        rows.append(
            {
                "prompt": "".join(turn["content"] for turn in messages[:first]),
                "response": render_response(messages[first:]),
                "messages": messages,
                "score": number(line["reward"]),
                "rewards": {key: number(value) for key, value in line["metrics"].items()},
                "group": line["example_id"],
                "data_source": line["benchmark"],
                "ground_truth": line["logs"].get("expected"),
                "timing": {"total": line["time_seconds"]},
                "step": 0,
                "extras": {
                    "example_idx": line["idx"],
                    "logs": line["logs"],
                    "token_counts": [turn["token_count"] for turn in line["turns"]],
                },
            }
        )
    return rows


def read_flat_metrics(path: Path) -> Rows:
    """A step and numbers in each line; texts and the clock are no metrics."""
    clocks = ("recorded_at", "_timestamp", "timestamp", "time")
    steps = ("step", "global_step", "training_step")
    rows: Rows = []
    for line in read_lines(path):
        step = next((line[key] for key in steps if key in line), None)
        values = {k: v for k, v in line.items() if k not in (*clocks, *steps) and not isinstance(v, (str, dict, list))}
        rows.append({"metrics_of": step, "values": {key: number(value) for key, value in values.items()}})
    return rows


def read_trainer_state(path: Path) -> Rows:
    rows: Rows = []
    for line in json.loads(path.read_text())["log_history"]:
        values = {key: number(value) for key, value in line.items() if key != "step"}
        named = {f"eval/{k[5:]}" if k.startswith("eval_") else f"train/{k}": v for k, v in values.items()}
        rows.append({"metrics_of": line["step"], "values": named})
    return rows


READERS = [
    (r"tinker/.*_rollout_summaries\.jsonl$", read_summaries),
    (r"tinker/evals/.*trajectories\.jsonl$", read_eval),
    (r"tinker/metrics\.jsonl$|art/history\.jsonl$", read_flat_metrics),
    (r"trainer_state\.json$", read_trainer_state),
]
