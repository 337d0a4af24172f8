"""How many generations TRL makes for one file of completions: a file has only the last of them.

Source: TRL 1.16.0: `GRPOConfig.__post_init__`, `GRPOTrainer._prepare_inputs` (generates every `steps_per_generation *
num_iterations` batches; a step is `gradient_accumulation_steps` batches); transformers: `TrainerState.compute_steps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rolloutdeck.trainer_api import TrainerSettings

LOGGING_STEPS = 10  # GRPOConfig's default
BATCH_SIZE = 8  # default of per_device_train_batch_size
PROCESSES = "the number of processes"


@dataclass(frozen=True)
class GenerationEstimate:
    """The number of generations per file, as a range.

    per_step: the least number of generations in one step. unknown: the settings without a known value, `name=value`.
    """

    lowest: float
    highest: float
    per_step: float
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class _Range:
    low: float
    high: float
    unknown: tuple[str, ...] = ()


def estimate_generations_per_file(settings: TrainerSettings, *, some_unread: bool) -> GenerationEstimate:
    """Returns the estimate. some_unread: a missing setting may have been given by arguments that can't be read."""
    every, per_step = _read_logging_steps(settings), _read_generations_per_step(settings, some_unread)
    iterations = _read_count(settings, "num_iterations", 1, some_unread)
    return GenerationEstimate(
        lowest=every.low * per_step.low / iterations.high,
        highest=every.high * per_step.high / iterations.low,
        per_step=per_step.low / iterations.high,
        unknown=(*every.unknown, *per_step.unknown, *iterations.unknown),
    )


def _read_logging_steps(settings: TrainerSettings) -> _Range:
    """Returns the interval in steps. A number below 1 is a share of all steps."""
    every, steps = settings.get("logging_steps", LOGGING_STEPS), settings.get("max_steps")
    if isinstance(every, float) and 0 < every < 1 and isinstance(steps, int) and steps > 0:
        every = math.ceil(steps * every)
    if isinstance(every, (int, float)) and every >= 1:
        return _Range(every, every)
    return _Range(1, math.inf, (f"logging_steps={every}",))


def _read_generations_per_step(settings: TrainerSettings, some_unread: bool) -> _Range:
    accumulation = _read_count(settings, "gradient_accumulation_steps", 1, some_unread)
    if settings.get("steps_per_generation") is not None:
        per_generation = _read_count(settings, "steps_per_generation", 1, some_unread)
        unknown = (*per_generation.unknown, *accumulation.unknown)
        return _Range(accumulation.low / per_generation.high, accumulation.high / per_generation.low, unknown)
    if settings.get("generation_batch_size") is not None:
        batch = _read_count(settings, "per_device_train_batch_size", BATCH_SIZE, some_unread)
        generated = _read_count(settings, "generation_batch_size", 1, some_unread)
        unknown = (*generated.unknown, *batch.unknown, *accumulation.unknown, PROCESSES)
        return _Range(accumulation.low * batch.low / generated.high, accumulation.high, unknown)
    if some_unread:  # one of the two may have been given
        return _Range(0, accumulation.high, ("steps_per_generation",))
    return _Range(1, 1)


def _read_count(settings: TrainerSettings, name: str, default: int, some_unread: bool) -> _Range:
    if name not in settings and some_unread:
        return _Range(1, math.inf, (name,))
    value = settings.get(name, default)
    if isinstance(value, (int, float)) and value >= 1:
        return _Range(value, value)
    return _Range(1, math.inf, (f"{name}={value}",))
