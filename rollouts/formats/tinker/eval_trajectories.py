"""tinker-cookbook's `{benchmark}/trajectories.jsonl`: one line per example of an evaluation, appended as it finishes.

| key                          | in the record                                                                 |
|------------------------------|-------------------------------------------------------------------------------|
| turns                        | prompt up to the first turn of the assistant, then the response; messages     |
| reward                       | score                                                                         |
| metrics                      | parts of the reward; `max_tokens_reached` and `context_overflow`: truncated   |
| example_id                   | group: with pass@k an example has several lines                               |
| benchmark                    | data source                                                                   |
| logs                         | stored; `expected` is the ground truth                                        |

The observation of a later turn repeats the conversation so far. Here it is what is new in it. An example that failed
before the model answered has no turns. Source: `_trajectory_to_stored` in tinker_cookbook/eval/benchmarks/_runner.py,
`EvalStore` in tinker_cookbook/stores/eval_store.py, thinking-machines-lab/tinker-cookbook 9dfcc3a2.
"""

import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, chat, get_list, get_object, read_jsonl_rows
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_integer, to_text

name = "tinker-eval"

FILE = re.compile(r"(?:\A|/)trajectories\.jsonl\Z")
HEAD = re.compile(rb'\s*\{\s*"idx"\s*:\s*-?\d+\s*,\s*"benchmark"\s*:')
TRUNCATED_METRICS = ("max_tokens_reached", "context_overflow")
GROUND_TRUTH_KEYS = ("expected", "expected_answer", "ground_truth")
KNOWN_KEYS = frozenset(("turns", "reward", "metrics", "benchmark", "example_id", "logs", "time_seconds", "idx"))


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield item
            continue
        line, row = item
        if not isinstance(row.get("turns"), list):
            yield LineProblem(line, "is not a trajectory of an evaluation: it has no list `turns`")
            continue
        turns = [turn for turn in row["turns"] if chat.is_message(turn) and isinstance(turn.get("content"), str)]
        if any(turn["role"] == "assistant" for turn in turns):
            yield build_record(row, turns, context)
        else:
            yield SkippedRow("an example that failed before the model answered")


def build_record(row: JsonObject, turns: list[JsonObject], context: DumpContext) -> Record:
    messages = [{"role": turn["role"], "content": text} for turn, text in zip(turns, trim_turns(turns), strict=True)]
    start = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    prompt = "".join(message["content"] for message in messages[:start])
    record = Record(prompt, chat.render_response(messages[start:]), messages)
    record.score, record.group = to_float(row.get("reward")), to_text(row.get("example_id")) or None
    metrics, logs = get_object(row, "metrics"), get_object(row, "logs")
    record.rewards = {key: to_float(value) for key, value in metrics.items()}
    if any(key in metrics for key in TRUNCATED_METRICS):
        record.truncated = any(bool(to_float(metrics.get(key))) for key in TRUNCATED_METRICS)
    record.data_source = to_text(row.get("benchmark"))
    record.ground_truth = next((to_text(logs[key]) for key in GROUND_TRUTH_KEYS if logs.get(key) is not None), None)
    record.timing = {"total": seconds} if (seconds := to_float(row.get("time_seconds"))) is not None else None
    record.extras = {key: value for key, value in row.items() if key not in KNOWN_KEYS and value is not None}
    record.extras["example_idx"] = to_integer(row.get("idx"))
    if context.step is None:
        record.extras["step"] = 0
    record.extras |= {"logs": logs} if logs else {}
    token_counts = [turn.get("token_count") for turn in get_list(row, "turns") if isinstance(turn, dict)]
    record.extras |= {"token_counts": token_counts} if any(token_counts) else {}
    return record


def trim_turns(turns: list[JsonObject]) -> Iterator[str]:
    """Yields the text of each turn. Of an observation only what it adds to the one before and the answer to it."""
    observation, answer = "", ""
    for turn in turns:
        text = turn["content"]
        if turn["role"] == "assistant":
            answer = text
            yield text
            continue
        new = text[len(os.path.commonprefix([observation, text])) :]
        stripped = new.lstrip()
        repeats_answer = observation and answer and stripped.startswith(answer)
        yield stripped.removeprefix(answer).lstrip() if repeats_answer else (new if new else text)
        observation = text
