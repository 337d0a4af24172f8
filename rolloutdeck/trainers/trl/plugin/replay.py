"""Replays steps of TRL: the `rollout_func` of GRPOTrainer, for pinned rows from any source.

If a step can't be loaded or does not fit, it is generated; the run ends only if the plan says to stop. If only a part
of a step could be replayed, the outcome is `refused`, since the step is not the pinned one. Several processes replay a
step all or none, since they may only be able to generate together. So no process decides alone whether it waits for the
others.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from operator import ne
from typing import Any, Protocol

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.common import catch_errors
from rolloutdeck.trainers.trl.layout import CORRECTION, VLLM
from rolloutdeck.trainers.trl.plugin import step_files, tools
from rolloutdeck.trainers.trl.plugin.processes import count_processes, find_shared_error, is_main_process
from rolloutdeck.trainers.trl.plugin.rows import ToolUse

TrlBatch = dict[str, Any]
RolloutFunction = Callable[[Sequence[Any], Any], TrlBatch]  # called by TRL with (prompts, trainer)


class PlannedStep(Protocol):
    """A step to replay."""

    def load_generation(self, call: int, trainer: Any) -> step_files.StoredGeneration:
        """Returns the `call`-th generation of the step, from 0.

        Raises NotReplayableError if the pin does not fit, and any error of loading it.
        """

    def report_replayed(self, trainer: Any, rows: int, seconds: float) -> None:
        """Reports that `rows` rows of the step, of all processes, were replayed in `seconds`.

        Called after each generation, with the sums up to then.
        """

    def report_not_replayed(self, trainer: Any, error: Exception) -> None:
        """Reports that the step is generated. Raises ReplayStoppedError if the plan says to stop."""


StepSource = Callable[[int, Any], PlannedStep | None]  # (step, trainer); None if generated; equal in all processes


class StepReplayer:
    """A `rollout_func`: replays the steps of `source`; `otherwise` generates all other steps and every eval.

    The trainer calls it with the prompts of its rows, each prompt once per answer.
    """

    def __init__(self, source: StepSource, otherwise: RolloutFunction) -> None:
        self.source, self.otherwise = source, otherwise
        self._state: Any = None  # of the training
        self._step, self._call = -1, 0  # its last step, and the index of its last generation
        self._rows, self._seconds = 0, 0.0  # replayed in this step so far, of all processes
        self._has_failed = False  # a generation of this step could not be replayed

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> TrlBatch:
        """Returns the batch. Raises ReplayStoppedError if the plan says to stop, and errors of generating."""
        replayed = self._try_replay(prompts, trainer) if trainer.model.training else None
        return self.otherwise(prompts, trainer) if replayed is None else replayed

    @catch_errors
    def _try_replay(self, prompts: Sequence[Any], trainer: Any) -> TrlBatch | None:
        number, call = self._next_call(trainer)
        step = self.source(number, trainer)
        if step is None or self._has_failed:
            return None
        start, generation, error = time.monotonic(), step_files.StoredGeneration([]), None
        try:
            generation = step.load_generation(call, trainer)
            tools.check_tools(trainer, generation)
            generation = select_own_rows(generation, prompts, trainer)
            check_logprobs(generation, trainer)
        except Exception as raised:  # after any error the step can be generated
            error = raised
        error = find_shared_error(trainer, error)
        if error is not None:
            self._has_failed = True
            if self._rows:
                reason = str(error) or type(error).__name__
                error = NotReplayableError(f"{self._rows} rows of the step were replayed, the others are not: {reason}")
            step.report_not_replayed(trainer, error)
            return None
        self._rows += len(generation.rows) * count_processes(trainer)
        self._seconds += time.monotonic() - start
        step.report_replayed(trainer, self._rows, self._seconds)
        return build_batch(generation, trainer)

    @catch_errors
    def refuse(self, trainer: Any, reason: str) -> None:
        """Reports a step that the trainer generates without this function, if it is one to replay.

        Raises ReplayStoppedError if the plan says to stop.
        """
        if not trainer.model.training:
            return
        number, _ = self._next_call(trainer)
        if step := self.source(number, trainer):
            step.report_not_replayed(trainer, NotReplayableError(reason))

    def _next_call(self, trainer: Any) -> tuple[int, int]:
        """Returns the step that generates now, and the index of this generation, from 0."""
        step = int(trainer.state.global_step) + 1  # incremented only after the step
        if step == self._step and trainer.state is self._state:  # each training has a state of its own
            self._call += 1
        else:
            self._state, self._step, self._call = trainer.state, step, 0
            self._rows, self._seconds, self._has_failed = 0, 0.0, False
        return step, self._call


def select_own_rows(
    generation: step_files.StoredGeneration, prompts: Sequence[Any], trainer: Any
) -> step_files.StoredGeneration:
    """Returns the rows of a generation that this process trains on.

    Raises NotReplayableError if they are not the answers to its prompts, in the same order.
    """
    rows, count, rank = generation.rows, len(prompts), int(trainer.accelerator.process_index)
    if len(rows) != count * count_processes(trainer):
        raise NotReplayableError(f"rows: {len(rows)} pinned, {count * count_processes(trainer)} requested")
    own_rows = list(rows[rank * count : (rank + 1) * count])
    requested = map(step_files.serialize_prompt, prompts)
    if different := sum(map(ne, step_files.serialize_prompts(own_rows), requested)):
        raise NotReplayableError(f"the prompts of {different} of {count} rows are not those that were answered")
    return step_files.StoredGeneration(own_rows, generation.tools)


def check_logprobs(generation: step_files.StoredGeneration, trainer: Any) -> None:
    """Raises NotReplayableError if TRL corrects vLLM's sampling with log-probs that the rows do not have."""
    if not getattr(trainer, VLLM, False) or not getattr(trainer, CORRECTION, False):
        return
    if any(row.get("logprobs") is None for row in generation.rows):
        raise NotReplayableError(f"its rows have no logprobs, which {CORRECTION} of this run needs ({VLLM} is on)")


def build_batch(generation: step_files.StoredGeneration, trainer: Any) -> TrlBatch:
    """Returns what TRL expects from a `rollout_func`. The trainer calls none of its tools for this batch."""
    rows = generation.rows
    batch: TrlBatch = {key: [row[key] for row in rows] for key in ("prompt_ids", "completion_ids")}
    for key in ("logprobs", *([] if generation.tools else ["env_mask"])):
        if all(row.get(key) is not None for row in rows):
            batch[key] = [row[key] for row in rows]
    fields = {name: [row["fields"][name] for row in rows] for name in rows[0].get("fields") or {}}
    if generation.tools:
        tool_use = generation.tools if is_main_process(trainer) else ToolUse(generation.tools.names)
        tools.replay_tool_calls(trainer, rows, tool_use)
    return {**fields, "logprobs": None, **batch}


def generate_batch(prompts: Sequence[Any], trainer: Any) -> TrlBatch:
    """Generates as the trainer does without a `rollout_func`: TRL has no public function for it."""
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    answers = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    values = {"prompt_ids": prompt_ids, "images": images, "multimodal_fields": fields, "num_generations": answers}
    parameters = inspect.signature(trainer._generate_single_turn).parameters
    ids, logprobs = trainer._generate_single_turn(**{name: values[name] for name in values if name in parameters})
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}
