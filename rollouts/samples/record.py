"""The one shape of a generation, whatever trainer wrote it. No Django here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One generation as a format module yields it, fields in the words of `Run.log_samples`.

    `prompt` and `response` are the recorded text, unchanged: the sample's identity hashes them.
    `rewards` holds named parts as float; `extras` every key without a canonical name, as plain JSON values.
    `score` is the trainer's reward sum where it is recorded, else the reward function's own number.
    Token arrays are per token of the response (`prompt_ids` of the prompt); lengths in tokens, log-probs in nats.
    `textless`: nobody recorded the response's text, only its tokens; `response` is empty then and means nothing.
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
    """A line that could not become a `Record`: counted, shown on the dump, never fatal. `line` counts from 1.

    `kept` says that the line did become a record, mended (bytes that were not UTF-8).
    """

    line: int
    reason: str
    kept: bool = False


@dataclass(slots=True, frozen=True)
class SkippedRow:
    """Something that is deliberately no sample (a trainer's padding row). Counted by `reason`."""

    reason: str


@dataclass(slots=True, frozen=True)
class MetricPoint:
    """The metrics of one step: `values` maps name to float, None where the trainer logged NaN."""

    step: int
    values: dict[str, float | None]
    step_kind: str = "global_step"
    time: float | None = None
