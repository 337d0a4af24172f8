"""The constants TRAINER and FILES of `rolloutdeck.trainers`."""

from __future__ import annotations

import pytest

from rolloutdeck.trainer_api import registry
from rolloutdeck.trainer_api.types import FunctionReference, Trainer


@pytest.mark.parametrize("trainer", registry.load_all_trainers(), ids=lambda trainer: str(trainer.name))
def test_every_reference_of_a_trainer_leads_to_a_function(trainer: Trainer) -> None:
    references = [value for value in vars(trainer).values() if isinstance(value, FunctionReference)]
    assert len(references) >= 5 and all(callable(reference.load()) for reference in references)
    assert (trainer.find_steps is None) == (trainer.read_step is None)


def test_each_name_is_that_of_its_module() -> None:
    names = [files.name for files in registry.iter_files()]
    modules = ["evals" if name == "evaluations" else name for name in names]  # the server stores this name
    assert modules == [*registry.TRAINERS, *registry.WITHOUT_REPLAY]
