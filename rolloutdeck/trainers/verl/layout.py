"""Layout of the steps that a run of verl replays, the files it can load, and the overrides that make it load them.

Source: verl 0.9.1 (`utils/skip/rollout_skip.py`, `trainer/ppo/v1/trainer_base.py`, `experimental/fully_async_policy`)
and 0.8.0 (`utils/rollout_skip.py`, where it is called V2). All search below
`{dump_dir}/{experiment}_{project}/GBS{gbs}_N{n}_in{prompt}_out{response}/`, with one folder per step. verl generates a
step that is not found under exactly these names, and writes it there, without a message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile, RunRequirements, write_without_prompts
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainers.verl import facts
from rolloutdeck.trainers.verl.facts import BATCH, EXPERIMENT, GEN_BATCH, PROJECT, PROMPT, RESPONSE, SAMPLES_PER_PROMPT
from rolloutdeck.trainers.verl.settings_check import (
    SKIP_ROLE_BY_TRAINER,
    detect_verl_trainer,
    format_override,
    quote_hydra_value,
)

GEN, TQ, NEW, META = "gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json"
# A new_batch has the prompts: verl writes no tensors into it, older trainers may.
FORMATS = {GEN: ("gen_batch",), TQ: ("tq_batch",), NEW: ("new_batch", "gen_batch")}

_READERS = {"rollout_tq": "the V1 trainer", "rollout": "the V0 trainer", "async_rollout": "the fully async trainer"}


@dataclass(frozen=True, kw_only=True)
class VerlRequirements(RunRequirements):
    """What a run of verl requires. `total_steps` is None in fully async, where a plan may count prompts.

    `folder` is below the dump_dir and contains the step folders; `inner` is the number of folders per step in V1 (0:
    the files are in the step's own folder); `stride` is the number of prompts, the unit of fully async's step folders,
    per training step. `logprobs_setting`: the setting with which a batch without `rollout_log_probs` ends the training;
    "" if they may be missing.
    """

    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: FORMATS)
    folder: PurePosixPath
    inner: int = 0
    stride: int = 1
    warms_up: bool = False
    is_verl_08: bool = False
    logprobs_setting: str = ""

    def get_step_folder(self, step: int) -> PurePosixPath:
        return self.folder / (f"genstep_{step:06d}" if self.is_verl_08 else str(step))

    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        return write_without_prompts(self, placement, file, source, target)

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        if role != self.role:
            writer = _READERS.get(role, "another trainer")
            reads = f"this run's {self.trainer} trainer reads {self.role} only"
            raise NotReplayableError(f"it is a {role} dump of {writer}; {reads}")
        required = self._list_required_files()
        missing = [name for name in required if name not in files]
        if missing and self.is_verl_08:
            raise NotReplayableError(f"verl 0.8 needs {', '.join(missing)} as well, which later versions don't write")
        if missing:
            raise NotReplayableError(f"it has no {', '.join(missing)}")
        if deeper := sorted(name for name in files if name.endswith(f"/{TQ}") and name not in required):
            names = ", ".join(deeper)
            raise NotReplayableError(f"it has {names} too: it is from a run with another parameter_sync_step")
        return required

    def _list_required_files(self) -> list[str]:
        if self.is_verl_08:
            return [GEN, NEW, META]
        if not self.inner:
            return [GEN, META]
        return [f"{inner}/{name}" for name in (TQ, META) for inner in range(self.inner)]

    def get_folder_number(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        """Returns the step folder of an artifact of a pinned step that is replayed at `step`.

        Fully async counts prompts in its folders: the prompts of a training step keep their distances, moved by
        `stride` prompts per training step.
        """
        if self.role != "async_rollout":
            return step
        return artifact_step + (step - source_step) * (1 if step_kind == "feed_index" else self.stride)

    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        """Returns the overrides that replay exactly these step folders below `root`, quoted for a shell."""
        if self.is_verl_08:
            prefix, selection = facts.VERL_08_SKIP_PREFIX, {"max_dump_step": str(max(steps, default=0))}
            validation: dict[str, object] = {"trainer.val_before_train": False, "trainer.test_freq": -1}
        else:
            prefix, selection = f"skip.{self.role}.", {"steps": "[" + ",".join(map(str, sorted(steps))) + "]"}
            validation = {}
        settings = {"enable": True, "dump_dir": quote_hydra_value(root), **selection, "action": "cache"}
        overrides = {**{f"{prefix}{name}": value for name, value in settings.items()}, **validation}
        return [format_override(name, value) for name, value in overrides.items()]

    def describe_assumptions(self, given: Mapping[str, Any]) -> Mapping[str, str]:
        version = (
            "verl 0.8, since only it writes such files" if self.is_verl_08 else f"verl 0.9 or newer, {self.trainer}"
        )
        assumptions = {"trainer": version}
        if EXPERIMENT not in given:
            hint = f"give {EXPERIMENT} with --set, or another trainer.default_local_dir, to keep them as they are"
            assumptions["checkpoints"] = f"those of this experiment; {hint}"
        return assumptions

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        notes = []
        if self.repairable_files and moved:
            notes.append(
                "The V0 trainer takes ground truth, data source and uid from the live batch: at a step that is not the "
                "pinned one, or if rows are excluded, the run's own JSONL shows those of another prompt. Tokens and "
                "rewards are the pinned ones."
            )
        if self.warms_up:
            effect = "the async modes of V1 skip their warm-up batches for the whole run"
            notes.append(f"While skip.rollout_tq is enabled, {effect}.")
        if self.is_verl_08:
            gaps = sorted(set(range(1, max(steps, default=0) + 1)) - set(steps))
            effect = f"; it will generate and write steps {gaps[0]} to {gaps[-1]}" if gaps else ""
            condition = "verl 0.8 counts generations from 1, validation too, so validation must be off"
            notes.append(f"{condition}{effect}.")
        if self.role == "async_rollout":
            condition = "Fully async trains in the order of completion"
            notes.append(f"{condition}: the steps below count prompts as they are fed.")
        return notes


def read_requirements(settings: TrainerSettings) -> VerlRequirements:
    """Returns the requirements of a run with these settings (dotted name -> value).

    Raises UsageError if a setting is missing or invalid, or if the trainer can't replay.
    """
    is_verl_08 = facts.is_verl_08(settings)
    trainer = "V0" if is_verl_08 else detect_verl_trainer(settings, complete=False)
    role = SKIP_ROLE_BY_TRAINER[trainer]
    if facts.SINGLE_FILE_SKIP_SETTING in settings:
        raise UsageError("verl up to 0.7 replays one file at every step; `pull` supports 0.8 and newer.")
    if not role:
        raise UsageError(f"The {trainer} trainer of verl replays nothing: it never starts verl's rollout skip.")
    shape = facts.build_batch_shape(settings, trainer)
    name = f"{_read_name(settings, EXPERIMENT)}_{_read_name(settings, PROJECT)}"
    folder = PurePosixPath(name) / "GBS{gbs}_N{n}_in{prompt}_out{response}".format(**shape)
    if folder.is_absolute() or ".." in folder.parts or "\0" in name:
        raise UsageError(f"{EXPERIMENT} and {PROJECT} give the folder {name!r}, which is outside of --into.")
    steps = None if trainer == "fully async" else facts.parse_optional_number(settings, "trainer.total_training_steps")
    return VerlRequirements(
        trainer="verl 0.8" if is_verl_08 else trainer,
        role=role,
        folder=folder,
        facts=facts.build_setting_facts(settings, trainer),
        folder_settings=(*_list_trainer_settings(settings, trainer), *_list_folder_settings(settings, shape)),
        repairable_files=(GEN,) if role == "rollout" and not is_verl_08 else (),
        # In 0.8 the labels of the rows are in a separate file.
        changeable_files=() if is_verl_08 else (GEN, TQ),
        plug_in_actions=() if is_verl_08 else ("mask",),
        # V1 repeats prompts until its batch is full; V0 fails on a batch of another size.
        repeats_prompts=role == "rollout_tq",
        inner=shape["inner"] if role == "rollout_tq" else 0,
        stride=shape["stride"],
        warms_up=trainer == "V1" and facts.get_trainer_mode(settings) != "sync",
        total_steps=steps,
        is_verl_08=is_verl_08,
        logprobs_setting=_find_logprobs_setting(settings, trainer),
    )


def _find_logprobs_setting(settings: TrainerSettings, trainer: str) -> str:
    """Returns `logprobs_setting`. V1 compares the rollout's log-probs with its own whenever the rollout computes them,
    the other trainers only if a batch has them."""
    names = [facts.BYPASS, *([facts.LOGPROBS] if trainer == "V1" else [])]
    return next((name for name in names if settings.get(name) is True), "")


def _list_trainer_settings(settings: TrainerSettings, trainer: str) -> list[str]:
    """Returns the settings that select the trainer. 0.8 has no such settings."""
    if trainer not in ("V0", "V1") or facts.is_verl_08(settings):
        return []
    names = ["trainer.use_v1"]
    if trainer == "V1" and (mode := facts.get_trainer_mode(settings)) != "sync":
        names += [facts.MODE, f"trainer.v1.{mode}.parameter_sync_step"]
    return [format_override(name, settings[name]) for name in names if settings.get(name) is not None]


def _list_folder_settings(settings: TrainerSettings, shape: Mapping[str, int]) -> tuple[str, ...]:
    names = [EXPERIMENT, PROJECT, *([BATCH] if settings.get(BATCH) else []), SAMPLES_PER_PROMPT, PROMPT, RESPONSE]
    lines = [format_override(name, quote_hydra_value(settings[name])) for name in names]
    return (*lines, *([format_override(GEN_BATCH, shape["gbs"])] if settings.get(GEN_BATCH) is not None else []))


def _read_name(settings: TrainerSettings, name: str) -> str:
    value = str(settings[name])
    if "***" in value:
        raise UsageError(f"{name} is masked in the run's config; give it with --set {name}=VALUE.")
    if "${" in value:  # of OmegaConf, for which the running configuration is needed
        raise UsageError(f"Cannot determine {name}={value}; give it with --set {name}=VALUE.")
    return value
