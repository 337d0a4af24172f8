"""Layout of the rollouts that a run of slime loads instead of generating, and the arguments that make it load them.

Source: slime 624b824a. There are two ways; neither generates anything:

`debug`  `--load-debug-rollout-data TEMPLATE` (`observability/rollout_data_utils.py:124`): the training process alone;
         one file for every id from `--start-rollout-id` to `--num-rollout`; a missing file ends the run.
`forge`  `--rollout-function-path slime.rollout.forge_load.generate_rollout --load-forge-rollout-data TEMPLATE`: SGLang,
         weight updates and offloading run as usual; an id without a file loads rollout 0 again.

A run that replays some rollouts and generates the others uses `rolloutdeck.trainers.slime.generate_rollout`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.replay import Placement, PlanFile, RunRequirements
from rolloutdeck.safe_pickle import rewrite
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainers.common import drop_none, parse_int
from rolloutdeck.trainers.slime import FORGED_ROLLOUT_FUNCTION
from rolloutdeck.trainers.slime.facts import build_argument_facts

FOLDER = PurePosixPath("rollout_data")
REQUIRED_ARGUMENTS = ("rollout_batch_size", "n_samples_per_prompt")


@dataclass(frozen=True, kw_only=True)
class SlimeRequirements(RunRequirements):
    """What a run of slime loads. `forge`: in the second way."""

    trainer: str = "slime"
    formats: Mapping[str, Collection[str]] = field(default_factory=lambda: {".pt": ("torch",)})
    first: int = 0
    shared: bool = True
    changeable_files: Collection[str] = (".pt",)
    file_actions: Sequence[str] = ("mask",)
    forge: bool = False

    def get_step_folder(self, step: int) -> PurePosixPath:
        return FOLDER

    def get_file_name(self, name: str, step: int) -> str:
        return f"{step}.pt"

    def select_files(self, role: str, files: Collection[str]) -> list[str]:
        names = [name for name in files if PurePosixPath(name).suffix == ".pt"]
        if role != self.role or len(names) != 1 or len(files) != 1:
            raise NotReplayableError("it is not a rollout of slime, which is one .pt file")
        return names

    def write_with_action(self, placement: Placement, file: PlanFile, source: Path, target: Path) -> str:
        """Marks the selected samples as removed."""
        selected = placement.changed_rows[file.name]
        total = rewrite.mask_samples(source, target, selected)
        return (
            f"{file.name} of {placement.entry}: {len(selected)} of its {total} samples "
            f"{'is' if len(selected) == 1 else 'are'} {placement.entry.selected_word} and trained with no weight "
            "(remove_sample); rewards are still compared with theirs. The file is written by Rolloutdeck; everything "
            "else in it is as pinned."
        )

    def build_settings(self, root: str, steps: Sequence[int]) -> list[str]:
        plain = root.replace("{", "{{").replace("}", "}}")  # slime uses `str.format` on the template
        template = shlex.quote(f"{plain}/{FOLDER}/{{rollout_id}}.pt")
        lines = [f"--load-debug-rollout-data {template}"]
        if self.forge:
            lines = [f"--rollout-function-path {FORGED_ROLLOUT_FUNCTION}", f"--load-forge-rollout-data {template}"]
        start, end = _find_block(steps)
        return [*lines, f"--start-rollout-id {start}", f"--num-rollout {end}"]

    def build_notes(self, steps: Sequence[int], *, moved: bool) -> list[str]:
        start, end = _find_block(steps)
        notes = [
            f"This way slime replays and generates nothing: the run is rollouts {start} to {end - 1}. A run that "
            "replays some rollouts and generates the others takes `--rollout-function-path "
            "rolloutdeck.trainers.slime.generate_rollout` and ROLLOUTDECK_PLAN, and needs no files."
        ]
        if start > self.first:
            earlier = format_step_ranges(range(self.first, start))
            notes.append(f"It starts at {start}, since the plan has nothing for {earlier}.")
        if later := [step for step in steps if step >= end]:
            effect = "loads rollout 0 in its place" if self.forge else "ends there"
            unreached = format_step_ranges(later)
            notes.append(f"There is no file for {end}, and slime {effect}: {unreached} will not be reached.")
        if not self.forge:
            notes.append("SGLang is not started, no weights are sent and no eval is run (--way forge does all of it).")
        return notes


def _find_block(steps: Sequence[int]) -> tuple[int, int]:
    """Returns the first of these rollouts, and the first one after it that has no file."""
    end = start = min(steps, default=0)
    present = set(steps)
    while end in present:
        end += 1
    return start, end


def read_requirements(settings: TrainerSettings) -> SlimeRequirements:
    """Returns the requirements of a run with these arguments, by name. Raises UsageError if one is missing."""
    arguments = {name.removeprefix("--").replace("-", "_"): value for name, value in settings.items()}
    if missing := [name for name in REQUIRED_ARGUMENTS if parse_int(arguments.get(name)) is None]:
        raise UsageError(f"The run's arguments have no {', '.join(missing)}; give them with --set NAME=NUMBER.")
    first, end = parse_int(arguments.get("start_rollout_id")) or 0, parse_int(arguments.get("num_rollout"))
    return SlimeRequirements(
        facts=build_argument_facts(arguments),
        first=first,
        total_steps=None if end is None else max(0, end - first),
        forge=arguments.get("rollout_function_path") == FORGED_ROLLOUT_FUNCTION,
    )


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the probable arguments of a run: those of the `pinned` run, else those that its rollouts show."""
    sizes = {"rollout_batch_size": facts.get("prompts"), "n_samples_per_prompt": facts.get("samples_per_prompt")}
    arguments = dict(pinned) or drop_none({**sizes, "rollout_max_response_len": facts.get("max_response_length")})
    return {name: value for name, value in arguments.items() if name not in ("start_rollout_id", "num_rollout")}
