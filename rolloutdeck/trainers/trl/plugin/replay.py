"""The replay of TRL's steps, wherever the pinned rows come from: what GRPOTrainer generates with.

A step that cannot be had or does not fit costs a generation, never the run, unless the plan says to stop. Several
processes replay a step all or none: generating may be something that they only do together. So nothing that one of them
finds out by itself decides whether it waits for the others.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.common import catch_errors
from rolloutdeck.trainers.trl.plugin import step_files, tools
from rolloutdeck.trainers.trl.plugin.ranks import count_processes, find_shared_error, is_main_process
from rolloutdeck.trainers.trl.plugin.rows import ToolUse

TrlBatch = dict[str, Any]
RolloutFunction = Callable[[Sequence[Any], Any], TrlBatch]  # (prompts, trainer), as TRL calls it


class PlannedStep(Protocol):
    """A step that shall be replayed."""

    def generation(self, call: int, trainer: Any) -> step_files.StoredGeneration:
        """Its `call`-th generation, from 0. Raises whatever speaks against it, NotReplayableError where the pin does
        not fit."""

    def hit(self, trainer: Any, rows: int, seconds: float) -> None:
        """It was replayed, with so many rows of all processes."""

    def leave(self, trainer: Any, error: Exception) -> None:
        """It is generated after all. Raises hooks.Stop where the plan asks for it."""


class StepSource(Protocol):
    """Where steps come from."""

    def at(self, step: int, trainer: Any) -> PlannedStep | None:
        """None where the step is generated; the same in all processes."""


class StepReplayer:
    """A `rollout_func`: the steps of `source` are replayed, all others and every eval are made by `otherwise`.

    Called by the trainer with the prompts of its rows, each as often as it has answers.
    """

    def __init__(self, source: StepSource, otherwise: RolloutFunction) -> None:
        self.source, self.otherwise = source, otherwise
        self.calls = CallCounter()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> TrlBatch:
        """Raises hooks.Stop where the plan asks for it, and what generating raises."""
        found = self._replayed(prompts, trainer) if trainer.model.training else None
        return self.otherwise(prompts, trainer) if found is None else found

    @catch_errors
    def _replayed(self, prompts: Sequence[Any], trainer: Any) -> TrlBatch | None:
        number, call = self.calls.next(trainer)
        step = self.source.at(number, trainer)
        if step is None:
            return None
        start, found, error = time.monotonic(), step_files.StoredGeneration([]), None
        try:
            found = step.generation(call, trainer)
            tools.check_tools(trainer, found)
            found = own_of(found, prompts, trainer)
        except Exception as raised:  # whatever it is, the step can be generated
            error = raised
        error = find_shared_error(trainer, error)
        if error is not None:
            step.leave(trainer, error)
            return None
        step.hit(trainer, len(found.rows) * count_processes(trainer), time.monotonic() - start)
        return batch_of(found, trainer)


class CallCounter:
    """Counts the generations of a step."""

    def __init__(self) -> None:
        self._at, self._call = -1, 0

    def next(self, trainer: Any) -> tuple[int, int]:
        """The step that generates now, and which of its generations this is, from 0."""
        step = int(trainer.state.global_step) + 1  # counted up only after the step
        self._call, self._at = (self._call + 1 if step == self._at else 0), step
        return step, self._call


def own_of(found: step_files.StoredGeneration, prompts: Sequence[Any], trainer: Any) -> step_files.StoredGeneration:
    """Those of a generation's rows that this process trains on. Raises NotReplayableError unless they are the answers
    to its prompts, in their order."""
    rows, count, rank = found.rows, len(prompts), int(trainer.accelerator.process_index)
    if len(rows) != count * count_processes(trainer):
        raise NotReplayableError(f"rows: {len(rows)} pinned, {count * count_processes(trainer)} asked for")
    own = list(rows[rank * count : (rank + 1) * count])
    wrong = sum(
        pinned != asked
        for pinned, asked in zip(
            step_files.serialize_prompts(own), map(step_files.serialize_prompt, prompts), strict=True
        )
    )
    if wrong:
        raise NotReplayableError(f"the prompts of {wrong} of {count} rows are not those that were answered")
    return step_files.StoredGeneration(own, found.tools)


def batch_of(found: step_files.StoredGeneration, trainer: Any) -> TrlBatch:
    """What TRL takes from a `rollout_func`. Where the trainer has tools, it calls none of them behind this batch."""
    rows = found.rows
    made: TrlBatch = {key: [row[key] for row in rows] for key in ("prompt_ids", "completion_ids")}
    for key in ("logprobs", *([] if found.tools else ["env_mask"])):
        if all(row.get(key) is not None for row in rows):
            made[key] = [row[key] for row in rows]
    fields = {name: [row["fields"][name] for row in rows] for name in rows[0].get("fields") or {}}
    if found.tools:
        tools.replay_tool_calls(trainer, rows, found.tools if is_main_process(trainer) else ToolUse(found.tools.names))
    return {**fields, "logprobs": None, **made}


def generate_batch(prompts: Sequence[Any], trainer: Any) -> TrlBatch:
    """What the trainer generates without a `rollout_func`: TRL has no name for it that is public."""
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    answers = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    known = {"prompt_ids": prompt_ids, "images": images, "multimodal_fields": fields, "num_generations": answers}
    asked = inspect.signature(trainer._generate_single_turn).parameters
    ids, logprobs = trainer._generate_single_turn(**{name: known[name] for name in known if name in asked})
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}
