"""What a run of CURE trains on instead of generating it, and the commands that do it.

CURE has no switch for it: its stages read the files of `optimization/temp_data` whoever wrote them. train.py reads the
rewards; reward.py makes them of `outputs-rl-{model}-{data set}.json`, whose name it is told by its arguments. Read from
Gen-Verse/CURE 69fe174: run.py:101-113, train.py:64-67, reward.py:44-49, train_utils/rl/actors.py:406.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.replay import Placement, PlanFile
from rolloutdeck.trainers.cure import OUTPUTS_FILE, REQUIRED_SETTINGS
from rolloutdeck.trainers.cure.step_files import APART, CURE_FACTS, ROLE, TOGETHER

MODEL, TRAINED, STEPS, SEPARATE = "pretrained_model", "optimized_model_name", "total_steps", "separate_training"
DATA = "optimization/temp_data"
DATASETS = ("dataset", "train_dataset")  # as reward.py's argument and the config call it

TrainerSettings = Mapping[str, Any]


@dataclass(frozen=True)
class CureRequirements:
    """What a run of CURE asks for. `separate`: whether programs and tests are trained apart, None where unknown."""

    model: str
    dataset: str
    facts: Mapping[str, Any]
    separate: bool | None = None
    optimized: str = "optimized"
    total_steps: int | None = None
    trainer: str = "CURE"
    role: str = ROLE
    named_by: tuple[str, ...] = ()
    first: int = 0
    shared: bool = False
    mends: tuple[str, ...] = ()
    excludes: tuple[str, ...] = (".json",)
    repeats: bool = False
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".json": ("json",)})

    @property
    def outputs(self) -> str:
        """The outputs as reward.py and execute.py look for them."""
        return f"outputs-rl-{dotted(self.model)}-{self.dataset}.json"

    def step_folder(self, step: int) -> PurePosixPath:
        return PurePosixPath(f"step_{step}")

    def called(self, name: str, step: int) -> str:
        return self.outputs if OUTPUTS_FILE.match(PurePosixPath(name).name) else name

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """The rewards, and the outputs that they were made of. Raises NotReplayableError."""
        outputs = [name for name in files if OUTPUTS_FILE.match(name)]
        trained = next((list(names) for names in (APART, TOGETHER) if set(names) <= set(files)), [])
        if role != self.role or len(outputs) != 1 or not trained:
            raise NotReplayableError("it is no step of CURE")
        if self.separate is not None and self.separate != (len(trained) > 1):
            raise NotReplayableError(f"it has {' and '.join(trained)}, and this run has {SEPARATE}={self.separate}")
        return [*outputs, *trained]

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        return step

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        from rolloutdeck.trainers.cure.exclude import write_without_answers

        done = write_without_answers(file.name, source, target, placement.without[file.name])
        return f"{file.name} of {placement.entry} {done}"

    def flags(self, root: str, steps: Sequence[int]) -> list[str]:
        """The commands, in CURE's folder; a step after the first goes on from the model that CURE saved."""
        lines = []
        for step in steps:
            model = self.model if step == self.first else f"ckpt/{self.optimized}"
            files = f"{shlex.quote(f'{root}/{self.step_folder(step)}')}/*.json"
            # What was pulled is read-only, and CURE's next stages write over their files.
            lines.append(f"mkdir -p {DATA} && install -m 644 {files} {DATA}/")
            lines.append(f"(cd optimization && python -m train --pretrain {shlex.quote(model)})")
        return lines

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        arguments = f"--pretrained_model {shlex.quote(self.model)} --dataset {shlex.quote(self.dataset)}"
        return [
            "These commands take the place of run.py, which begins each step by generating anew. Run them in CURE's "
            "folder, in its environment.",
            f"To score the answers again first, run `(cd optimization && python reward.py {arguments})` before the "
            "training: it normalises what is there.",
            "execute.py is not needed, and runs what a model wrote without a sandbox: in a container only.",
        ]


def dotted(model: str) -> str:
    """A model in the name of a file, as CURE writes it."""
    return model.replace("/", ".")


def read_requirements(settings: TrainerSettings) -> CureRequirements:
    """What a run with these settings asks for; those of `optimization_config.py`. Raises UsageError where they don't
    say the model and the data set."""
    model, dataset = settings.get(MODEL), next((settings[name] for name in DATASETS if settings.get(name)), None)
    if not isinstance(model, str) or not isinstance(dataset, str) or not model or "\0" in model:
        raise UsageError(
            f"CURE names its files by the model and the data set: "
            f"--set {' '.join(REQUIRED_SETTINGS)}, those of the run that "
            "replays."
        )
    if not dataset or not {"/", "\0"}.isdisjoint(dataset):
        raise UsageError(f"dataset={dataset[:200]!r} is no name of a data set; CURE reads data/NAME.json.")
    separate, steps = settings.get(SEPARATE), settings.get(STEPS)
    return CureRequirements(
        model=model,
        dataset=dataset,
        facts={**CURE_FACTS, "model": dotted(model)},
        separate=separate if isinstance(separate, bool) else None,
        optimized=str(settings.get(TRAINED) or "optimized"),
        total_steps=steps if isinstance(steps, int) and steps > 0 and not isinstance(steps, bool) else None,
    )


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `pinned` run's settings; the names of its files tell the model with dots for slashes, which is no path."""
    return dict(pinned)
