"""Evaluation harnesses, and batches of OpenAI's API."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.rollouts.formats.independent.rows import (
    SKIP,
    Rows,
    drop_empty_values,
    read_lines,
    render_message,
    split_conversation,
    to_integers,
    to_number,
)


def read_lm_eval(path: Path) -> Rows:
    """A document has a line for each filter, with the same responses. A choice has a pair for each continuation."""
    task = re.findall(r"samples_(.+)_\d{4}-", path.name)[0]
    rows: dict[int, dict[str, Any]] = {}
    for line in read_lines(path):
        requests = [list(request.values()) for request in line["arguments"].values()]
        if len(requests) == 1:
            ((response,),) = line["resps"]
        else:
            likelihoods = [float(pairs[0][0]) for pairs in line["resps"]]
            response = requests[likelihoods.index(max(likelihoods))][1]
        metrics = {name: to_number(line[name]) for name in line["metrics"]}
        row = rows.setdefault(
            line["doc_id"],
            {
                "prompt": requests[0][0],
                "response": response,
                "score": next(iter(metrics.values())),
                "rewards": {},
                "group": line["doc_id"],
                "index": 0,
                "ground_truth": line["target"],
                "data_source": task,
                "step": 0,
                "extras": {key: line[key] for key in ("doc_id", "doc", "resps", "filtered_resps")},
            },
        )
        suffix = "" if line["filter"] == "none" else f",{line['filter']}"
        row["rewards"] |= {name + suffix: value for name, value in metrics.items()}
    return list(rows.values())


def read_lighteval(path: Path) -> Rows:
    rows: Rows = []
    for at, line in enumerate(pq.read_table(path).to_pylist()):
        doc, output = line["doc"], line["model_response"]
        rewards = {name: to_number(value) for name, value in line["metric"].items()}
        for index, (text, tokens) in enumerate(zip(output["text"], output["output_tokens"], strict=True)):
            rows.append(
                {
                    "prompt": output["input"],
                    "response": text,
                    "prompt_ids": to_integers(output["input_tokens"]),
                    "response_ids": to_integers(tokens),
                    "score": next(iter(rewards.values())),
                    "rewards": rewards,
                    "group": at,
                    "index": index,
                    "ground_truth": doc["choices"][doc["gold_index"]],
                    "data_source": doc["task_name"],
                    "step": 0,
                }
            )
    return rows


def read_inspect(path: Path) -> Rows:
    if path.suffix == ".json":
        log = json.loads(path.read_text())
        return [read_inspect_sample(sample, log["eval"]["task"]) for sample in log["samples"]]
    with zipfile.ZipFile(path) as archive:
        task = json.loads(archive.read("header.json"))["eval"]["task"]
        names = sorted(name for name in archive.namelist() if name.startswith("samples/"))
        return [read_inspect_sample(json.loads(archive.read(name)), task) for name in names]


def read_inspect_sample(sample: dict[str, Any], task: str) -> dict[str, Any]:
    long_texts = {f"attachment://{name}": text for name, text in sample.get("attachments", {}).items()}
    messages = [turn | {"content": long_texts.get(turn["content"], turn["content"])} for turn in sample["messages"]]
    grades = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
    rewards = {name: grades[score["value"]] for name, score in sample["scores"].items()}
    reason = sample["output"]["choices"][0]["stop_reason"]
    return {
        **split_conversation(messages),
        "score": next(iter(rewards.values())),
        "rewards": rewards,
        "group": sample["id"],
        "index": sample["epoch"] - 1,
        "ground_truth": sample["target"],
        "data_source": task,
        "finish_reason": reason,
        "truncated": reason == "max_tokens",
        "step": 0,
        "extras": {
            "model": sample["output"]["model"],
            **{key: sample[key] for key in ("id", "epoch", "scores")},
        },
    }


def read_openai_batch(path: Path) -> Rows:
    """The prompts are in the file of the requests."""
    rows: Rows = []
    for line in read_lines(path):
        body = (line["response"] or {}).get("body", {})
        if "choices" in body:
            answers = [
                (render_message(choice["message"]) if "message" in choice else choice["text"], choice["finish_reason"])
                for choice in body["choices"]
            ]
        elif "output" in body:
            details = body["incomplete_details"] or {}
            answers = [("\n".join(map(show_item, body["output"])), details.get("reason") or body["status"])]
        else:
            rows.append(SKIP)
            continue
        for index, (response, reason) in enumerate(answers):
            rows.append(
                {
                    "prompt": "",
                    "response": response,
                    "group": line["custom_id"],
                    "index": index,
                    "finish_reason": reason,
                    "truncated": reason in ("length", "max_output_tokens"),
                    "step": 0,
                    "extras": {} if index else drop_empty_values({"model": body["model"], "usage": body["usage"]}),
                }
            )
    return rows


def show_item(item: dict[str, Any]) -> str:
    """One item of the Responses API as the message of a chat."""
    if item["type"] == "reasoning":
        return render_message({"reasoning_content": "".join(part["text"] for part in item["summary"])})
    return render_message({"tool_calls": [item]} if item["type"] == "function_call" else {"content": item["content"]})


READERS = [
    (r"evaluations/samples_.*\.jsonl$", read_lm_eval),
    (r"evaluations/details_.*\.parquet$", read_lighteval),
    (r"evaluations/.*\.eval$|evaluations/\d{4}[^/]*\.json$", read_inspect),
    (r"batch/.*_output\.jsonl$", read_openai_batch),
]
