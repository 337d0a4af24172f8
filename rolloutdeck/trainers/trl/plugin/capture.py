"""Captures each generation of a TRL trainer, with the results of its reward functions.

TRL's own record (`trainer._logs`) stores only the last rows of an eval, and of several steps if it logs seldom. So two
methods of this one trainer are wrapped, which GRPO and RLOO have in common. On the trainer's thread tensors are only
copied to the CPU; everything else runs in the session's thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rolloutdeck.trainers.common import catch_errors, once_logger
from rolloutdeck.trainers.trl.plugin import tools
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration

GENERATE_METHOD, REWARD_METHOD = "_generate_and_score_completions", "_calculate_rewards"
ROLLOUT_ATTRIBUTE = "rollout_func"
EVALUATE_METHOD = "evaluate"
TIMED_METHOD = "_generate"  # generates the completions, also with a `rollout_func`
ROLLOUT_KEYS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")  # all others are for the reward functions
CAPTURED_TENSORS = (
    "prompt_ids", "prompt_mask", "advantages", "tool_mask", "sampling_per_token_logps", "old_per_token_logps",
    "ref_per_token_logps",
)  # fmt: skip


class _Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: float


class GenerationCapture:
    """Calls `on_generation(generation)` after each generation of `trainer`, and `on_error` if that raises."""

    def __init__(
        self,
        trainer: Any,
        on_generation: Callable[[CapturedGeneration], None],
        on_error: Callable[[], None] | None = None,
    ) -> None:
        self.trainer, self.on_generation = trainer, on_generation
        self._rewards: tuple[Any, ...] | None = None
        self._current: tuple[str, int] = ("", -1)
        self._rows = 0  # of all processes, in this step and split so far
        self._seconds = 0.0  # in which this process generated them
        self._pending_seconds = 0.0
        self._fields: dict[str, Any] = {}  # of the generation that is not captured yet
        self._tool_schemas = tools.build_tool_schemas(trainer)
        self._eval_name = ""  # of the data set that is evaluated, if there are several
        if missing := list_missing_methods(trainer):
            kind, names = type(trainer).__name__, " and no ".join(missing)
            once_logger.log_once(kind, "This %s has no %s: Rolloutdeck records its metrics only.", kind, names)
            return
        for name, after in ((ROLLOUT_ATTRIBUTE, self._record_fields), (TIMED_METHOD, self._add_seconds)):
            if callable(getattr(trainer, name, None)):
                self._wrap(name, after)
        if callable(getattr(trainer, EVALUATE_METHOD, None)):
            self._wrap_evaluate()
        self._wrap(REWARD_METHOD, self._record_rewards)
        self._wrap(GENERATE_METHOD, self._capture, on_error)

    def restart(self) -> None:
        """Counts the rows of each step from 0 again: another training begins."""
        self._current, self._pending_seconds = ("", -1), 0.0

    def _wrap(self, name: str, after: Callable[[Any, _Call], None], on_error: Callable[[], None] | None = None) -> None:
        """Calls `after(result, call)` after each call of the trainer's method. Its errors do not reach the trainer."""
        original, safe = getattr(self.trainer, name), catch_errors(after, on_error)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.monotonic()
            result = original(*args, **kwargs)
            safe(result, _Call(args, kwargs, time.monotonic() - start))
            return result

        setattr(self.trainer, name, wrapper)

    def _wrap_evaluate(self) -> None:
        """Notes the name of each of several evaluation data sets, which only the prefix of its metrics has."""
        original = getattr(self.trainer, EVALUATE_METHOD)

        @functools.wraps(original)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            before, self._eval_name = self._eval_name, catch_errors(read_eval_name)(args, kwargs) or ""
            try:
                return original(*args, **kwargs)
            finally:
                self._eval_name = before

        setattr(self.trainer, EVALUATE_METHOD, evaluate)

    def _record_fields(self, output: Any, call: _Call) -> None:
        self._fields = {str(name): value for name, value in output.items() if name not in ROLLOUT_KEYS}

    def _add_seconds(self, output: Any, call: _Call) -> None:
        self._pending_seconds += call.seconds

    def _record_rewards(self, rewards: Any, call: _Call) -> None:
        """`rewards` has the rows of all processes, the extra columns only those of this one until TRL gathers them."""
        names = ("inputs", "prompts", "completions", "completion_ids_list")
        values_by_name = dict(zip(names, call.args, strict=False)) | call.kwargs
        extras = {name: list(values) for name, values in getattr(self.trainer, "_pending_extra_logs", {}).items()}
        self._rewards = (*(values_by_name[name] for name in names), rewards, extras)

    def _capture(self, batch: Any, call: _Call) -> None:
        rewards_record, self._rewards = self._rewards, None
        fields, self._fields = self._fields, {}
        if rewards_record is None:
            return
        inputs, prompts, completions, ids, rewards, extras = rewards_record
        trainer, count = self.trainer, len(prompts)
        is_training = bool(trainer.model.training)
        step = int(trainer.state.global_step) + is_training  # incremented only after the step
        split = "train" if is_training else "eval"
        start = int(trainer.accelerator.process_index) * count  # of this process's rows
        total, generations = int(rewards.shape[0]), count_generations(trainer, is_training)
        first_row = self._next_row(split, step, total)
        all_groups = range(first_row // generations, -(-(first_row + total) // generations))
        self._seconds, self._pending_seconds = self._seconds + self._pending_seconds, 0.0
        self.on_generation(
            CapturedGeneration(
                step, split, first_row + start, generations, all_groups,
                [dict(row) for row in inputs], list(prompts), list(completions), list(ids),
                list(trainer.reward_func_names), get_reward_weights(trainer, int(rewards.shape[1])),
                rewards[start : start + count].detach().cpu(), get_end_ids(trainer), extras,
                {name: batch[name].detach().cpu() for name in CAPTURED_TENSORS if name in batch}, fields, self._seconds,
                tools.count_tool_calls(trainer, split, total), self._tool_schemas,
                "" if is_training else self._eval_name,
            )
        )  # fmt: skip

    def _next_row(self, split: str, step: int, count: int) -> int:
        """Returns the number of earlier rows of the step, and adds `count` new rows."""
        if self._current != (split, step):
            self._current, self._rows, self._seconds = (split, step), 0, 0.0
        before, self._rows = self._rows, self._rows + count
        return before


def read_eval_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns the name of the data set from the arguments of `Trainer.evaluate`: `math` for the prefix `eval_math`, or
    for the data set "math". "" if it has none."""
    dataset = kwargs.get("eval_dataset", args[0] if args else None)
    prefix = str(kwargs.get("metric_key_prefix", args[2] if len(args) > 2 else "eval"))
    return prefix.removeprefix("eval").removeprefix("_") or (dataset if isinstance(dataset, str) else "")


def list_missing_methods(trainer: Any) -> list[str]:
    return [name for name in (GENERATE_METHOD, REWARD_METHOD) if not callable(getattr(trainer, name, None))]


def count_generations(trainer: Any, is_training: bool) -> int:
    """Returns the number of responses per prompt; an eval may have another number."""
    training_count = int(trainer.num_generations)
    return training_count if is_training else int(getattr(trainer, "num_generations_eval", 0) or training_count)


def get_reward_weights(trainer: Any, count: int) -> Sequence[float]:
    weights = getattr(trainer, "reward_weights", None)
    return [1.0] * count if weights is None else [float(weight) for weight in weights.tolist()]


def get_end_ids(trainer: Any) -> frozenset[int]:
    """Returns the token ids at the end of a response that TRL does not count as truncated."""
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    end_ids = getattr(trainer, "eos_token_ids", None) or [getattr(tokenizer, "eos_token_id", None)]
    known_ids = (token_id for token_id in (*end_ids, getattr(tokenizer, "pad_token_id", None)) if token_id is not None)
    return frozenset(map(int, known_ids))
