"""Where a run of slime loads rollouts from instead of generating them, and the arguments that make it.

Read from slime 624b824a. Two ways, and neither generates anything:

`debug`  `--load-debug-rollout-data TEMPLATE` (`observability/rollout_data_utils.py:124`): the training process alone; a
         file for every id from `--start-rollout-id` to `--num-rollout`, a missing one ends the run.
`forge`  `--rollout-function-path slime.rollout.forge_load.generate_rollout --load-forge-rollout-data TEMPLATE`: SGLang,
         weight updates and offloading go on; an id without a file loads rollout 0 once more.

A run that replays some rollouts and generates the others takes `rolloutdeck.trainers.slime.generate_rollout`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.replay import Placement, PlanFile
from rolloutdeck.safe_pickle import rewrite
from rolloutdeck.trainers.slime import FORGED_ROLLOUT_FUNCTION
from rolloutdeck.trainers.slime.facts import build_argument_facts, parse_int

FOLDER = PurePosixPath("rollout_data")
NEEDED = ("rollout_batch_size", "n_samples_per_prompt")

TrainerSettings = Mapping[str, Any]


@dataclass(frozen=True)
class SlimeRequirements:
    """What a run of slime loads; `forge`: in the second way. `end`: the id after its last rollout, where known."""

    facts: Mapping[str, Any]
    first: int = 0
    end: int | None = None
    forge: bool = False
    trainer: str = "slime"
    role: str = "rollout"
    shared: bool = True
    repeats: bool = False
    named_by: Sequence[str] = ()
    mends: Collection[str] = ()
    excludes: Collection[str] = (".pt",)
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".pt": ("torch",)})

    @property
    def total_steps(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.first)

    def step_folder(self, step: int) -> PurePosixPath:
        return FOLDER

    def called(self, name: str, step: int) -> str:
        return f"{step}.pt"

    def members(self, role: str, files: Collection[str]) -> list[str]:
        """The one file of a rollout. Raises NotReplayableError."""
        found = [name for name in files if PurePosixPath(name).suffix == ".pt"]
        if role != self.role or len(found) != 1 or len(files) != 1:
            raise NotReplayableError("it is no rollout of slime, which is one .pt file")
        return found

    def place(self, source_step: int, step_kind: str, artifact_step: int, step: int) -> int:
        return step

    def without(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """The flagged samples are marked as removed. Raises SafePickleError, ImportError (numpy)."""
        places = placement.without[file.name]
        every = rewrite.mask_samples(source, target, places)
        return (
            f"{file.name} of {placement.entry}: {len(places)} of its {every} samples "
            f"{'is' if len(places) == 1 else 'are'} flagged and trained with no weight (remove_sample); rewards are "
            "still compared with theirs. The file is written by Rolloutdeck; all else in it is what was pinned."
        )

    def flags(self, root: str, steps: Sequence[int]) -> list[str]:
        """The arguments that load these rollouts, as a shell takes them."""
        plain = root.replace("{", "{{").replace("}", "}}")  # slime fills the template in with `str.format`
        template = shlex.quote(f"{plain}/{FOLDER}/{{rollout_id}}.pt")
        lines = [f"--load-debug-rollout-data {template}"]
        if self.forge:
            lines = [f"--rollout-function-path {FORGED_ROLLOUT_FUNCTION}", f"--load-forge-rollout-data {template}"]
        start, end = _block(steps)
        return [*lines, f"--start-rollout-id {start}", f"--num-rollout {end}"]

    def notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        """What a person must know before starting, a sentence each."""
        start, end = _block(steps)
        found = [
            f"This way slime replays and generates nothing: the run is rollouts {start} to {end - 1}. A run that "
            "replays some rollouts and generates the others takes `--rollout-function-path "
            "rolloutdeck.trainers.slime.generate_rollout` and ROLLOUTDECK_PLAN, and needs no files."
        ]
        if start > self.first:
            found.append(
                f"It begins at {start}, since the plan has nothing for {format_step_ranges(range(self.first, start))}."
            )
        if later := [step for step in steps if step >= end]:
            gone = "loads rollout 0 in its place" if self.forge else "ends there"
            found.append(
                f"There is no file for {end}, and slime {gone}: {format_step_ranges(later)} will not be reached."
            )
        if not self.forge:
            found.append("SGLang is not started, no weights are sent and no eval is run (--way forge keeps all of it).")
        return found


def _block(steps: Sequence[int]) -> tuple[int, int]:
    """The first of these rollouts, and the first after it that has no file."""
    end = start = min(steps, default=0)
    while end in set(steps):
        end += 1
    return start, end


def read_requirements(settings: TrainerSettings) -> SlimeRequirements:
    """What a run with these arguments, by their names, loads. Raises UsageError where they don't say."""
    told = {name.removeprefix("--").replace("-", "_"): value for name, value in settings.items()}
    if missing := [name for name in NEEDED if parse_int(told.get(name)) is None]:
        raise UsageError(f"The run's arguments do not say {', '.join(missing)}; give them with --set NAME=NUMBER.")
    return SlimeRequirements(
        facts=build_argument_facts(told),
        first=parse_int(told.get("start_rollout_id")) or 0,
        end=parse_int(told.get("num_rollout")),
        forge=told.get("rollout_function_path") == FORGED_ROLLOUT_FUNCTION,
    )


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run of which only the names are known: as the `pinned` run's, else as its rollouts tell."""
    known = {
        "rollout_batch_size": facts.get("prompts"),
        "n_samples_per_prompt": facts.get("samples_per_prompt"),
        "rollout_max_response_len": facts.get("max_response_length"),
    }
    told = dict(pinned) or {name: value for name, value in known.items() if value is not None}
    return {name: value for name, value in told.items() if name not in ("start_rollout_id", "num_rollout")}
