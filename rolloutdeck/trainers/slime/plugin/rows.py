"""Builds rows for `Run.log_samples` from slime's samples, named as the server names the content of slime's dumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutdeck.trainers.common import TokenSelection, drop_none

SlimeRow = dict[str, Any]

SCORE_KEYS = ("score", "reward")  # keys of a reward dict, used if `--reward-key` is not set
SOURCE_KEYS = ("source_name", "data_source", "dataset", "dataset_name")  # keys of `metadata`
# Keys that a row has under another name.
MAPPED_KEYS = frozenset(
    ("group_index", "index", "rollout_id", "prompt", "tokens", "response", "response_length", "label", "reward",
     "loss_mask", "rollout_log_probs", "status", "non_generation_time", "weight_versions")
)  # fmt: skip
# Large, and used by the trainer only: tensors, experts, distributions. Images have a key of their own.
SKIPPED_KEYS = frozenset(
    ("multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts", "rollout_top_p_token_ids",
     "rollout_top_p_token_offsets", "teacher_log_probs")
)  # fmt: skip


def flatten_samples(samples: Any) -> list[Any]:
    """Returns the samples of nested lists of any depth: groups, and the parts of one execution."""
    if not isinstance(samples, (list, tuple)):
        return [samples]
    return [sample for group in samples for sample in flatten_samples(group)]


def freeze_sample(sample: Any) -> Any:
    """Returns a copy with the sample's present values: slime later changes masks and rewards."""
    copy = object.__new__(type(sample))
    copy.__dict__.update(sample.__dict__)
    return copy


def build_slime_rows(samples: Sequence[Any], key: str = "", source: str = "") -> list[SlimeRow]:
    """Returns one row per sample, without tokens. `key` of a reward dict is the score; `source`: the data set."""
    rollout_sizes = Counter(sample.rollout_id for sample in samples if getattr(sample, "rollout_id", None) is not None)
    group_sizes, turns = Counter[str](), Counter[Any]()
    rows = []
    for sample in samples:
        row = build_slime_row(sample.__dict__, key, source)
        if (group := row.get("group")) is not None:
            row["index"] = group_sizes[group]
            group_sizes[group] += 1
        rollout_id = getattr(sample, "rollout_id", None)
        if rollout_sizes[rollout_id] > 1:
            row |= {"trajectory": str(rollout_id), "turn": turns[rollout_id]}
            turns[rollout_id] += 1
        elif not source and (sample_index := getattr(sample, "index", None)) is not None:
            row["trajectory"] = str(sample_index)
        rows.append(row)
    return rows


def build_slime_row(fields: Mapping[str, Any], key: str = "", source: str = "") -> SlimeRow:
    """Returns the row of one sample, without empty fields."""
    metadata = fields.get("metadata")
    sources = metadata if isinstance(metadata, dict) else {}
    group, status = fields.get("group_index"), fields.get("status")
    row: SlimeRow = {
        **read_extras(fields),
        **read_images(fields.get("multimodal_inputs")),
        **split_reward(fields.get("reward"), key),
        "prompt": fields.get("prompt"),
        "response": fields.get("response"),
        "group": None if group is None else f"{source}:{group}" if source else str(group),
        "ground_truth": convert_text(fields.get("label")),
        "finish_reason": None if status is None else str(getattr(status, "value", status)),
        "response_length": fields.get("response_length"),
        "data_source": source or next((str(sources[name]) for name in SOURCE_KEYS if sources.get(name)), None),
        **read_versions(fields.get("weight_versions")),
    }
    if row["finish_reason"]:
        row["truncated"] = row["finish_reason"] == "truncated"
    if seconds := fields.get("non_generation_time"):
        row["timing"] = {"non_generation": seconds}
    return drop_none(row)


def split_reward(reward: Any, key: str) -> SlimeRow:
    """Returns the score, and the parts of a reward that is a dict."""
    if not isinstance(reward, Mapping):
        return {"score": convert_number(reward)}
    parts = {str(name): converted for name, value in reward.items() if (converted := convert_number(value)) is not None}
    single = next(iter(parts)) if len(parts) == 1 else None
    main = next((name for name in (key, *SCORE_KEYS, single) if name in parts), None)
    others = {str(name): value for name, value in reward.items() if str(name) not in parts}
    return {**others, "score": parts.pop(main) if main is not None else None, "rewards": parts or None}


def convert_number(value: Any) -> Any:
    """Returns a number, also of an array or tensor without dimensions; None for anything else."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    return value if isinstance(value, (int, float)) else None


def read_extras(fields: Mapping[str, Any]) -> SlimeRow:
    """Returns the other non-empty keys, including those that a custom generate function added."""
    others = fields.keys() - MAPPED_KEYS - SKIPPED_KEYS
    converted = {name: convert_extra(value) for name, value in fields.items() if name in others}
    return {name: value for name, value in converted.items() if value not in (None, False, "")}


def read_images(inputs: Any) -> SlimeRow:
    """Returns the images of the prompt, objects of Pillow, under the name that the server gives those of a dump."""
    images = inputs.get("images") if isinstance(inputs, Mapping) else None
    return {"images": list(images)} if isinstance(images, (list, tuple)) and images else {}


def convert_extra(value: Any) -> Any:
    """Returns slime's small records (speculative decoding, cache use) as dicts; None for empty ones and tensors."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, (dict, list, tuple)) or not value:
        return None
    return None if isinstance(value, dict) and not any(value.values()) else value


def convert_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def read_versions(weights: Any) -> SlimeRow:
    """Returns the weight version at the start of the generation; all versions if they changed or are not numbers."""
    if not isinstance(weights, (list, tuple)) or not weights:
        return {}
    first = int(weights[0]) if isinstance(weights[0], (int, str)) and str(weights[0]).isdecimal() else None
    changed = len(set(map(str, weights))) > 1
    return {"policy_version": first} | ({"weight_versions": list(weights)} if changed or first is None else {})


def add_sample_tokens(
    rows: Sequence[SlimeRow], samples: Sequence[Any], selection: TokenSelection, split: str, step: int
) -> None:
    """Adds the token fields to the rows whose groups are selected."""
    groups = [row.get("group", str(index)) for index, row in enumerate(rows)]
    for index in selection.select_rows(groups, split, step):
        rows[index].update(extract_sample_tokens(samples[index]))


def extract_sample_tokens(sample: Any) -> SlimeRow:
    """Returns the token fields. An array whose length is not the response's is omitted: it belongs to other tokens."""
    tokens, length = convert_list(sample.tokens), sample.response_length
    if tokens is None or not 0 <= length <= len(tokens):
        return {}
    row: SlimeRow = {"prompt_ids": tokens[: len(tokens) - length], "response_ids": tokens[len(tokens) - length :]}
    for name, source in (("response_mask", sample.loss_mask), ("logprobs", sample.rollout_log_probs)):
        values = convert_list(source)
        if values is not None and len(values) == length:
            row[name] = values
    return row


def convert_list(values: Iterable[Any] | None) -> list[Any] | None:
    if values is None:
        return None
    return list(values.tolist() if hasattr(values, "tolist") else values)
