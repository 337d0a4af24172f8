"""Where `replay_rollout_func(folder=…)` finds the steps of a plan, and the line that makes a trainer of TRL use them.

TRL reads no files of generations; ours does, in the layout in which the callback keeps them
(`trl/plugin/step_files.py`): `step_{step:06d}/rollout-{call}.json`, one file for each time that the step generates.

Names of settings are those of TRL 1.16.0, `trainer/grpo_config.py`, as `args.to_dict()` gives them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import UNLIMITED_LENGTH
from rolloutdeck.replay import Placement, PlanFile

TRL_ROLLOUT_FORMAT = "trl-rollout"
EACH, BATCH, ROWS = "num_generations", "generation_batch_size", "per_device_train_batch_size"
ACCUMULATED, PER_GENERATION = "gradient_accumulation_steps", "steps_per_generation"
PROMPT, RESPONSE = "max_prompt_length", "max_completion_length"
VLLM, CORRECTION = "use_vllm", "vllm_importance_sampling_correction"


TrainerSettings = Mapping[str, Any]


@dataclass(frozen=True)
class TrlRequirements:
    """What a GRPOTrainer with `replay_rollout_func(folder=…)` loads."""

    facts: Mapping[str, Any]
    total_steps: int | None = None
    trainer: str = "TRL"
    role: str = "rollout"
    first: int = 1
    shared: bool = False
    repeats: bool = False
    named_by: Sequence[str] = ()
    mends: Collection[str] = ()
    excludes: Collection[str] = ()
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".json": ("json",)})

    def step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath(f"step_{step:06d}")

    def called(self, name: str, step: int) -> str:
        return name

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """A file for each generation of the step, in their order. Raises NotReplayableError."""
        wanted = [f"rollout-{call}.json" for call in range(len(files))]
        if role != self.role or not files or set(wanted) != set(files):
            raise NotReplayableError("it is no step that a RolloutdeckCallback of TRL kept")
        return wanted

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        return step

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        raise NotReplayableError("a step of TRL is replayed whole or not at all")

    def flags(self, root: str, steps: Sequence[int]) -> list[str]:
        """What goes into the training script."""
        folder = json.dumps(root, ensure_ascii=False)
        return [
            "from rolloutdeck.trainers.trl import replay_rollout_func",
            f"trainer = GRPOTrainer(..., rollout_func=replay_rollout_func(folder={folder}))",
        ]

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        """What a person must know before starting, a sentence each."""
        told = (
            "A step is replayed where its prompts are those that were answered, in their order: the same data set, "
            "seed, batch size and num_generations. All other steps, and every eval, are generated; no server is asked."
        )
        other = "Some steps lie at other numbers than they were generated at: their prompts have to be the same there."
        return [told, other] if moved else [told]


def read_requirements(settings: TrainerSettings) -> TrlRequirements:
    """What a run with these settings, by their names, loads. Raises UsageError where they don't say."""
    each, batch = number(settings, EACH), number(settings, BATCH)
    accumulated = number(settings, ACCUMULATED) or 1
    per_generation = number(settings, PER_GENERATION) or accumulated
    if batch is None and (rows := number(settings, ROWS)) is not None:
        batch = rows * per_generation  # of one process; of several the run's arguments tell it
    if not each or not batch:
        missing = [name for name, value in ((EACH, each), (ROWS, batch)) if not value]
        raise UsageError(f"The run's arguments do not say {', '.join(missing)}; give them with --set NAME=NUMBER.")
    rows = batch * max(1, accumulated // per_generation)
    facts = {
        "role": "rollout",
        "serialisation": "json",
        "format": TRL_ROLLOUT_FORMAT,
        "rows": rows,
        "prompts": rows // each,
        "samples_per_prompt": each,
        "max_prompt_length": number(settings, PROMPT)
        or UNLIMITED_LENGTH,  # TRL 1.x cuts no prompt and has no such setting
        "max_response_length": number(settings, RESPONSE),
        "parameter_sync_step": 1,
        "rollout_correction": corrects(settings),
    }
    last = number(settings, "max_steps")
    return TrlRequirements({name: value for name, value in facts.items() if value is not None}, last)


def corrects(settings: TrainerSettings) -> bool | None:
    """By default it does with what vLLM generated, `grpo_trainer.py:2860`."""
    return settings[VLLM] is True and settings.get(CORRECTION) is not False if VLLM in settings else None


def number(settings: TrainerSettings, name: str) -> int | None:
    value = settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of which only the names are known: as the `pinned` run's, else as its steps tell."""
    known = {
        EACH: facts.get("samples_per_prompt"),
        BATCH: facts.get("rows"),
        PROMPT: facts.get("max_prompt_length"),
        RESPONSE: facts.get("max_response_length"),
        VLLM: facts.get("rollout_correction"),
    }
    return dict(pinned) or {name: value for name, value in known.items() if value is not None}
