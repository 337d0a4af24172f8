"""The registry of trainers and other programs, by name and by file format."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from rolloutdeck.trainer_api.timing import TimingMetrics
from rolloutdeck.trainer_api.types import FileKind, LoadableStep, StepLocation, Trainer, TrainerFiles

# Each name is a package or module in `rolloutdeck.trainers`, with a constant TRAINER.
TRAINERS = ("verl", "trl", "slime", "roll", "cure")
# Programs without settings check and replay: modules with a constant FILES. Some of them also record live.
WITHOUT_REPLAY = (
    "art", "nemo_rl", "nemo_gym", "verifiers", "rllm", "areal", "open_instruct", "swift", "tinker", "evals",
    "metric_files", "skyrl", "openrlhf", "tables",
)  # fmt: skip


def load_trainer(name: str) -> Trainer:
    """Imports the module of a trainer and returns its TRAINER."""
    trainer: Trainer = importlib.import_module(f"rolloutdeck.trainers.{name}").TRAINER
    return trainer


def load_all_trainers() -> list[Trainer]:
    return [load_trainer(name) for name in TRAINERS]


def iter_files() -> Iterator[TrainerFiles]:
    """Yields the file descriptions of all trainers and other programs."""
    yield from load_all_trainers()
    for name in WITHOUT_REPLAY:
        yield importlib.import_module(f"rolloutdeck.trainers.{name}").FILES


def list_hidden_folders() -> frozenset[str]:
    return frozenset(name for files in iter_files() for name in files.hidden_folders)


def find_loader(format: str) -> Trainer | None:
    """Returns the trainer that can replay steps of this format."""
    return next((trainer for trainer in load_all_trainers() if format and format in trainer.loads), None)


def get_first_step(format: str) -> int:
    """Returns the number of the first step (0 or 1) of the trainer that loads this format."""
    return loader.first_step if (loader := find_loader(format)) else 1


def format_ends_without_file(format: str) -> bool:
    """Returns whether a run that replays files of this format ends at a step without a file."""
    return bool((loader := find_loader(format)) and loader.ends_without_file)


def list_selected_actions(format: str, role: str = "") -> tuple[str, ...]:
    """Returns what a replay of such files can do with selected samples, the default first; () if it is unknown."""
    loader = find_loader(format)
    return (loader.selected_actions.get(role) or loader.selected_actions[""]) if loader else ()


def resolve_selected_action(action: str, format: str, role: str = "") -> str:
    """Returns what a plan's `on_selected` means for files of this format: one of keep, mask, drop, regenerate."""
    if action != "exclude":
        return action
    return next(iter(list_selected_actions(format, role)), "drop")


def format_replays_own_prompts(format: str) -> bool:
    """Returns whether steps of this format are replayed with their own prompts, so that no prompts are compared."""
    return format in loader.replays_own_prompts if (loader := find_loader(format)) else False


def format_has_only_trained(format: str) -> bool:
    """Returns whether a step of this format contains only samples that were trained on, without filtered ones."""
    return loader.only_trained if (loader := find_loader(format)) else False


def find_writer(format: str) -> TrainerFiles:
    """Returns the program that writes files of this format. Raises ValueError if the format is unknown."""
    known: dict[str, None] = {}
    for files in iter_files():
        known |= dict.fromkeys(kind.format for kind in files.kinds)
        if format in known:
            return files
    raise ValueError(f"Unknown format {format!r}. Available: {', '.join(known)}.")


def list_kinds(format: str = "") -> list[FileKind]:
    """Returns all kinds of files, or those of one format. Raises ValueError if the format is unknown."""
    kinds = [kind for files in iter_files() for kind in files.kinds]
    if not format:
        return kinds
    find_writer(format)
    return [kind for kind in kinds if kind.format == format]


def list_others() -> dict[str, str]:
    """Returns name patterns of known files that are not read -> description."""
    return {pattern: description for files in iter_files() for pattern, description in files.others.items()}


def list_timings() -> list[TimingMetrics]:
    """Returns the timing metrics of all trainers that declare them."""
    return [files.timing for files in iter_files() if files.timing]


def find_steps(root: Path) -> list[StepLocation]:
    """Returns the locations of replayable steps below `root`, complete or incomplete."""
    return [location for trainer in load_all_trainers() if trainer.find_steps for location in trainer.find_steps(root)]


def read_step(location: StepLocation) -> LoadableStep | str:
    """Returns the step at a location, or the reason why it is skipped. Reads the batch."""
    read = load_trainer(location.trainer).read_step
    assert read, location.trainer  # a trainer that finds steps also reads them
    return read(location)


def load_step_readers() -> None:
    """Imports the modules that `find_steps` and `read_step` need."""
    for trainer in load_all_trainers():
        if trainer.find_steps and trainer.read_step:
            trainer.find_steps.load()
            trainer.read_step.load()
