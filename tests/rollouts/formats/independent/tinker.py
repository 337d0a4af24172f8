"""tinker-cookbook's summaries and evaluations, and flat files of metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.rows import Rows, read_lines, render_response, split_conversation, to_number


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
                "score": to_number(line["total_reward"]),
                "rewards": {key: to_number(value) for key, value in rewards.items()},
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
                "score": to_number(line["reward"]),
                "rewards": {key: to_number(value) for key, value in line["metrics"].items()},
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


def read_logtree(path: Path) -> Rows:
    """A text is of the trajectory with its reward. No two trajectories of these groups have the same."""
    rows: Rows = []
    groups = [
        section for section in list_sections(json.loads(path.read_text())["root"]) if section[0] == "Group Rollout"
    ]
    for group, (_, body) in enumerate(groups):
        *logged, (_, details) = list_sections(body, deep=False)
        trajectories = [dict(list_cells(section)) for _, section in list_sections(details, deep=False)]
        for at in range(0, len(logged), 3):
            (prompt_messages, response_messages), table = (
                map(list_messages, dict(logged[at : at + 2]).values()),
                logged[at + 2][1],
            )
            values = dict(list_cells(table))
            ground_truth = values.pop("reference_answer")
            index = [trajectory["step_reward"] for trajectory in trajectories].index(values["reward"])
            trajectory = trajectories[index]
            lengths = {"prompt": int(trajectory["ob_len"]), "response": int(trajectory["ac_len"])}
            rows.append(
                {
                    **split_conversation(prompt_messages + response_messages),
                    "score": float(trajectory["total_return"]),
                    "rewards": {name: float(trajectory[name]) for name in ("format", "correct")},
                    "group": group,
                    "trajectory": (group, index),
                    "index": index,
                    "ground_truth": ground_truth,
                    "extras": {"lengths": lengths, "logged": values},
                }
            )
    return rows


def list_sections(node: Any, deep: bool = True) -> list[tuple[str, Any]]:
    """(title, body) of each section below a node; with `deep` also of those in sections."""
    found: list[tuple[str, Any]] = []
    for child in node["children"]:
        is_section = isinstance(child, dict) and child["tag"] == "section"
        if is_section:
            heading, body = child["children"]
            found.append((heading["children"][0], body))
        if isinstance(child, dict) and (deep or not is_section):
            found += list_sections(child, deep)
    return found


def list_cells(node: Any) -> list[tuple[str, str]]:
    """(key, value) of each row of each table below a node."""
    if not isinstance(node, dict):
        return []
    cells = [child for child in node["children"] if isinstance(child, dict) and child["tag"] == "td"]
    if cells:
        key, value = (cell["children"][0] for cell in cells)
        return [(key, value)]
    return [pair for child in node["children"] for pair in list_cells(child)]


def list_messages(node: Any) -> list[Any]:
    own = node.get("data", {}).get("messages", []) if isinstance(node, dict) else []
    return own + [message for child in getattr(node, "get", {}.get)("children", ()) for message in list_messages(child)]


def read_flat_metrics(path: Path) -> Rows:
    """A step and numbers in each line; texts and the clock are no metrics."""
    clocks = ("recorded_at", "_timestamp", "timestamp", "time")
    steps = ("step", "global_step", "training_step")
    rows: Rows = []
    for line in read_lines(path):
        step = next((line[key] for key in steps if key in line), None)
        values = {k: v for k, v in line.items() if k not in (*clocks, *steps) and not isinstance(v, (str, dict, list))}
        rows.append({"metrics_of": step, "values": {key: to_number(value) for key, value in values.items()}})
    return rows


def read_trainer_state(path: Path) -> Rows:
    rows: Rows = []
    for line in json.loads(path.read_text())["log_history"]:
        values = {key: to_number(value) for key, value in line.items() if key != "step"}
        named = {f"eval/{k[5:]}" if k.startswith("eval_") else f"train/{k}": v for k, v in values.items()}
        rows.append({"metrics_of": line["step"], "values": named})
    return rows


READERS = [
    (r"tinker/.*_rollout_summaries\.jsonl$", read_summaries),
    (r"tinker/.*_logtree\.json$", read_logtree),
    (r"tinker/evals/.*trajectories\.jsonl$", read_eval),
    (r"tinker/metrics\.jsonl$|art/history\.jsonl$", read_flat_metrics),
    (r"trainer_state\.json$", read_trainer_state),
]
