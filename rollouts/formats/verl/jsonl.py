"""verl's generation dumps, `{step}.jsonl`: V0, V1, fully async and the key sets of 2025.

| written by              | other keys than input, output, score, step              | groups                       |
|-------------------------|---------------------------------------------------------|------------------------------|
| V0 rollout, fully async | gts (null in fully async), reward extras, request_id     | equal prompts (rows shuffled)|
| V0 validation           | gts, reward, reward extras                               | dataset order, n in a row    |
| V1 rollout              | gts, uid                                                 | uid                          |
| V1 validation           | gts, reward, reward extras, uid                          | uid                          |
| 2025 (April, August)    | reward extras; gts from August on                        | as V0                        |

`uid` is `{uuid}_{session}_{output}`: the session is one response to the prompt, its outputs are the turns of one
trajectory. Rows with a uid that begins with `pad` fill the last batch and are skipped.
`score` is the sum of the trainer's rewards unless the reward function returns a key `score`, which replaces it;
`reward`, if present, is always the trainer's sum. Source: `_write_generations`, `_log_rollout_data`, `_validate`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import PADDING_KEY
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    JsonObject,
    NumberedRow,
    check_numbers,
    parse_prompt,
    parse_response_text,
    read_jsonl_rows,
)
from rollouts.samples import LineProblem, Record, SkippedRow, text_to_float, to_float, to_integer, to_text

name = "verl-jsonl"

HEAD = re.compile(rb'\s*\{\s*"input"\s*:\s*["\[]')
KEYS = re.compile(rb'"(?:input|output|score|gts)"\s*:')
UID = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})\Z", re.DOTALL)  # prompt, session, output
KNOWN_KEYS = frozenset(
    ("input", "output", "gts", "score", "step", "reward", "uid", "data_source", "finish_reason", "messages")
)
# Numbers that a run may add to its rows and that are not rewards.
OTHER_NUMBERS = frozenset(("response_length", "prompt_length", "num_turns", "sample", "index", "request_id"))
# The reward keys of verl's own reward functions: a string under them is a number that `default=str` wrote.
REWARD_KEYS = frozenset(("score", "reward", "acc", "format", "overlong_reward", "format_reward"))
TRAINER_NUMBERS = ("score", "reward")
WINDOW_ROWS, WINDOW_BYTES = 2048, 8 << 20


def sniff(filename: str, head: bytes) -> bool:
    if head.lstrip().startswith(b"["):  # a JSON list, as other tools write it
        return False
    return bool(HEAD.match(head)) or len(set(KEYS.findall(head[:65536]))) >= 3


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    keys = KeyClassifier()
    order = DatasetOrder() if context.split == "eval" else None
    for window, is_last in split_windows(read_jsonl_rows(stream), stream):
        generations = [row for row in window if isinstance(row, dict)]
        keys.learn(generations)
        if order:
            prompts = [row["input"] for row in generations if not isinstance(row.get("uid"), str)]
            order.learn(prompts, is_complete=is_last)
        for row in window:
            yield build_record(row, context, keys, order) if isinstance(row, dict) else row


def split_windows(
    rows: Iterator[NumberedRow], stream: BinaryIO
) -> Iterator[tuple[list[JsonObject | LineProblem | SkippedRow], bool]]:
    """Yields rows of `stream` in bounded lists, because the meaning of a key depends on its neighbours, and whether the
    list is the last. Replaces padding and lines of another form by `SkippedRow` and `LineProblem`."""
    window: list[JsonObject | LineProblem | SkippedRow] = []
    start = stream.tell()
    for row in rows:
        if isinstance(row, LineProblem):
            window.append(row)
        else:
            checked = check_row(*row)
            window.append(checked)
            if isinstance(checked, dict):
                window += check_numbers(row[0], checked, TRAINER_NUMBERS)
        if len(window) >= WINDOW_ROWS or stream.tell() - start >= WINDOW_BYTES:
            yield window, False
            window, start = [], stream.tell()
    if window:
        yield window, True


def check_row(line: int, row: JsonObject) -> JsonObject | LineProblem | SkippedRow:
    """Returns the row with prompt and response as text, or the reason why it is not a sample."""
    prompt, response = row.get("input"), row.get("output")
    if type(prompt) is str and type(response) is str and (prompt or response):
        row.pop("messages", None)
        return row
    uid = row.get("uid")
    if isinstance(uid, str) and not response and PADDING_KEY.match(uid):
        return SkippedRow("padding")
    if "input" not in row or "output" not in row:
        return LineProblem(line, "has no `input` or no `output`")
    try:
        row["input"], row["messages"] = parse_prompt(prompt)
        row["output"] = parse_response_text(response)
    except ValueError as error:
        return LineProblem(line, str(error))
    return row


class KeyClassifier:
    """Classifies the other keys as reward parts or as extras.

    A key is a number if any of its values is one, or if all its values are "True" or "False": `json.dumps(default=str)`
    writes the booleans of numpy so. Then its strings are numbers too.
    """

    def __init__(self) -> None:
        self.numeric = set(REWARD_KEYS)
        self.kinds: set[tuple[str, type]] = set()
        self.rewards: dict[str, bool] = {}

    def learn(self, window: list[JsonObject]) -> None:
        new = {(key, type(value)) for row in window for key, value in row.items()} - self.kinds
        words = {key for key, kind in new if kind is str and key not in self.numeric}
        self.kinds |= new
        self.numeric |= {key for key, kind in self.kinds if kind in (int, float, bool)} - OTHER_NUMBERS
        words -= self.numeric
        for key in words - KNOWN_KEYS:
            if all(row.get(key) in ("True", "False", None) for row in window):
                self.numeric.add(key)
        self.rewards = {key: key in self.numeric for key, _ in self.kinds if key not in KNOWN_KEYS}

    def distribute(self, row: JsonObject, record: Record) -> None:
        """Stores the other keys of the row as rewards or extras of the record."""
        rewards, extras = record.rewards, record.extras
        for key, value in row.items():
            numeric = self.rewards.get(key)
            if numeric is None:
                continue
            if numeric and (value is None or type(value) is not str or text_to_float(value) is not None):
                if isinstance(value, (list, dict)):
                    extras[key] = value
                else:
                    rewards[key] = to_float(value)
            elif value is not None:
                extras[key] = value


def build_record(row: JsonObject, context: DumpContext, keys: KeyClassifier, order: DatasetOrder | None) -> Record:
    record = Record(row["input"], row["output"], row.get("messages"), to_float(row.get("score")))
    record.ground_truth = to_text(row.get("gts"))
    if "reward" in row:
        record.score = to_float(row["reward"])
        if "score" in row:
            record.rewards["score"] = to_float(row["score"])
    keys.distribute(row, record)
    if "data_source" in row:
        record.data_source = to_text(row["data_source"])
    if "finish_reason" in row:
        record.finish_reason = to_text(row["finish_reason"])
    assign_position(record, row.get("uid"), order)
    if row.get("step") != context.step:
        record.extras["step"] = to_integer(row.get("step"))
    return record


def assign_position(record: Record, uid: Any, order: DatasetOrder | None) -> None:
    """Sets group, trajectory and turn. Sets no group without a uid and an order; then equal prompts form a group."""
    if isinstance(uid, str):
        parts = UID.match(uid) if "_" in uid else None
        if parts:
            record.group, session, output = parts.groups()
            record.index, record.turn, record.trajectory = int(session), int(output), f"{record.group}_{session}"
        else:
            record.group = uid
    elif order:
        record.group, record.index = order.assign(record.prompt)


class DatasetOrder:
    """Assigns the groups of a validation file without uids: n consecutive responses per prompt, in dataset order.

    n is the most frequent length of a run of equal prompts: a run of 2n is two entries of the dataset with the same
    text, and a run is shorter if one of its lines cannot be read. If the responses to a prompt are not consecutive, no
    group is set, and equal prompts form a group.
    """

    def __init__(self) -> None:
        self.n = 0  # unknown
        self.is_scattered = False
        self.group = -1
        self.index = 0
        self.last: str | None = None

    def learn(self, prompts: list[str], *, is_complete: bool) -> None:
        """Learns n from the next rows of the file. The last run is not complete if more rows follow."""
        if self.n or not prompts:
            return
        runs = [len(list(run)) for _, run in groupby(prompts)]
        if prompts[0] == self.last:
            runs[0] += self.index + 1
        complete = Counter(runs if is_complete else runs[:-1])
        if complete:
            self.n = min(complete, key=lambda length: (-complete[length], length))
            self.is_scattered = min(complete) == 1 and len(runs) > 1 and min(Counter(prompts).values()) > 1

    def assign(self, prompt: str) -> tuple[str | None, int | None]:
        if self.is_scattered:
            return None, None
        if prompt != self.last or 0 < self.n <= self.index + 1:
            self.group, self.index, self.last = self.group + 1, 0, prompt
        else:
            self.index += 1
        return str(self.group), self.index
