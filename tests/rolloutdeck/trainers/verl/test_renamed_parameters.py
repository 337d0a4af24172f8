"""If verl renames a parameter that the plug-in reads, only the record is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.verl.plugin import dataset_fields, evictions, metrics, trainer_async, trainer_v0, trainer_v1

CONFIG = {"trainer": {"logger": ["rolloutdeck"]}, "async_training": {}, "data": {}}
TRAINER = SimpleNamespace(config=CONFIG, global_steps=3, partitions={})
SESSION: Any = SimpleNamespace(selection=None, is_fully_async=False)


@pytest.fixture(autouse=True)
def training_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (trainer_v0, trainer_v1, dataset_fields):
        monkeypatch.setattr(module, "find_verl_session", lambda config: SESSION)
    monkeypatch.setattr(patching, "once_logger", type(patching.once_logger)())
    fitting = trainer_v0._fitting.set(TRAINER)
    validation = trainer_v0._validation.set(trainer_v0.Validation(SESSION, TRAINER))
    yield
    trainer_v0._fitting.reset(fitting)
    trainer_v0._validation.reset(validation)


WRAPPERS: dict[str, tuple[Callable[..., Any], str]] = {
    "texts of a validation": (trainer_v0.wrap_log_generations, "self, prompts, answers, rewards"),
    "batch of a validation": (trainer_v0.wrap_extract_reward, "proto"),
    "batch of V0": (trainer_v0.wrap_compute_metrics, "proto"),
    "advantages of V0": (trainer_v0.wrap_compute_advantage, "proto"),
    "batch of V1": (trainer_v1.wrap_compute_metrics, "self, meta"),
    "advantages of V1": (trainer_v1.wrap_compute_advantage, "self, meta"),
    "batch of one step off": (trainer_async.wrap_collect_metrics, "self, proto"),
    "loggers": (metrics.wrap_init, "self, project, experiment, default_backend"),
    "evictions": (evictions.wrap_clear, "self, names, partition_id"),
}


@pytest.mark.parametrize(("wrap", "names"), WRAPPERS.values(), ids=WRAPPERS)
def test_a_renamed_parameter_does_not_end_the_training(wrap: Any, names: str, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[dict[str, Any]] = []
    original = eval(f"lambda {names}: calls.append(locals()) or ('theirs', {{}})", {"calls": calls})
    values = {"self": TRAINER, "default_backend": ["rolloutdeck"], "partition_id": "train"}
    arguments = {name: values.get(name, ["a"]) for name in names.split(", ")}
    for _ in range(2):
        assert wrap(original)(**arguments) == (None if wrap is metrics.wrap_init else ("theirs", {}))
    assert calls == [arguments] * 2
    assert len([record for record in caplog.records if "lost something" in record.message]) <= 1


def test_a_renamed_parameter_does_not_end_the_rollouter() -> None:
    async def generate_sequences_single(self: Any, batch: Any) -> Any:
        return batch

    wrapped = dataset_fields.wrap_generate_sequences(generate_sequences_single)
    assert asyncio.run(wrapped(TRAINER, batch="answers")) == "answers"


def test_a_validation_of_v1_whose_batches_are_not_found_is_not_recorded() -> None:
    with trainer_v1.watch_validation(SimpleNamespace(config=CONFIG)):
        pass
