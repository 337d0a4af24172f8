"""The record types that all format modules produce. This module does not import Django."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One generation as a format module yields it. The fields have the names of the keys of `Run.log_samples`.

    `prompt` and `response` are the recorded text, unchanged: the sample id is a hash of them.
    `rewards` holds the named reward parts as float; `extras` holds every key without a field, as plain JSON values.
    `score` is the reward sum of the trainer if it is recorded, else the number of the reward function.
    Token arrays have one entry per response token (`prompt_ids`: per prompt token). Log-probs are in nats.
    `textless`: only the tokens of the response were recorded, not its text; `response` is empty.
    """

    prompt: str = ""
    response: str = ""
    messages: list[dict[str, Any]] | None = None
    score: float | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    group: str | None = None
    index: int | None = None
    trajectory: str | None = None
    turn: int | None = None
    ground_truth: str | None = None
    data_source: str | None = None
    finish_reason: str | None = None
    truncated: bool | None = None
    prompt_ids: list[int] | None = None
    response_ids: list[int] | None = None
    response_mask: list[int] | None = None
    logprobs: list[float | None] | None = None
    ref_logprobs: list[float | None] | None = None
    advantages: list[float | None] | None = None
    policy_version: int | None = None
    timing: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    segments: list[Any] | None = None
    tools: list[Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    textless: bool = False


@dataclass(slots=True, frozen=True)
class LineProblem:
    """A line that could not be read. It is counted and listed on the dump, and is never fatal. `line` counts from 1.

    `repaired`: the line became a record after a repair (bytes that were not UTF-8).
    """

    line: int
    reason: str
    repaired: bool = False


@dataclass(slots=True, frozen=True)
class SkippedRow:
    """A row that is not a sample (for example a padding row of a trainer). Counted by `reason`."""

    reason: str


@dataclass(slots=True, frozen=True)
class MetricPoint:
    """The metrics of one step. `values` maps a name to a float, or None if the trainer logged NaN."""

    step: int
    values: dict[str, float | None]
    step_kind: str = "global_step"
    time: float | None = None
