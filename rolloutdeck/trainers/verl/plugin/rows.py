"""Rows for `Run.log_samples` from what verl holds in its hands: parallel lists, padded tensors, jagged tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VerlRow = dict[str, Any]

KEY = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})\Z", re.DOTALL)  # uid of the prompt, session, output
# Tensors of a batch by the names that rows have for them; log-probs are the engine's where it told them.
TOKEN_FIELDS = ("response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "advantages")


def read_column(values: Any, count: int) -> list[Any]:
    """`count` values of an array, a tensor, a NonTensorStack or a list; None for each where there are none."""
    if values is None:
        return [None] * count
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    return found if isinstance(found, list) and len(found) == count else [None] * count


def unwrap_scalar(value: Any) -> Any:
    """A numpy scalar as Python's own; everything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def get_ground_truth(reward_model: Any) -> Any:
    found = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return found if found is None or isinstance(found, str) else unwrap_scalar(found)


def add_reward_extras(row: VerlRow, extras: Mapping[str, Any]) -> None:
    """What the reward function returned beside the reward: numbers are its parts, all else is kept by its name.

    verl adds `reward`, the sum that is the row's score already.
    """
    parts = {}
    for name, value in extras.items():
        value = unwrap_scalar(value)
        if value is None or name == "reward":
            continue
        if is_number(value):
            parts[name] = float(value)
        elif name not in row:
            row[name] = value
    if parts:
        row["rewards"] = parts


def add_known_fields(row: VerlRow, **known: Any) -> None:
    """Adds what is known; nothing is written for None."""
    row.update({name: value for name, value in known.items() if value is not None})


def add_group_from_key(row: VerlRow, key: str) -> None:
    """Group, trajectory and turn from a key of the TransferQueue, `{uid}_{session}_{output}`."""
    found = KEY.match(key)
    if not found:
        row["group"] = key
        return
    group, session, output = found.groups()
    row.update(group=group, index=int(session), turn=int(output), trajectory=f"{group}_{session}")


def build_sort_key(key: str) -> tuple[str, int, int]:
    """verl's files are in the order of prompt, session and output."""
    found = KEY.match(key)
    return (found[1], int(found[2]), int(found[3])) if found else (key, 0, 0)


def number_rows_in_groups(rows: Iterable[VerlRow], groups: Sequence[str]) -> None:
    """Group and index from each row's group: the responses to one prompt are counted as they come."""
    seen: Counter[str] = Counter()
    for row, group in zip(rows, groups, strict=True):
        row["group"], row["index"] = group, seen[group]
        seen[group] += 1


def get_dataset_index(extra_info: Any) -> Any:
    """The row of the dataset, where it was made with one (`extra_info.index`)."""
    found = unwrap_scalar(extra_info.get("index")) if isinstance(extra_info, Mapping) else None
    return found if isinstance(found, (int, str)) else None


def add_lengths(row: VerlRow, tokens: int, most: int | None) -> None:
    """`tokens` of the response, padding left out; it was cut where it fills the room that it had."""
    row["response_length"] = tokens
    if most:
        row["truncated"] = tokens >= most


def add_token_fields(row: VerlRow, prompt: list[int], response: list[int], fields: Mapping[str, list[float]]) -> None:
    """Ids without padding, and per token of the response what `fields` has under verl's names."""
    row.update(prompt_ids=prompt, response_ids=response)
    add_known_fields(
        row,
        response_mask=fields.get("response_mask"),
        logprobs=fields.get("rollout_log_probs", fields.get("old_log_probs")),
        ref_logprobs=fields.get("ref_log_prob"),
        advantages=fields.get("advantages"),
    )
