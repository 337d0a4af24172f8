"""Layout of the steps that `replay_rollout_func(folder=…)` reads, and the lines of a training script that use it.

TRL reads no files of generations; ours does, in the layout in which the callback stores them
(`trl/plugin/step_files.py`): `step_{step:06d}/rollout-{call}.json`, one file for each generation of the step.

Names of settings are those of TRL 1.16.0, `trainer/grpo_config.py`, as `args.to_dict()` returns them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import UNLIMITED_LENGTH
from rolloutdeck.replay import Placement, PlanFile, RunRequirements
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainers.common import drop_none, parse_int

TRL_ROLLOUT_FORMAT = "trl-rollout"
GENERATIONS, BATCH, ROWS = "num_generations", "generation_batch_size", "per_device_train_batch_size"
ACCUMULATION, PER_GENERATION = "gradient_accumulation_steps", "steps_per_generation"
ITERATIONS = "num_iterations"
PROMPT, RESPONSE = "max_prompt_length", "max_completion_length"
VLLM, CORRECTION = "use_vllm", "vllm_importance_sampling_correction"


@dataclass(frozen=True, kw_only=True)
class TrlRequirements(RunRequirements):
    """What a GRPOTrainer with `replay_rollout_func(folder=…)` loads."""

    trainer: str = "TRL"
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".json": ("json",)})
    changeable_files: Collection[str] = (".json",)
    file_actions: Sequence[str] = ("mask", "drop")

    def get_step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath(f"step_{step:06d}")

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        expected = [f"rollout-{call}.json" for call in range(len(files))]
        if role != self.role or not files or set(expected) != set(files):
            raise NotReplayableError("it is not a step that a RolloutdeckCallback of TRL stored")
        return expected

    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Gives rows an `env_mask` of zeros: TRL then has no token of them in its loss, and all else as before."""
        document = json.loads(source.read_bytes())
        answers = placement.answers_per_prompt
        masked = list_masked_rows(placement.action, placement.changed_rows[file.name], answers, len(document["rows"]))
        document["rows"] = mask_rows(document["rows"], masked)
        target.write_text(json.dumps(document), "utf-8")
        total, word = len(document["rows"]), placement.entry.selected_word
        count = len(placement.changed_rows[file.name])
        return (
            f"{file.name} of {placement.entry} is replayed with env_mask 0 in {len(masked)} of its {total} rows, of "
            f"which {count} {'is' if count == 1 else 'are'} {word}: they count in the rewards of their group and not "
            "in the loss. Rolloutdeck wrote this file; everything else in it is as pinned."
        )

    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        folder = json.dumps(root, ensure_ascii=False)
        return [
            "from rolloutdeck.trainers.trl import replay_rollout_func",
            f"trainer = GRPOTrainer(..., rollout_func=replay_rollout_func(folder={folder}))",
        ]

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        condition = (
            "A step is replayed if its prompts are those that were answered, in the same order: the same data set, "
            "seed, batch size and num_generations. All other steps, and every eval, are generated; no server is used."
        )
        if not moved:
            return [condition]
        return [
            condition,
            "Some steps have other numbers than when they were generated: their prompts must be the same there.",
        ]


def list_masked_rows(action: str, selected: Collection[int], answers: int, rows: int) -> set[int]:
    """Returns the rows of a file without a token in the loss: the selected ones, or with `drop` all `answers` to their
    prompts, which are neighbours. Raises NotReplayableError."""
    if any(not 0 <= row < rows for row in selected):
        raise NotReplayableError(f"a selected row is not one of the {rows} rows of the file")
    if action == "mask":
        return set(selected)
    if not answers:
        raise NotReplayableError("the number of responses to a prompt is not known, so no prompt can be dropped")
    prompts = {row // answers for row in selected}
    return {row for row in range(rows) if row // answers in prompts}


def mask_rows(rows: Sequence[Mapping[str, Any]], masked: Collection[int]) -> list[dict[str, Any]]:
    """Returns the rows; those that are `masked` have no token in the loss. TRL needs a mask for all rows then."""
    if not masked:
        return [dict(row) for row in rows]
    full = [row.get("env_mask") or [1] * len(row["completion_ids"]) for row in rows]
    return [
        {**row, "env_mask": [0] * len(own) if index in masked else own}
        for index, (row, own) in enumerate(zip(rows, full, strict=True))
    ]


def read_requirements(settings: TrainerSettings) -> TrlRequirements:
    """Returns the requirements of a run with these settings, by name. Raises UsageError if one is missing."""
    generations, batch = get_positive_int(settings, GENERATIONS), get_positive_int(settings, BATCH)
    accumulation = get_positive_int(settings, ACCUMULATION) or 1
    per_generation = get_positive_int(settings, PER_GENERATION) or accumulation
    if batch is None and (rows := get_positive_int(settings, ROWS)) is not None:
        batch = rows * per_generation  # of one process; runs with several set it in their arguments
    if not generations or not batch:
        missing = [name for name, value in ((GENERATIONS, generations), (ROWS, batch)) if not value]
        raise UsageError(f"The run's arguments have no {', '.join(missing)}; give them with --set NAME=NUMBER.")
    iterations = get_positive_int(settings, ITERATIONS) or 1  # a generation is trained on so many times
    rows = batch * max(1, accumulation // (per_generation * iterations))
    facts = {
        "role": "rollout",
        "serialisation": "json",
        "format": TRL_ROLLOUT_FORMAT,
        "rows": rows,
        "prompts": rows // generations,
        "samples_per_prompt": generations,
        # TRL 1.x truncates no prompt and has no such setting.
        "max_prompt_length": get_positive_int(settings, PROMPT) or UNLIMITED_LENGTH,
        "max_response_length": get_positive_int(settings, RESPONSE),
        "parameter_sync_step": 1,
        "rollout_correction": has_rollout_correction(settings),
    }
    return TrlRequirements(facts=drop_none(facts), total_steps=get_positive_int(settings, "max_steps"))


def has_rollout_correction(settings: TrainerSettings) -> bool | None:
    """Returns whether the rollout is corrected: by default if vLLM generated it (`grpo_trainer.py:2860`)."""
    return settings[VLLM] is True and settings.get(CORRECTION) is not False if VLLM in settings else None


def get_positive_int(settings: TrainerSettings, name: str) -> int | None:
    value = parse_int(settings.get(name))
    return value if value and value > 0 else None


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the probable settings of a run: those of the `pinned` run, else those that its steps show."""
    known = {
        GENERATIONS: facts.get("samples_per_prompt"),
        BATCH: facts.get("rows"),
        PROMPT: facts.get("max_prompt_length"),
        RESPONSE: facts.get("max_response_length"),
        VLLM: facts.get("rollout_correction"),
    }
    return dict(pinned) or drop_none(known)
