"""Where a run of verl looks for steps to replay, which it can take, and the overrides that make it look there.

Read from verl 0.9.1 (`utils/skip/rollout_skip.py`, `trainer/ppo/v1/trainer_base.py`, `experimental/fully_async_policy`)
and 0.8.0 (`utils/rollout_skip.py`, RolloutSkip V2). All look below
`{dump_dir}/{experiment}_{project}/GBS{gbs}_N{n}_in{prompt}_out{response}/`, with a folder per step; what is not there
under exactly these names is generated, and written there, without a word.
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
    V1_SKIP_SETTING,
    V2_SKIP_PREFIX,
    N,
    TrainerSettings,
    build_batch_shape,
    build_setting_facts,
    get_trainer_mode,
    parse_optional_number,
)
from rolloutdeck.trainers.verl.settings_check import SKIP_ROLE_BY_TRAINER, detect_verl_trainer, format_override

GEN, TQ, NEW, META = "gen_batch.dp", "tq_batch.pt", "new_batch.dp", "meta.json"
# A new_batch is what was asked: verl leaves no tensors in it, older trainers may.
FORMATS = {GEN: ("gen_batch",), TQ: ("tq_batch",), NEW: ("new_batch", "gen_batch")}

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+\Z")
_TO_ESCAPE = re.compile(r'(\\*)("|\Z)')
_READERS = {"rollout_tq": "the V1 trainer", "rollout": "the V0 trainer", "async_rollout": "the fully async trainer"}


@dataclass(frozen=True)
class VerlRequirements:
    """What a run of verl asks for.

    `facts` are those of `compatibility`; `folder` lies below the dump_dir and holds the step folders; `named_by` are
    the settings in its name; `inner` counts the folders of a step in V1 (0: the files lie in the step's own folder);
    `stride` is how many prompts, the unit of fully async's step folders, one training step takes; `total_steps` is
    None where the settings do not say, and in fully async, where a plan may count prompts. `formats` is what a file of
    a name has to be, in the words of `safe.check`.
    """

    trainer: str
    role: str
    folder: PurePosixPath
    facts: Mapping[str, Any]
    named_by: tuple[str, ...]
    inner: int = 0
    stride: int = 1
    total_steps: int | None = None
    warms_up: bool = False
    v2: bool = False
    first: int = 1
    shared: bool = False
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: FORMATS)

    @property
    def mends(self) -> tuple[str, ...]:
        """The files that may need one of the repairs of `safe.repair` before this trainer can load them."""
        return (GEN,) if self.role == "rollout" and not self.v2 else ()

    @property
    def excludes(self) -> tuple[str, ...]:
        """The files of which rows can be left out; in 0.8 the labels of the rows lie in a file of their own."""
        return () if self.v2 else (GEN, TQ)

    @property
    def repeats(self) -> bool:
        """V1 goes around the prompts that it finds until its batch is full; V0 ends on a batch of another size."""
        return self.role == "rollout_tq"

    def step_folder(self, step: int) -> PurePosixPath:
        return self.folder / (f"genstep_{step:06d}" if self.v2 else str(step))

    def called(self, name: str, step: int) -> str:
        return name

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        return write_without_prompts(self, placement, file, source, target)

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """Those of an artifact's files that the trainer loads from a step's folder, markers last. Raises
        NotReplayableError."""
        if role != self.role:
            writer = _READERS.get(role, "another trainer")
            raise NotReplayableError(
                f"it is a {role} dump of {writer}; this run's {self.trainer} trainer reads {self.role} only"
            )
        needed = self._needed()
        missing = [name for name in needed if name not in files]
        if missing and self.v2:
            raise NotReplayableError(f"verl 0.8 wants {', '.join(missing)} as well, which later versions don't write")
        if missing:
            raise NotReplayableError(f"it lacks {', '.join(missing)}")
        deeper = [name for name in files if name.endswith(f"/{TQ}") and name not in needed]
        if deeper:
            raise NotReplayableError(
                f"it has {', '.join(sorted(deeper))} too: it is of a run with another parameter_sync_step"
            )
        return needed

    def _needed(self) -> list[str]:
        if self.v2:
            return [GEN, NEW, META]
        if not self.inner:
            return [GEN, META]
        return [f"{inner}/{name}" for name in (TQ, META) for inner in range(self.inner)]

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        """The step folder that an artifact of a pinned step gets when that step is replayed at `step`.

        Fully async counts prompts in its folders: the prompts of a training step keep their distances, moved by as many
        prompts as the training steps between take.
        """
        if self.role != "async_rollout":
            return step
        return artifact_step + (step - source_step) * (1 if step_kind == "feed_index" else self.stride)

    def flags(self, root: str, steps: Sequence[int]) -> list[str]:
        """The overrides that replay exactly these step folders below `root`, as a shell takes them."""
        if self.v2:
            told: dict[str, object] = {
                "enable": True,
                "dump_dir": quote_hydra_value(root),
                "max_dump_step": max(steps, default=0),
            }
            lines = [
                format_override(f"{V2_SKIP_PREFIX}{name}", value) for name, value in {**told, "action": "cache"}.items()
            ]
            return [
                *lines,
                format_override("trainer.val_before_train", False),
                format_override("trainer.test_freq", -1),
            ]
        listed = "[" + ",".join(map(str, sorted(steps))) + "]"
        told = {"enable": True, "dump_dir": quote_hydra_value(root), "steps": listed, "action": "cache"}
        return [format_override(f"skip.{self.role}.{name}", value) for name, value in told.items()]

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        """What a person must know before starting, a sentence each."""
        return [text for text in (self._moved(moved), self._warm_up(), self._gaps(steps), self._async()) if text]

    def _moved(self, moved: bool) -> str:
        if not self.mends or not moved:
            return ""
        return (
            "The V0 trainer takes ground truth, data source and uid from the live batch: at a step that is not the "
            "pinned one, or without rows that are left out, the run's own JSONL shows another prompt's. Tokens and "
            "rewards are the pinned ones."
        )

    def _warm_up(self) -> str:
        if not self.warms_up:
            return ""
        return "While skip.rollout_tq is enabled, the async modes of V1 skip their warm-up batches for the whole run."

    def _gaps(self, steps: Sequence[int]) -> str:
        if not self.v2:
            return ""
        gaps = sorted(set(range(1, max(steps, default=0) + 1)) - set(steps))
        told = "verl 0.8 counts generations from 1, validation too, so validation has to be off"
        return f"{told}; it will generate and write steps {gaps[0]} to {gaps[-1]}." if gaps else f"{told}."

    def _async(self) -> str:
        if self.role != "async_rollout":
            return ""
        return "Fully async trains in the order of completion: the steps below count prompts as they are fed."


def read_requirements(settings: TrainerSettings) -> VerlRequirements:
    """What a run with these settings (dotted name -> value) asks for. Raises UsageError where they don't say."""
    v2 = any(name.startswith(V2_SKIP_PREFIX) for name in settings) and not any(
        name.startswith("skip.") for name in settings
    )
    trainer = "V0" if v2 else detect_verl_trainer(settings, complete=False)
    role = SKIP_ROLE_BY_TRAINER[trainer]
    if V1_SKIP_SETTING in settings:
        raise UsageError("verl up to 0.7 replays one file at every step; `pull` lays steps out for 0.8 and newer.")
    if not role:
        raise UsageError(f"The {trainer} trainer of verl replays nothing: it never starts verl's rollout skip.")
    shape = build_batch_shape(settings, trainer)
    name = f"{_word(settings, EXPERIMENT)}_{_word(settings, PROJECT)}"
    folder = PurePosixPath(name) / "GBS{gbs}_N{n}_in{prompt}_out{response}".format(**shape)
    if folder.is_absolute() or ".." in folder.parts or "\0" in name:
        raise UsageError(f"{EXPERIMENT} and {PROJECT} give the folder {name!r}, which lies outside of --into.")
    return VerlRequirements(
        trainer="V2" if v2 else trainer,
        role=role,
        folder=folder,
        facts=build_setting_facts(settings, trainer),
        named_by=_named_by(settings, shape),
        inner=shape["inner"] if role == "rollout_tq" else 0,
        stride=shape["stride"],
        warms_up=trainer == "V1" and get_trainer_mode(settings) != "sync",
        total_steps=None
        if trainer == "fully async"
        else parse_optional_number(settings, "trainer.total_training_steps"),
        v2=v2,
    )


def _named_by(settings: TrainerSettings, shape: Mapping[str, int]) -> tuple[str, ...]:
    names = [EXPERIMENT, PROJECT, *([BATCH] if settings.get(BATCH) else []), N, PROMPT, RESPONSE]
    lines = [format_override(name, quote_hydra_value(settings[name])) for name in names]
    return (*lines, *([format_override(GEN_BATCH, shape["gbs"])] if settings.get(GEN_BATCH) is not None else []))


def _word(settings: TrainerSettings, name: str) -> str:
    word = str(settings[name])
    if "***" in word:
        raise UsageError(f"{name} is masked in the run's config; give it with --set {name}=VALUE.")
    return word


def quote_hydra_value(value: object) -> str:
    """A value as Hydra's grammar takes it: text that it would read as something else, or not at all, in quotes."""
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.match(text) and isinstance(parse_scalar(text), str)):
        return text
    escaped = _TO_ESCAPE.sub(lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return '"' + escaped.replace("${", "\\${") + '"'
