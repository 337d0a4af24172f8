"""All trainers and other programs whose files we take, by name and by the format of their files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from rolloutdeck.trainer_api.types import FileKind, LoadableStep, StepLocation, Trainer, TrainerFiles

# Each name is a package or module in `rolloutdeck.trainers`, with a constant TRAINER.
TRAINERS = ("verl", "trl", "slime", "roll", "cure")
# Programs whose files we take and nothing else: modules with a constant FILES.
FILES_ONLY = ("nemo_rl", "verifiers", "rllm", "areal", "open_instruct", "swift", "evaluations", "tables")


def load_trainer(name: str) -> Trainer:
    trainer: Trainer = importlib.import_module(f"rolloutdeck.trainers.{name}").TRAINER
    return trainer


def all_trainers() -> tuple[Trainer, ...]:
    return tuple(map(load_trainer, TRAINERS))


def all_files() -> Iterator[TrainerFiles]:
    """What is known of the files of each trainer and of each other program."""
    yield from all_trainers()
    for name in FILES_ONLY:
        files: TrainerFiles = importlib.import_module(f"rolloutdeck.trainers.{name}").FILES
        yield files


def find_loader(format: str) -> Trainer | None:
    """The trainer that loads steps of this format again."""
    return next((trainer for trainer in all_trainers() if format and format in trainer.loads), None)


def first_step(format: str) -> int:
    """The number of the first step of the trainer that loads this format."""
    return loader.first_step if (loader := find_loader(format)) else 1


def masks_flagged(format: str) -> bool:
    """Whether the trainer that loads this format keeps flagged rows, without weight."""
    return loader.masks_flagged if (loader := find_loader(format)) else False


def only_trained(format: str) -> bool:
    """Whether a step of this format holds what was trained on and nothing that was dropped before."""
    return loader.only_trained if (loader := find_loader(format)) else False


def find_writer(format: str) -> TrainerFiles:
    """The program that writes files of this format; ValueError names the formats there are."""
    known = []
    for files in all_files():
        known += [kind.format for kind in files.kinds]
        if format in known:
            return files
    raise ValueError(f"There is no format {format!r}; there are: {', '.join(known)}.")


def list_kinds(format: str = "") -> list[FileKind]:
    """All kinds of file, or those of one format; ValueError where there is none."""
    if not format:
        return [kind for files in all_files() for kind in files.kinds]
    return [kind for kind in find_writer(format).kinds if kind.format == format]


def list_others() -> dict[str, str]:
    """File name patterns that are known and not taken, each with what it is."""
    return {pattern: what for files in all_files() for pattern, what in files.others.items()}


def find_steps(root: Path) -> list[StepLocation]:
    """The places of steps below `root` that some trainer can load again, whole or not."""
    return [spot for trainer in all_trainers() if trainer.find_steps for spot in trainer.find_steps(root)]


def read_step(spot: StepLocation) -> LoadableStep | str:
    """What is at a spot; else the reason why it is left out. Reads the batch."""
    read = load_trainer(spot.trainer).read_step
    assert read, spot.trainer  # who finds a step also reads it
    return read(spot)


def load_step_readers() -> None:
    """Imports all that `find_steps` and `read_step` need."""
    for trainer in all_trainers():
        for reference in (trainer.find_steps, trainer.read_step):
            if reference:
                reference.load()
