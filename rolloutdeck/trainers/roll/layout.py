"""Layout of the batches that a run of ROLL loads instead of generating, and the settings that make it load them.

With `rollout_mock: {mode: mock}` ROLL loads `{dump_dir}/train/step_{step:06d}.pkl` at every step, from 0 to `max_steps`
- 1, and ends at the first missing file; before each validation it loads `val/…` the same way. Its start scripts take a
YAML file only. Source: ROLL 8eb27cc2: `distributed/scheduler/rollout_mock_mixin.py`, `pipeline/rlvr/rlvr_pipeline.py`,
`pipeline/agentic/agentic_pipeline.py`, `configs/base_config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile, RunRequirements
from rolloutdeck.safe_pickle import rewrite
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainers.common import drop_none
from rolloutdeck.trainers.roll.step_files import FORMAT, ROLL_FACTS

PROMPTS, SAMPLES_PER_PROMPT = "rollout_batch_size", "num_return_sequences_in_group"
PROMPT, RESPONSE, SEQUENCE = "prompt_length", "response_length", "sequence_length"
STEPS, VALIDATION = "max_steps", "validation"
_DOMAIN_PREFIX = "actor_train.data_args.domain_interleave_probs."
_AGENT_PREFIXES = ("train_env_manager.", "custom_envs.")


@dataclass(frozen=True, kw_only=True)
class RollRequirements(RunRequirements):
    """What a run of ROLL requires. `agents`: its rows are turns of agents, whose number is not known in advance."""

    trainer: str = "ROLL"
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".pkl": (FORMAT,)})
    first: int = 0
    shared: bool = True
    changeable_files: Collection[str] = (".pkl",)
    file_actions: Sequence[str] = ("mask",)
    agents: bool

    def get_step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath("train")

    def get_file_name(self, name: str, step: int) -> str:
        return f"step_{step:06d}.pkl"

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        names = [name for name in files if name.endswith(".pkl")]
        if role != self.role or len(names) != 1:
            raise NotReplayableError("it is not a batch that ROLL's rollout_mock wrote")
        return names

    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Sets the response mask of selected rows to 0 and keeps the rows, since ROLL needs its number of rows."""
        selected = placement.changed_rows[file.name]
        rewrite.zero_rows(source, target, "response_mask", selected)
        rows = "row" if len(selected) == 1 else "rows"
        return (
            f"{file.name} of {placement.entry} is replayed with response_mask 0 in its {len(selected)} "
            f"{placement.entry.selected_word} {rows}: "
            "they count in the rewards of their group and in nothing else. All other bytes are the pinned ones."
        )

    def check_steps(self, steps: Sequence[int]) -> None:
        if not self.count_steps_without_gap(steps):
            raise UsageError(
                f"ROLL ends at its first step without a file, and the plan has none for step {self.first}. Pin that "
                "step too, or move the pins with the plan's target steps."
            )

    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        return [
            *("rollout_mock:", "  enable: true", "  mode: mock", f"  dump_dir: {json.dumps(root)}"),
            f"max_steps: {self.count_steps_without_gap(steps)}",
            "eval_steps: 0" if self.agents else "validation: null",
        ]

    def count_steps_without_gap(self, steps: Sequence[int]) -> int:
        """Returns the number of steps from the first one without a gap."""
        available = set(steps)
        return next(count for count in range(len(available) + 1) if self.first + count not in available)

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        gap = self._describe_gap(steps)
        setting = "eval_steps: 0" if self.agents else "validation: null"
        return [
            *([gap] if gap else []),
            f"Validation would load its own files, which a plan does not have; {setting} turns it off.",
            "ROLL still starts its inference engines and reward workers; they generate nothing.",
        ]

    def _describe_gap(self, steps: Sequence[int]) -> str:
        end = self.first + self.count_steps_without_gap(steps)
        has_later_steps = any(step > end for step in steps)
        if not has_later_steps and (self.total_steps is None or end >= self.total_steps):
            return ""
        condition = (
            f"ROLL loads a file at every step and ends where there is none: max_steps is {end}, as step {end} has none"
        )
        unused = ", and later steps are not reached" if has_later_steps else ""
        return f"{condition}{unused}. The plan's action repeat or repeat_last fills such steps."


def read_requirements(settings: TrainerSettings) -> RollRequirements:
    """Returns the requirements of a run with these settings (dotted name -> value).

    Raises UsageError if they are not ROLL's, or if several domains would load the same file.
    """
    if not any(name in settings for name in (PROMPTS, STEPS)) or not _has_roll_settings(settings):
        raise UsageError(
            f"These are not settings of ROLL; give its YAML file with --config, or at least --set {STEPS}=N "
            f"--set {PROMPTS}=N."
        )
    domains = sorted(name.removeprefix(_DOMAIN_PREFIX) for name in settings if name.startswith(_DOMAIN_PREFIX))
    if len(domains) > 1:
        raise UsageError(
            f"This run has {len(domains)} domains ({', '.join(domains)[:200]}). ROLL writes and loads one file a step "
            "for all of them, so each would train on the batch of the last domain; it can't be replayed."
        )
    agents = any(name.startswith(_AGENT_PREFIXES) for name in settings)
    steps = _get_number(settings, STEPS)
    return RollRequirements(
        facts={**ROLL_FACTS, **({} if agents else _build_shape_facts(settings))},
        total_steps=steps if steps and steps > 0 else None,
        agents=agents,
    )


def _has_roll_settings(settings: TrainerSettings) -> bool:
    """Returns whether the settings are ROLL's: all setting names of other trainers have dots."""
    return PROMPTS in settings or any(name.startswith("rollout_mock.") for name in settings)


def _build_shape_facts(settings: TrainerSettings) -> dict[str, Any]:
    """Returns the facts of `compatibility` that RLVR's settings show."""
    prompts, samples = _get_number(settings, PROMPTS), _get_number(settings, SAMPLES_PER_PROMPT)
    prompt, response, sequence = (_get_number(settings, name) for name in (PROMPT, RESPONSE, SEQUENCE))
    if response is None and sequence is not None and prompt is not None:
        response = sequence - prompt
    facts = {
        "prompts": prompts,
        "samples_per_prompt": samples,
        "rows": prompts * samples if prompts and samples else None,
        "max_prompt_length": prompt,
        "max_response_length": response,
        "model": settings.get("pretrain"),
    }
    return drop_none(facts)


def _get_number(settings: TrainerSettings, name: str) -> int | None:
    value = settings.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{name}={value} is not a whole number; give it with --set {name}=NUMBER.")
    return value


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the probable settings of a run: those of the `pinned` run, else those that its batches show."""
    if pinned:
        return dict(pinned)
    if "prompts" not in facts:  # agents: rows are turns
        return {PROMPTS: facts.get("rows"), f"{_AGENT_PREFIXES[0]}group_size": None}
    settings = {
        PROMPTS: facts["prompts"],
        SAMPLES_PER_PROMPT: facts.get("samples_per_prompt"),
        PROMPT: facts.get("max_prompt_length"),
        RESPONSE: facts.get("max_response_length"),
    }
    return drop_none(settings)
