"""Layout of the files that a run of CURE trains on instead of generating, and the commands that start it.

CURE has no setting for it: its stages read the files in `optimization/temp_data`, no matter who wrote them. train.py
reads the rewards; reward.py computes them from `outputs-rl-{model}-{data set}.json` and gets this name from its
arguments. Source: Gen-Verse/CURE 69fe174: run.py:101-113, train.py:64-67, reward.py:44-49,
train_utils/rl/actors.py:406.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile, RunRequirements
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainer_config import is_unresolved
from rolloutdeck.trainers.common import parse_int
from rolloutdeck.trainers.cure import OUTPUTS_FILE, REQUIRED_SETTINGS
from rolloutdeck.trainers.cure.step_files import CURE_FACTS, JOINT_FILES, SEPARATE_FILES

MODEL, TRAINED, STEPS, SEPARATE = "pretrained_model", "optimized_model_name", "total_steps", "separate_training"
DATA = "optimization/temp_data"
DATASETS = ("dataset", "train_dataset")  # the argument of reward.py and the setting of the config


@dataclass(frozen=True, kw_only=True)
class CureRequirements(RunRequirements):
    """What a run of CURE requires. `separate`: programs and tests are trained separately, None if unknown."""

    trainer: str = "CURE"
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".json": ("json",)})
    first: int = 0
    changeable_files: Collection[str] = (".json",)
    file_actions: Sequence[str] = ("mask",)
    model: str
    dataset: str
    separate: bool | None = None
    optimized: str = "optimized"

    @property
    def outputs(self) -> str:
        """The file name of the outputs that reward.py and execute.py read."""
        return f"outputs-rl-{escape_model_name(self.model)}-{self.dataset}.json"

    def get_step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath(f"step_{step}")

    def get_file_name(self, name: str, step: int) -> str:
        return self.outputs if OUTPUTS_FILE.match(PurePosixPath(name).name) else name

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        """Returns the rewards and the outputs they were computed from. Raises NotReplayableError."""
        outputs = [name for name in files if OUTPUTS_FILE.match(name)]
        reward_files = next((list(names) for names in (SEPARATE_FILES, JOINT_FILES) if set(names) <= set(files)), [])
        if role != self.role or len(outputs) != 1 or not reward_files:
            raise NotReplayableError("it is not a step of CURE")
        if self.separate is not None and self.separate != (len(reward_files) > 1):
            names = " and ".join(reward_files)
            raise NotReplayableError(f"it has {names}, and this run has {SEPARATE}={self.separate}")
        return [*outputs, *reward_files]

    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        from rolloutdeck.trainers.cure.exclude import write_without_answers

        selected, word = placement.changed_rows[file.name], placement.entry.selected_word
        description = write_without_answers(file.name, source, target, selected, word)
        return f"{file.name} of {placement.entry} {description}"

    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        """Returns the commands, to run in CURE's folder. Steps after the first train the model that CURE saved."""
        lines = []
        for step in steps:
            model = self.model if step == self.first else f"ckpt/{self.optimized}"
            files = f"{shlex.quote(f'{root}/{self.get_step_folder(step)}')}/*.json"
            # Pulled files are read-only, and CURE's next stages overwrite these files.
            lines.append(f"mkdir -p {DATA} && install -m 644 {files} {DATA}/")
            lines.append(f"(cd optimization && python -m train --pretrain {shlex.quote(model)})")
        return lines

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        arguments = f"--pretrained_model {shlex.quote(self.model)} --dataset {shlex.quote(self.dataset)}"
        return [
            "These commands take the place of run.py, which generates at the start of each step. Run them in CURE's "
            "folder, in its environment.",
            f"To score the answers again first, run `(cd optimization && python reward.py {arguments})` before the "
            "training: it normalises the rewards of these answers.",
            "execute.py is not needed. It runs generated programs without a sandbox: use it in a container only.",
        ]


def escape_model_name(model: str) -> str:
    """Returns the model's name as CURE writes it into file names."""
    return model.replace("/", ".")


def read_requirements(settings: TrainerSettings) -> CureRequirements:
    """Returns the requirements of a run with these settings of `optimization_config.py`.

    Raises UsageError if the model or the data set is missing, unknown or invalid.
    """
    dataset_name = next((name for name in DATASETS if settings.get(name)), DATASETS[0])
    for name in (MODEL, dataset_name, TRAINED):
        if is_unresolved(value := settings.get(name)):
            raise UsageError(f"Cannot determine {name}={value}; give it with --set {name}=VALUE.")
    model, dataset = settings.get(MODEL), settings.get(dataset_name)
    if not isinstance(model, str) or not isinstance(dataset, str) or not model or "\0" in model:
        required = " ".join(REQUIRED_SETTINGS)
        raise UsageError(
            f"CURE names its files after the model and the data set: give --set {required} of the run that replays."
        )
    if not dataset or not {"/", "\0"}.isdisjoint(dataset):
        raise UsageError(f"dataset={dataset[:200]!r} is not the name of a data set; CURE reads data/NAME.json.")
    separate, steps = settings.get(SEPARATE), parse_int(settings.get(STEPS))
    return CureRequirements(
        model=model,
        dataset=dataset,
        facts={**CURE_FACTS, "model": escape_model_name(model)},
        separate=separate if isinstance(separate, bool) else None,
        optimized=str(settings.get(TRAINED) or "optimized"),
        total_steps=steps if steps and steps > 0 else None,
    )


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the `pinned` run. The model in file names has dots for slashes, so it is not a path."""
    return dict(pinned)
