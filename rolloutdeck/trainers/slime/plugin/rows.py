"""Rows for `Run.log_samples` from slime's samples: the same words as the server reads out of slime's own dumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutdeck.trainers.common import TokenSelection

SlimeRow = dict[str, Any]

SCORES = ("score", "reward")  # of a reward dict, where no `--reward-key` is set
SOURCES = ("source_name", "data_source", "dataset", "dataset_name")  # of `metadata`
# Keys that a row has in its own words.
TOLD = frozenset(
    ("group_index", "index", "rollout_id", "prompt", "tokens", "response", "response_length", "label", "reward",
     "loss_mask", "rollout_log_probs", "status", "non_generation_time", "weight_versions")
)  # fmt: skip
# Large, and for the trainer alone: images, tensors, experts, distributions.
HEAVY = frozenset(
    ("multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts", "rollout_top_p_token_ids",
     "rollout_top_p_token_offsets", "teacher_log_probs")
)  # fmt: skip


def flatten_samples(samples: Any) -> list[Any]:
    """The samples of however deeply nested lists: groups, and the fragments of one execution."""
    if not isinstance(samples, (list, tuple)):
        return [samples]
    return [one for inner in samples for one in flatten_samples(inner)]


def freeze_sample(sample: Any) -> Any:
    """A sample that keeps what this one holds now: slime gives samples other masks and rewards as it goes on."""
    copy = object.__new__(type(sample))
    copy.__dict__.update(sample.__dict__)
    return copy


def build_slime_rows(samples: Sequence[Any], key: str = "", source: str = "") -> list[SlimeRow]:
    """A row per sample, in order, without tokens. `key` of a reward dict is the score; `source` names the data set."""
    often = Counter(one.rollout_id for one in samples if getattr(one, "rollout_id", None) is not None)
    in_group, turns = Counter[str](), Counter[Any]()
    rows = []
    for sample in samples:
        row = build_slime_row(sample.__dict__, key, source)
        if (group := row.get("group")) is not None:
            row["index"] = in_group[group]
            in_group[group] += 1
        whole = getattr(sample, "rollout_id", None)
        if often[whole] > 1:
            row |= {"trajectory": str(whole), "turn": turns[whole]}
            turns[whole] += 1
        elif not source and (own := getattr(sample, "index", None)) is not None:
            row["trajectory"] = str(own)
        rows.append(row)
    return rows


def build_slime_row(told: Mapping[str, Any], key: str = "", source: str = "") -> SlimeRow:
    """One sample by itself; what it has nothing of is left out."""
    metadata = told.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    group, status = told.get("group_index"), told.get("status")
    row: SlimeRow = {
        **extras(told),
        **reward_of(told.get("reward"), key),
        "prompt": told.get("prompt"),
        "response": told.get("response"),
        "group": None if group is None else f"{source}:{group}" if source else str(group),
        "ground_truth": text(told.get("label")),
        "finish_reason": None if status is None else str(getattr(status, "value", status)),
        "response_length": told.get("response_length"),
        "data_source": source or next((str(named[name]) for name in SOURCES if named.get(name)), None),
        **versions(told.get("weight_versions")),
    }
    if row["finish_reason"]:
        row["truncated"] = row["finish_reason"] == "truncated"
    if seconds := told.get("non_generation_time"):
        row["timing"] = {"non_generation": seconds}
    return {name: value for name, value in row.items() if value is not None}


def reward_of(reward: Any, key: str) -> SlimeRow:
    """The score, and the parts of a reward that is a dict."""
    if not isinstance(reward, Mapping):
        return {"score": number(reward)}
    parts = {str(name): found for name, value in reward.items() if (found := number(value)) is not None}
    only = next(iter(parts)) if len(parts) == 1 else None
    main = next((name for name in (key, *SCORES, only) if name in parts), None)
    others = {str(name): value for name, value in reward.items() if str(name) not in parts}
    return {**others, "score": parts.pop(main) if main is not None else None, "rewards": parts or None}


def number(value: Any) -> Any:
    """A number, also of an array or tensor without dimensions; None for all else."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    return value if isinstance(value, (int, float)) else None


def extras(told: Mapping[str, Any]) -> SlimeRow:
    """The other keys that hold something; those that a generate function of one's own added too."""
    found = {name: shown(value) for name, value in told.items() if name not in TOLD and name not in HEAVY}
    return {name: value for name, value in found.items() if value not in (None, False, "")}


def shown(value: Any) -> Any:
    """slime's small records (how much was speculated, how much cached) as dicts; None for empty ones and tensors."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, (dict, list, tuple)) or not value:
        return None
    return None if isinstance(value, dict) and not any(value.values()) else value


def text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def versions(told: Any) -> SlimeRow:
    """The weights that the generation began with; all of them where they changed under way or are no numbers."""
    if not isinstance(told, (list, tuple)) or not told:
        return {}
    first = int(told[0]) if isinstance(told[0], (int, str)) and str(told[0]).isdecimal() else None
    changed = len(set(map(str, told))) > 1
    return {"policy_version": first} | ({"weight_versions": list(told)} if changed or first is None else {})


def add_sample_tokens(
    rows: Sequence[SlimeRow], samples: Sequence[Any], selection: TokenSelection, split: str, step: int
) -> None:
    """Token fields of the rows whose groups are chosen."""
    for place in selection.rows([row.get("group", str(at)) for at, row in enumerate(rows)], split, step):
        rows[place].update(extract_sample_tokens(samples[place]))


def extract_sample_tokens(sample: Any) -> SlimeRow:
    """Only what is as long as the response says: an array of another length would be read against other tokens."""
    tokens, length = listed(sample.tokens), sample.response_length
    if tokens is None or not 0 <= length <= len(tokens):
        return {}
    row: SlimeRow = {"prompt_ids": tokens[: len(tokens) - length], "response_ids": tokens[len(tokens) - length :]}
    for name, theirs in (("response_mask", sample.loss_mask), ("logprobs", sample.rollout_log_probs)):
        found = listed(theirs)
        if found is not None and len(found) == length:
            row[name] = found
    return row


def listed(values: Iterable[Any] | None) -> list[Any] | None:
    if values is None:
        return None
    return list(values.tolist() if hasattr(values, "tolist") else values)
