"""Builds rows for `Run.log_samples` from a captured generation of a TRL trainer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.protocol import GUIDANCE_FIELD, number_repeated_names
from rolloutdeck.trainers import common

TrlRow = dict[str, Any]

GROUND_TRUTH_COLUMNS = ("ground_truth", "solution", "answer", "target")  # columns of data sets that contain it
RULES_KEY = "_rolloutdeck_rules"  # of an input row: the guidance rules that selected it
SKIPPED_COLUMNS = (RULES_KEY, "prompt", "completion", "completion_ids", "image", "images", "environment")
# Key of a row -> tensors of a generation; the first that exists is used.
TOKEN_TENSORS = {
    "response_mask": ("tool_mask",),
    "logprobs": ("sampling_per_token_logps", "old_per_token_logps"),
    "ref_logprobs": ("ref_per_token_logps",),
}


@dataclass(frozen=True)
class ToolUse:
    """The tools of a trainer, by name, and the numbers of calls and failures of all processes in a generation.

    `environments`: whether some tools are methods of environments, which have a state.
    """

    names: tuple[str, ...]
    calls: int = 0
    failures: int = 0
    environments: bool = False


@dataclass
class CapturedGeneration:
    """One generation of one process, n rows. `first_row`: the index of its first row in its step and split,
    `generations`: the number of answers per prompt, `all_groups`: the groups of all processes.

    `rewards` is n x functions, NaN if a function returned None; `tensors` are those of the trainer's batch on the CPU,
    padded, n x tokens; `end_ids`: the ids that end a response. `extras`: column -> n values (`log_extra`). `fields`:
    what a `rollout_func` returned besides the ids, n values in a list or one for all, which TRL has put into `inputs`.
    `seconds`: the time this process took to generate, including earlier generations of the step. `tools`: None without
    tools.
    """

    step: int
    split: str
    first_row: int
    generations: int
    all_groups: range
    inputs: Sequence[Mapping[str, Any]]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    ids: Sequence[Sequence[int]]
    names: Sequence[str]
    weights: Sequence[float]
    rewards: Any
    end_ids: frozenset[int] = frozenset()
    extras: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    tools: ToolUse | None = None
    tool_schemas: Sequence[Mapping[str, Any]] = ()
    eval_name: str = ""  # of one of several evaluation data sets

    def rows(self, token_groups: Collection[int]) -> list[TrlRow]:
        """Returns the rows in the trainer's order, those of `token_groups` with token fields. Reads the tensors."""
        rewards, count = self.rewards.tolist(), len(self.prompts)
        positions = [divmod(self.first_row + row_index, self.generations) for row_index in range(count)]
        names = number_repeated_names(self.names)  # closures of one function have equal names
        parts = [dict(zip(names, map(replace_nan, values), strict=False)) for values in rewards]
        rows = [self._build_row(row, *positions[row], parts[row], rewards[row]) for row in range(count)]
        for row, advantage in zip(rows, self._advantages(), strict=False):
            row["advantages"] = advantage
        for row_index, (group, _) in enumerate(positions):
            if group in token_groups:
                self._add_tokens(rows[row_index], row_index)
        return rows

    def _build_row(
        self, row_index: int, group: int, index: int, parts: Mapping[str, float | None], rewards: Sequence[float]
    ) -> TrlRow:
        ids = self.ids[row_index]
        row: TrlRow = {"prompt": self.prompts[row_index], "response": self.completions[row_index], "group": str(group)}
        row |= {"index": index, "rewards": parts, "score": self._compute_score(rewards), "response_length": len(ids)}
        if self.end_ids:
            row["truncated"] = not ids or ids[-1] not in self.end_ids
        if rules := self.inputs[row_index].get(RULES_KEY):
            row[GUIDANCE_FIELD] = rules
        if self.tool_schemas:
            row["tools"] = list(self.tool_schemas)
        common.add_columns(row, self.inputs[row_index], SKIPPED_COLUMNS)
        if (truth := find_ground_truth(row)) is not None:
            row["ground_truth"] = truth
        if self.eval_name:
            row.setdefault("data_source", self.eval_name)
        extras = {name: values[row_index] for name, values in self.extras.items() if len(values) > row_index}
        # A reward function may log what it found in the response as `answer`: no ground truth is looked for here.
        named = {f"extra_{name}" if name in SKIPPED_COLUMNS else name: value for name, value in extras.items()}
        common.add_columns(row, named, (), "extra_")
        return row

    def _compute_score(self, rewards: Sequence[float]) -> float | None:
        """Returns TRL's sum: weighted, without functions that returned None; None if all did."""
        values = [weight * value for weight, value in zip(self.weights, rewards, strict=False) if not math.isnan(value)]
        return sum(values) if values else None

    def _advantages(self) -> Iterator[float]:
        advantages = self.tensors.get("advantages")
        return iter(() if advantages is None else advantages.tolist())

    def _add_tokens(self, row: TrlRow, row_index: int) -> None:
        row["response_ids"] = list(self.ids[row_index])
        row["prompt_ids"] = self.prompt_ids(row_index)
        for key, names in TOKEN_TENSORS.items():
            tensor = next((self.tensors[name] for name in names if name in self.tensors), None)
            if tensor is not None:
                row[key] = tensor[row_index].tolist()[: len(self.ids[row_index])]

    def prompt_ids(self, row_index: int) -> list[int]:
        """Returns the prompt's token ids without the padding, which is on the left."""
        ids, mask = self.tensors["prompt_ids"][row_index].tolist(), self.tensors["prompt_mask"][row_index].tolist()
        return [token_id for token_id, is_token in zip(ids, mask, strict=True) if is_token]


def find_ground_truth(row: TrlRow) -> str | None:
    """Returns the ground truth among the columns of the data set."""
    truth = next((row[name] for name in GROUND_TRUTH_COLUMNS if name in row), None)
    return truth if truth is None or isinstance(truth, str) else str(truth)


def replace_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
