"""Builds rows for `Run.log_samples` from the columns of verl's batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutdeck.trainers.common import drop_none

VerlRow = dict[str, Any]

KEY_PATTERN = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})\Z", re.DOTALL)  # uid of the prompt, session, output
# Tensors of a batch with values per token; log-probs are the engine's if it returned them.
TOKEN_FIELDS = ("response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "advantages")


def read_column(values: Any, count: int) -> list[Any]:
    """Returns `count` values of an array, a tensor, a NonTensorStack or a list; None for each if there are none."""
    if values is None:
        return [None] * count
    column = values.tolist() if hasattr(values, "tolist") else list(values)
    return column if isinstance(column, list) and len(column) == count else [None] * count


def unwrap_scalar(value: Any) -> Any:
    """Converts a numpy scalar to Python's type; returns all other values unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def get_ground_truth(reward_model: Any) -> Any:
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return truth if truth is None or isinstance(truth, str) else unwrap_scalar(truth)


def add_reward_extras(row: VerlRow, extras: Mapping[str, Any]) -> None:
    """Adds what the reward function returned: numbers are parts of the reward, other values have their own names.

    verl adds `reward`, the sum, which is the row's score already.
    """
    parts = {}
    for name, value in extras.items():
        value = unwrap_scalar(value)
        if value is None or name == "reward":
            continue
        if isinstance(value, (int, float)):
            parts[name] = float(value)
        elif name not in row:
            row[name] = value
    if parts:
        row["rewards"] = parts


def add_columns(row: VerlRow, columns: Mapping[str, Any], score: Any, advantages: Any = None) -> None:
    """Adds the known fields of one row. `columns`: values by verl's names; versions have several names."""
    turns, version = unwrap_scalar(columns["num_turns"]), columns["version"]
    row |= drop_none(
        {
            "score": score,
            "ground_truth": get_ground_truth(columns["reward_model"]),
            "dataset_index": get_dataset_index(columns["extra_info"]),
            "data_source": columns["data_source"],
            "num_turns": turns if isinstance(turns, int) else None,
            "policy_version": version if isinstance(version, int) else None,
            "advantages": advantages,
        }
    )


def add_trainer_version(rows: Iterable[VerlRow], version: Any) -> None:
    """Adds the version that the trainer has, in verl's count of weight updates, to rows with the version of theirs."""
    if isinstance(version, int):
        for row in rows:
            if "policy_version" in row:
                row["trainer_version"] = version


def add_texts(rows: Iterable[VerlRow], prompts: Iterable[Any], responses: Iterable[Any], tokenizer: Any) -> None:
    """Adds texts, decoded as in verl's own files, so that both have the same samples."""
    for row, prompt, response in zip(rows, prompts, responses, strict=True):
        row["prompt"] = tokenizer.decode(prompt, skip_special_tokens=True)
        row["response"] = tokenizer.decode(response, skip_special_tokens=True)


def add_group_from_key(row: VerlRow, key: str) -> None:
    """Adds group, trajectory and turn from a key of the TransferQueue, `{uid}_{session}_{output}`."""
    match = KEY_PATTERN.match(key)
    if not match:
        row["group"] = key
        return
    group, session, output = match.groups()
    row.update(group=group, index=int(session), turn=int(output), trajectory=f"{group}_{session}")


def build_sort_key(key: str) -> tuple[str, int, int]:
    """Returns the sort key: verl's files are ordered by prompt, session and output."""
    match = KEY_PATTERN.match(key)
    return (match[1], int(match[2]), int(match[3])) if match else (key, 0, 0)


def number_rows_in_groups(rows: Iterable[VerlRow], groups: Sequence[str]) -> None:
    """Adds group and index: the responses to a prompt are counted in their order."""
    sizes: Counter[str] = Counter()
    for row, group in zip(rows, groups, strict=True):
        row["group"], row["index"] = group, sizes[group]
        sizes[group] += 1


def get_dataset_index(extra_info: Any) -> Any:
    """Returns the row number in the data set, if the data set has it (`extra_info.index`)."""
    index = unwrap_scalar(extra_info.get("index")) if isinstance(extra_info, Mapping) else None
    return index if isinstance(index, (int, str)) else None


def add_lengths(row: VerlRow, tokens: int, max_tokens: int | None) -> None:
    """Adds `tokens`, the response's length without padding. The response is truncated if it has `max_tokens`."""
    row["response_length"] = tokens
    if max_tokens:
        row["truncated"] = tokens >= max_tokens


def add_token_fields(row: VerlRow, prompt: list[int], response: list[int], fields: Mapping[str, list[float]]) -> None:
    """Adds ids without padding, and the values per response token in `fields`, by verl's names."""
    row |= {"prompt_ids": prompt, "response_ids": response}
    logprobs = fields.get("rollout_log_probs", fields.get("old_log_probs"))
    row |= drop_none({"response_mask": fields.get("response_mask"), "logprobs": logprobs})
    row |= drop_none({"ref_logprobs": fields.get("ref_log_prob"), "advantages": fields.get("advantages")})
