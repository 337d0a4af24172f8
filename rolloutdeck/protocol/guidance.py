"""Guidance: what the rules of a project say about rows of a training, as a trainer gets it from the server.

A rule selects recorded samples. The server sends the keys of their prompts, and of their responses if the rule is about
responses only. A trainer compares the keys of its rows with them: no text is sent, and no query runs in a trainer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

GUIDANCE_ACTIONS: Final = ("mask", "drop", "weight", "reward")
GUIDANCE_TARGETS: Final = ("prompt", "response")
GUIDANCE_BASELINES: Final = ("trainer", "exclude")
MAX_RULES: Final = 100  # a server sends fewer
KEY_SEPARATOR: Final = "/"
GUIDANCE_FIELD: Final = "guidance"  # of a recorded row: the keys of the rules that selected it
GUIDANCE_METRICS: Final = "guidance/"  # prefix of the metrics: version, samples, tokens, rule/KEY
RULE_KEY: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")

_Indices = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class GuidanceRule:
    """`value` is the weight of `weight`, and what the reward function gets for `reward`."""

    key: str
    action: str
    target: str
    value: float


@dataclass(frozen=True, slots=True)
class RowGuidance:
    """What applies to one row. Its advantage is multiplied by `weight`, 0 for a masked or dropped row. `dropped`: it
    takes no part in the loss at all. `values` are for the reward function, by the keys of the rules."""

    rules: tuple[str, ...]
    weight: float = 1.0
    dropped: bool = False
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_masked(self) -> bool:
        return self.weight == 0


@dataclass(frozen=True, slots=True)
class GuidanceRules:
    """The rules of a `version` and what they select. Version 0 has no rules. `baseline`: whether masked rows count in
    the group baseline as the trainer does it, or are excluded."""

    version: int = 0
    baseline: str = "trainer"
    rules: tuple[GuidanceRule, ...] = ()
    prompts: _Indices = field(default_factory=dict, repr=False)
    responses: _Indices = field(default_factory=dict, repr=False)

    def find(self, prompt_key: str, response_key: str) -> RowGuidance | None:
        """Returns what applies to a row with these keys; None if nothing does."""
        indices = [
            *self.prompts.get(prompt_key, ()),
            *self.responses.get(f"{prompt_key}{KEY_SEPARATOR}{response_key}", ()),
        ]
        if not indices:
            return None
        rules = [self.rules[index] for index in sorted(set(indices))]
        weights = [rule.value if rule.action == "weight" else 0.0 for rule in rules if rule.action != "reward"]
        return RowGuidance(
            tuple(rule.key for rule in rules),
            math.prod(weights),
            any(rule.action == "drop" for rule in rules),
            {rule.key: rule.value for rule in rules if rule.action == "reward"},
        )


NO_GUIDANCE: Final = GuidanceRules()


def format_rule_keys(keys: Sequence[str]) -> str:
    """Returns the value of the field `guidance` of a row."""
    return ", ".join(keys)


def parse_rule_keys(value: Any) -> tuple[str, ...]:
    """Returns the keys in the field `guidance`; () for anything else, such as a column of a data set."""
    keys = tuple(value.split(", ")) if isinstance(value, str) else ()
    return keys if len(keys) <= MAX_RULES and all(map(RULE_KEY.fullmatch, keys)) else ()


def parse_guidance(data: Any) -> GuidanceRules:
    """Parses what the server sent, or what a file has kept of it. Raises ValueError."""
    try:
        rules = tuple(
            GuidanceRule(str(row["key"]), str(row["action"]), str(row["target"]), float(row["value"]))
            for row in data["rules"]
        )
        guidance = GuidanceRules(
            int(data["version"]),
            str(data["baseline"]),
            rules,
            _parse_indices(data["prompts"], len(rules)),
            _parse_indices(data["responses"], len(rules)),
        )
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"these are no rules: {type(error).__name__} {error}") from None
    is_known = all(rule.action in GUIDANCE_ACTIONS and math.isfinite(rule.value) for rule in rules)
    if not is_known or len(rules) > MAX_RULES or guidance.baseline not in GUIDANCE_BASELINES:
        raise ValueError("the rules have an action or a baseline that this version does not know: upgrade rolloutdeck")
    return guidance


def _parse_indices(data: Any, count: int) -> dict[str, tuple[int, ...]]:
    indices = {str(key): tuple(map(int, row)) for key, row in data.items()}
    if any(not 0 <= index < count for row in indices.values() for index in row):
        raise ValueError("a key names a rule that does not exist")
    return indices
