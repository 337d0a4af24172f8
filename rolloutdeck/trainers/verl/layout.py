"""Layout of the steps that a run of verl replays, the files it can load, and the overrides that make it load them.

Source: verl 0.9.1 (`utils/skip/rollout_skip.py`, `trainer/ppo/v1/trainer_base.py`, `experimental/fully_async_policy`)
and 0.8.0 (`utils/rollout_skip.py`, RolloutSkip V2). All search below
`{dump_dir}/{experiment}_{project}/GBS{gbs}_N{n}_in{prompt}_out{response}/`, with one folder per step. verl generates a
step that is not found under exactly these names, and writes it there, without a message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile, write_without_prompts
from rolloutdeck.trainer_config import parse_scalar
from rolloutdeck.trainers.verl.facts import (
    BATCH,
    EXPERIMENT,
    GEN_BATCH,
    PROJECT,
    PROMPT,
    RESPONSE,
    SAMPLES_PER_PROMPT,
    V1_SKIP_SETTING,
    V2_SKIP_PREFIX,
    TrainerSettings,
    build_batch_shape,
    build_setting_facts,
    get_trainer_mode,
    parse_optional_number,
)
from rolloutdeck.trainers.verl.settings_check import SKIP_ROLE_BY_TRAINER, detect_verl_trainer, format_override

GEN, TQ, NEW, META = "gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json"
# A new_batch has the prompts: verl writes no tensors into it, older trainers may.
FORMATS = {GEN: ("gen_batch",), TQ: ("tq_batch",), NEW: ("new_batch", "gen_batch")}

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+\Z")
_ESCAPED_PART = re.compile(r'(\\*)("|\Z)')
_READERS = {"rollout_tq": "the V1 trainer", "rollout": "the V0 trainer", "async_rollout": "the fully async trainer"}


@dataclass(frozen=True)
class VerlRequirements:
    """What a run of verl requires.

    `facts` are those of `compatibility`; `folder` is below the dump_dir and contains the step folders;
    `folder_settings` are the settings in its name; `inner` is the number of folders per step in V1 (0: the files are in
    the step's own folder); `stride` is the number of prompts, the unit of fully async's step folders, per training
    step; `total_steps` is None if the settings have none, and in fully async, where a plan may count prompts.
    `formats`: file name -> allowed formats, as `safe_pickle.check_file_safety` names them.
    """

    trainer: str
    role: str
    folder: PurePosixPath
    facts: Mapping[str, Any]
    folder_settings: tuple[str, ...]
    inner: int = 0
    stride: int = 1
    total_steps: int | None = None
    warms_up: bool = False
    v2: bool = False
    first: int = 1
    shared: bool = False
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: FORMATS)

    @property
    def repairable(self) -> tuple[str, ...]:
        """The files that may need a repair of `safe_pickle.rewrite` before this trainer can load them."""
        return (GEN,) if self.role == "rollout" and not self.v2 else ()

    @property
    def excludable(self) -> tuple[str, ...]:
        """The files whose rows can be excluded; in 0.8 the labels of the rows are in a separate file."""
        return () if self.v2 else (GEN, TQ)

    @property
    def repeats_prompts(self) -> bool:
        """Whether a smaller batch works: V1 repeats the prompts until its batch is full; V0 fails on a batch of another
        size."""
        return self.role == "rollout_tq"

    def get_step_folder(self, step: int) -> PurePosixPath:
        return self.folder / (f"genstep_{step:06d}" if self.v2 else str(step))

    def get_file_name(self, name: str, step: int) -> str:
        return name

    def write_without_flagged(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        return write_without_prompts(self, placement, file, source, target)

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        """Returns the artifact's files that the trainer loads from a step's folder, markers last. Raises
        NotReplayableError."""
        if role != self.role:
            writer = _READERS.get(role, "another trainer")
            raise NotReplayableError(
                f"it is a {role} dump of {writer}; this run's {self.trainer} trainer reads {self.role} only"
            )
        required = self._list_required_files()
        missing = [name for name in required if name not in files]
        if missing and self.v2:
            raise NotReplayableError(f"verl 0.8 needs {', '.join(missing)} as well, which later versions don't write")
        if missing:
            raise NotReplayableError(f"it has no {', '.join(missing)}")
        deeper = [name for name in files if name.endswith(f"/{TQ}") and name not in required]
        if deeper:
            raise NotReplayableError(
                f"it has {', '.join(sorted(deeper))} too: it is from a run with another parameter_sync_step"
            )
        return required

    def _list_required_files(self) -> list[str]:
        if self.v2:
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
        if self.v2:
            settings: dict[str, object] = {
                "enable": True,
                "dump_dir": quote_hydra_value(root),
                "max_dump_step": max(steps, default=0),
            }
            lines = [
                format_override(f"{V2_SKIP_PREFIX}{name}", value)
                for name, value in {**settings, "action": "cache"}.items()
            ]
            return [
                *lines,
                format_override("trainer.val_before_train", False),
                format_override("trainer.test_freq", -1),
            ]
        listed = "[" + ",".join(map(str, sorted(steps))) + "]"
        settings = {"enable": True, "dump_dir": quote_hydra_value(root), "steps": listed, "action": "cache"}
        return [format_override(f"skip.{self.role}.{name}", value) for name, value in settings.items()]

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        """Returns what the user must know before the start, one sentence each."""
        return [
            text
            for text in (
                self._describe_moved_labels(moved),
                self._describe_warm_up(),
                self._describe_gaps(steps),
                self._describe_async_order(),
            )
            if text
        ]

    def _describe_moved_labels(self, moved: bool) -> str:
        if not self.repairable or not moved:
            return ""
        return (
            "The V0 trainer takes ground truth, data source and uid from the live batch: at a step that is not the "
            "pinned one, or if rows are excluded, the run's own JSONL shows those of another prompt. Tokens and "
            "rewards are the pinned ones."
        )

    def _describe_warm_up(self) -> str:
        if not self.warms_up:
            return ""
        return "While skip.rollout_tq is enabled, the async modes of V1 skip their warm-up batches for the whole run."

    def _describe_gaps(self, steps: Sequence[int]) -> str:
        if not self.v2:
            return ""
        gaps = sorted(set(range(1, max(steps, default=0) + 1)) - set(steps))
        condition = "verl 0.8 counts generations from 1, validation too, so validation must be off"
        return f"{condition}; it will generate and write steps {gaps[0]} to {gaps[-1]}." if gaps else f"{condition}."

    def _describe_async_order(self) -> str:
        if self.role != "async_rollout":
            return ""
        return "Fully async trains in the order of completion: the steps below count prompts as they are fed."


def read_requirements(settings: TrainerSettings) -> VerlRequirements:
    """Returns the requirements of a run with these settings (dotted name -> value).

    Raises UsageError if a setting is missing or invalid, or if the trainer can't replay.
    """
    v2 = any(name.startswith(V2_SKIP_PREFIX) for name in settings) and not any(
        name.startswith("skip.") for name in settings
    )
    trainer = "V0" if v2 else detect_verl_trainer(settings, complete=False)
    role = SKIP_ROLE_BY_TRAINER[trainer]
    if V1_SKIP_SETTING in settings:
        raise UsageError("verl up to 0.7 replays one file at every step; `pull` supports 0.8 and newer.")
    if not role:
        raise UsageError(f"The {trainer} trainer of verl replays nothing: it never starts verl's rollout skip.")
    shape = build_batch_shape(settings, trainer)
    name = f"{_read_name(settings, EXPERIMENT)}_{_read_name(settings, PROJECT)}"
    folder = PurePosixPath(name) / "GBS{gbs}_N{n}_in{prompt}_out{response}".format(**shape)
    if folder.is_absolute() or ".." in folder.parts or "\0" in name:
        raise UsageError(f"{EXPERIMENT} and {PROJECT} give the folder {name!r}, which is outside of --into.")
    return VerlRequirements(
        trainer="V2" if v2 else trainer,
        role=role,
        folder=folder,
        facts=build_setting_facts(settings, trainer),
        folder_settings=_list_folder_settings(settings, shape),
        inner=shape["inner"] if role == "rollout_tq" else 0,
        stride=shape["stride"],
        warms_up=trainer == "V1" and get_trainer_mode(settings) != "sync",
        total_steps=None
        if trainer == "fully async"
        else parse_optional_number(settings, "trainer.total_training_steps"),
        v2=v2,
    )


def _list_folder_settings(settings: TrainerSettings, shape: Mapping[str, int]) -> tuple[str, ...]:
    names = [EXPERIMENT, PROJECT, *([BATCH] if settings.get(BATCH) else []), SAMPLES_PER_PROMPT, PROMPT, RESPONSE]
    lines = [format_override(name, quote_hydra_value(settings[name])) for name in names]
    return (*lines, *([format_override(GEN_BATCH, shape["gbs"])] if settings.get(GEN_BATCH) is not None else []))


def _read_name(settings: TrainerSettings, name: str) -> str:
    value = str(settings[name])
    if "***" in value:
        raise UsageError(f"{name} is masked in the run's config; give it with --set {name}=VALUE.")
    return value


def quote_hydra_value(value: object) -> str:
    """Returns a value for Hydra's grammar, in quotes if Hydra would parse the text differently or not at all."""
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.match(text) and isinstance(parse_scalar(text), str)):
        return text
    escaped = _ESCAPED_PART.sub(lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return '"' + escaped.replace("${", "\\${") + '"'
