"""Rows for `Run.log_samples` from what a TRL trainer held of one generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.trainers.common import TokenSelection

TrlRow = dict[str, Any]

GROUND_TRUTH_COLUMNS = ("ground_truth", "solution", "answer", "target")  # columns that data sets keep it in
LEFT_OUT = ("prompt", "completion", "completion_ids", "image", "images", "environment")
# Tensors of a generation, by the keys that rows have for them: the first that is there.
PER_TOKEN = {
    "response_mask": ("tool_mask",),
    "logprobs": ("sampling_per_token_logps", "old_per_token_logps"),
    "ref_logprobs": ("ref_per_token_logps",),
}


@dataclass(frozen=True)
class ToolUse:
    """Those of a trainer, by their names, and how often all processes called one in a generation, and in vain.
    `environments`: whether some are methods of environments, which have a state of their own."""

    names: tuple[str, ...]
    calls: int = 0
    failures: int = 0
    environments: bool = False


@dataclass
class CapturedGeneration:
    """One generation of one process, `n` rows. `first`: the place of its first row among all of its step and split,
    `generations`: how many of them answer a prompt.

    `rewards` is n x functions, NaN where a function gave None; `tensors` are those of the trainer's batch on the CPU,
    padded, n x tokens; `ends`: the ids that end a response. `extras`: column -> n values (`log_extra`). `fields`: what
    a `rollout_func` gave beside the ids, n values in a list or one for all, which TRL has put into `inputs`. `seconds`
    took the process to generate, the step's generations before this one included. `tools`: None without any.
    """

    step: int
    split: str
    first: int
    generations: int
    inputs: Sequence[Mapping[str, Any]]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    ids: Sequence[Sequence[int]]
    names: Sequence[str]
    weights: Sequence[float]
    rewards: Any
    ends: frozenset[int] = frozenset()
    extras: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    tools: ToolUse | None = None

    def rows(self, selection: TokenSelection) -> list[TrlRow]:
        """In the trainer's order; reads the tensors."""
        rewards, count = self.rewards.tolist(), len(self.prompts)
        places = [divmod(self.first + place, self.generations) for place in range(count)]
        made = [self._row(place, *places[place], rewards[place]) for place in range(count)]
        for row, advantage in zip(made, self._advantages(), strict=False):
            row["advantages"] = advantage
        for place in selection.rows([row["group"] for row in made], self.split, self.step):
            self._put_tokens(made[place], place)
        return made

    def _row(self, place: int, group: int, index: int, rewards: Sequence[float]) -> TrlRow:
        parts = {name: None if math.isnan(value) else value for name, value in zip(self.names, rewards, strict=False)}
        ids = self.ids[place]
        row: TrlRow = {"prompt": self.prompts[place], "response": self.completions[place], "group": str(group)}
        row |= {"index": index, "rewards": parts, "score": self._score(rewards), "response_length": len(ids)}
        if self.ends:
            row["truncated"] = not ids or ids[-1] not in self.ends
        put_columns(row, self.inputs[place])
        put_columns(row, {name: values[place] for name, values in self.extras.items() if len(values) > place})
        return row

    def _score(self, rewards: Sequence[float]) -> float | None:
        """What TRL adds up: weighted, without the functions that gave None; None where all did."""
        known = [weight * value for weight, value in zip(self.weights, rewards, strict=False) if not math.isnan(value)]
        return sum(known) if known else None

    def _advantages(self) -> Iterator[float]:
        found = self.tensors.get("advantages")
        return iter(() if found is None else found.tolist())

    def _put_tokens(self, row: TrlRow, place: int) -> None:
        row["response_ids"] = list(self.ids[place])
        row["prompt_ids"] = self.prompt_ids(place)
        for key, names in PER_TOKEN.items():
            found = next((self.tensors[name] for name in names if name in self.tensors), None)
            if found is not None:
                row[key] = found[place].tolist()[: len(self.ids[place])]

    def prompt_ids(self, place: int) -> list[int]:
        """Without the padding, which is on the left."""
        ids, mask = self.tensors["prompt_ids"][place].tolist(), self.tensors["prompt_mask"][place].tolist()
        return [each for each, real in zip(ids, mask, strict=True) if real]


def put_columns(row: TrlRow, columns: Mapping[str, Any]) -> None:
    """The columns of the data set, or of `log_extra`, by their names, where they are no keys of the row already."""
    for name, value in columns.items():
        if name not in LEFT_OUT and name not in row and value is not None:
            row[name] = value
    truth = next((row[name] for name in GROUND_TRUTH_COLUMNS if name in row), None)
    if truth is not None:
        row["ground_truth"] = truth if isinstance(truth, str) else str(truth)
