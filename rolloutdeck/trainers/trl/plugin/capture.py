"""Gets between the lines of a TRL trainer: what each generation was, and what its reward functions made of it.

TRL's own record (`trainer._logs`) keeps only the last rows of an eval, and of several steps where it logs seldom. So
two methods of this one trainer are wrapped, which GRPO and RLOO have in common. On the trainer's thread tensors are
only brought to the CPU, all else happens in ours.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from rolloutdeck.trainers.common import catch_errors, once_logger
from rolloutdeck.trainers.trl.plugin import tools
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration

GENERATE, REWARD, ROLLOUT = "_generate_and_score_completions", "_calculate_rewards", "rollout_func"
MAKE = "_generate"  # what the trainer, or its `rollout_func`, takes to make the completions of its prompts
OF_ROLLOUT = ("prompt_ids", "completion_ids", "logprobs", "env_mask")  # all else is handed on to the reward functions
CAPTURED_TENSORS = (
    "prompt_ids", "prompt_mask", "advantages", "tool_mask", "sampling_per_token_logps", "old_per_token_logps",
    "ref_per_token_logps",
)  # fmt: skip


class GenerationCapture:
    """Calls `give(held)` after each generation of `trainer`."""

    def __init__(self, trainer: Any, give: Callable[[CapturedGeneration], None]) -> None:
        self.trainer, self.give = trainer, give
        self._scored: tuple[Any, ...] | None = None
        self._at: tuple[str, int] = ("", -1)
        self._rows = 0  # of all processes, of this step and split so far
        self._seconds = 0.0  # in which they were made, by this process
        self._making = 0.0
        self._fields: dict[str, Any] = {}  # of the generation that is not taken yet
        missing = [name for name in (GENERATE, REWARD) if not callable(getattr(trainer, name, None))]
        if missing:
            kind = type(trainer).__name__
            once_logger.log_once(
                kind, "This %s has no %s: Rolloutdeck keeps its metrics only.", kind, " and no ".join(missing)
            )
            return
        if callable(getattr(trainer, ROLLOUT, None)):
            self._wrap(ROLLOUT, self._note_fields)
        self._time(MAKE)
        self._wrap(REWARD, self._note)
        self._wrap(GENERATE, self._take)

    def _wrap(self, name: str, after: Callable[[Any, Any], None]) -> None:
        """`after(arguments, result)` follows each call of the trainer's method; what it raises is ours alone."""
        original, safe = getattr(self.trainer, name), catch_errors(after)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            safe((args, kwargs), result)
            return result

        setattr(self.trainer, name, call)

    def _note_fields(self, called: Any, output: Any) -> None:
        self._fields = {str(name): value for name, value in output.items() if name not in OF_ROLLOUT}

    def _time(self, name: str) -> None:
        """Adds up what the calls of the trainer's method take, where it has such a one."""
        original = getattr(self.trainer, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.monotonic()
            result = original(*args, **kwargs)
            self._making += time.monotonic() - start
            return result

        setattr(self.trainer, name, call)

    def _note(self, called: Any, rewards: Any) -> None:
        """`rewards` is of all processes; the extra columns are this one's until TRL gathers them."""
        args, kwargs = called
        names = ("inputs", "prompts", "completions", "completion_ids_list")
        told = dict(zip(names, args, strict=False)) | kwargs
        extras = {name: list(values) for name, values in getattr(self.trainer, "_pending_extra_logs", {}).items()}
        self._scored = (*(told[name] for name in names), rewards, extras)

    def _take(self, called: Any, batch: Any) -> None:
        scored, self._scored = self._scored, None
        fields, self._fields = self._fields, {}
        if scored is None:
            return
        inputs, prompts, completions, ids, rewards, extras = scored
        trainer, count = self.trainer, len(prompts)
        is_training = bool(trainer.model.training)
        step = int(trainer.state.global_step) + is_training  # counted up only after the step
        split = "train" if is_training else "eval"
        rank = int(trainer.accelerator.process_index)
        first = self._place(split, step, int(rewards.shape[0])) + rank * count
        self._seconds, self._making = self._seconds + self._making, 0.0
        own = rewards[rank * count : (rank + 1) * count]
        self.give(
            CapturedGeneration(
                step, split, first, generations(trainer, is_training),
                [dict(one) for one in inputs], list(prompts), list(completions), list(ids),
                list(trainer.reward_func_names), weights(trainer, int(rewards.shape[1])), own.detach().cpu(),
                ends(trainer), extras,
                {name: batch[name].detach().cpu() for name in CAPTURED_TENSORS if name in batch}, fields, self._seconds,
                tools.count_tool_calls(trainer, split, int(rewards.shape[0])),
            )
        )  # fmt: skip

    def _place(self, split: str, step: int, count: int) -> int:
        """How many rows of the step came before; `count` more have come."""
        if self._at != (split, step):
            self._at, self._rows, self._seconds = (split, step), 0, 0.0
        before, self._rows = self._rows, self._rows + count
        return before


def generations(trainer: Any, is_training: bool) -> int:
    """How many responses answer a prompt; an eval may have another number."""
    most = int(trainer.num_generations)
    return most if is_training else int(getattr(trainer, "num_generations_eval", most) or most)


def weights(trainer: Any, count: int) -> Sequence[float]:
    found = getattr(trainer, "reward_weights", None)
    return [1.0] * count if found is None else [float(each) for each in found.tolist()]


def ends(trainer: Any) -> frozenset[int]:
    """The ids after which TRL does not call a response truncated."""
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    found = getattr(trainer, "eos_token_ids", None) or [getattr(tokenizer, "eos_token_id", None)]
    return frozenset(int(each) for each in [*found, getattr(tokenizer, "pad_token_id", None)] if each is not None)
