"""What a run of ROLL loads instead of generating, and the settings that make it.

With `rollout_mock: {mode: mock}` it loads `{dump_dir}/train/step_{step:06d}.pkl` at every step, from 0 to
`max_steps` - 1, and ends at the first that is not there; before each validation `val/…` likewise. Its start scripts
take a YAML file and nothing else. Read from ROLL 8eb27cc2: `distributed/scheduler/rollout_mock_mixin.py`,
`pipeline/rlvr/rlvr_pipeline.py`, `pipeline/agentic/agentic_pipeline.py`, `configs/base_config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile
from rolloutdeck.safe_pickle import rewrite
from rolloutdeck.trainers.roll.step_files import FORMAT, ROLE, ROLL_FACTS

PROMPTS, ANSWERS = "rollout_batch_size", "num_return_sequences_in_group"
PROMPT, RESPONSE, SEQUENCE = "prompt_length", "response_length", "sequence_length"
STEPS, VALIDATION = "max_steps", "validation"
_DOMAINS = "actor_train.data_args.domain_interleave_probs."
_AGENTS = ("train_env_manager.", "custom_envs.")

TrainerSettings = Mapping[str, Any]


@dataclass(frozen=True)
class RollRequirements:
    """What a run of ROLL asks for. `agents`: its rows are turns of agents, whose number nothing tells beforehand."""

    facts: Mapping[str, Any]
    total_steps: int | None
    agents: bool
    trainer: str = "ROLL"
    role: str = ROLE
    named_by: tuple[str, ...] = ()
    first: int = 0
    shared: bool = True
    mends: tuple[str, ...] = ()
    excludes: tuple[str, ...] = (".pkl",)
    repeats: bool = False
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".pkl": (FORMAT,)})

    def step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath("train")

    def called(self, name: str, step: int) -> str:
        return f"step_{step:06d}.pkl"

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """The one batch of the step. Raises NotReplayableError."""
        found = [name for name in files if name.endswith(".pkl")]
        if role != self.role or len(found) != 1:
            raise NotReplayableError("it is no batch that ROLL's rollout_mock wrote")
        return found

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        return step

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Flagged rows stay, since ROLL takes exactly its batch; none of their tokens is trained on."""
        flagged = placement.without[file.name]
        rewrite.zero_rows(source, target, "response_mask", flagged)
        rows = "row" if len(flagged) == 1 else "rows"
        return (
            f"{file.name} of {placement.entry} is replayed with response_mask 0 in its {len(flagged)} flagged {rows}: "
            "they count in the rewards of their group and in nothing else. All other bytes are the pinned ones."
        )

    def flags(self, root: str, steps: Sequence[int]) -> list[str]:
        """The lines of the run's YAML file."""
        lines = ["rollout_mock:", "  enable: true", "  mode: mock", f"  dump_dir: {json.dumps(root)}"]
        return [*lines, f"max_steps: {self.unbroken(steps)}", "eval_steps: 0" if self.agents else "validation: null"]

    def unbroken(self, steps: Sequence[int]) -> int:
        """How many steps there are from the first one on without a gap."""
        laid = set(steps)
        return next(count for count in range(len(laid) + 1) if self.first + count not in laid)

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        return [text for text in (self._gap(steps), self._validation()) if text] + [
            "ROLL still starts its inference engines and reward workers; they generate nothing."
        ]

    def _gap(self, steps: Sequence[int]) -> str:
        end = self.first + self.unbroken(steps)
        beyond = any(step > end for step in steps)
        if not beyond and (self.total_steps is None or end >= self.total_steps):
            return ""
        told = (
            f"ROLL loads a file at every step and ends where there is none: max_steps is {end}, as step {end} has none"
        )
        unused = ", and what lies behind it is not reached" if beyond else ""
        return f"{told}{unused}. The plan's action repeat or repeat_last fills such steps."

    def _validation(self) -> str:
        what = "eval_steps: 0 turns it off" if self.agents else "validation: null turns it off"
        return f"Validation would look for files of its own, which a plan has none of; {what}."


def read_requirements(settings: TrainerSettings) -> RollRequirements:
    """What a run with these settings (dotted name -> value) asks for. Raises UsageError where they are not ROLL's, or
    where each of several domains would be given the same file."""
    if not any(name in settings for name in (PROMPTS, STEPS)) or not _is_rolls(settings):
        raise UsageError(
            f"These are no settings of ROLL; give its YAML file with --config, or at least --set {STEPS}=N "
            f"--set {PROMPTS}=N."
        )
    domains = sorted(name.removeprefix(_DOMAINS) for name in settings if name.startswith(_DOMAINS))
    if len(domains) > 1:
        raise UsageError(
            f"This run has {len(domains)} domains ({', '.join(domains)[:200]}). ROLL writes and loads one file a step "
            "for all of them, so each would train on the batch of the domain that wrote last; it can't be replayed."
        )
    agents = any(name.startswith(_AGENTS) for name in settings)
    steps = _number(settings, STEPS)
    return RollRequirements(
        {**ROLL_FACTS, **({} if agents else _shape(settings))}, steps if steps and steps > 0 else None, agents
    )


def _is_rolls(settings: TrainerSettings) -> bool:
    """Other trainers' settings have names with dots throughout."""
    return PROMPTS in settings or any(name.startswith("rollout_mock.") for name in settings)


def _shape(settings: TrainerSettings) -> dict[str, Any]:
    """The facts of `compatibility` that RLVR's settings tell."""
    prompts, answers = _number(settings, PROMPTS), _number(settings, ANSWERS)
    prompt, response, whole = (_number(settings, name) for name in (PROMPT, RESPONSE, SEQUENCE))
    if response is None and whole is not None and prompt is not None:
        response = whole - prompt
    facts = {
        "prompts": prompts,
        "samples_per_prompt": answers,
        "rows": prompts * answers if prompts and answers else None,
        "max_prompt_length": prompt,
        "max_response_length": response,
        "model": settings.get("pretrain"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _number(settings: TrainerSettings, name: str) -> int | None:
    value = settings.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{name}={value} is no whole number; give it with --set {name}=NUMBER.")
    return value


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run is taken to have of which nothing is known: the `pinned` run's, else as its batches."""
    if pinned:
        return dict(pinned)
    if "prompts" not in facts:  # whose rows are turns
        return {PROMPTS: facts.get("rows"), f"{_AGENTS[0]}group_size": None}
    known = {
        PROMPTS: facts["prompts"],
        ANSWERS: facts.get("samples_per_prompt"),
        PROMPT: facts.get("max_prompt_length"),
        RESPONSE: facts.get("max_response_length"),
    }
    return {name: value for name, value in known.items() if value is not None}
