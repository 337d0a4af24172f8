"""V1, `PPOTrainer`: records its validations and trained batches, read from the TransferQueue before it is cleared.

`_validate` samples each of its batches from the replay buffer; if a colocated reward model scores them, the scores
exist only after `_compute_reward_colocate`. `_compute_metrics` gets every trained batch, whose keys still have all
results of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import EqualSampleMarker, TokenSelection, bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import evictions, guidance, rows
from rolloutdeck.trainers.verl.plugin.rows_jagged import JaggedBatch
from rolloutdeck.trainers.verl.plugin.rule_marks import add_marks
from rolloutdeck.trainers.verl.plugin.session import VerlSession, find_verl_session
from rolloutdeck.trainers.verl.plugin.trainer_v0 import wrap_fit

_guided: ContextVar[guidance.GuidedBatch | None] = ContextVar("rolloutdeck_guided", default=None)


def patch(module: ModuleType) -> None:
    trainer: Any = module.PPOTrainer
    wrap_method(trainer, "fit", wrap_fit)
    wrap_method(trainer, "_validate", wrap_validate)
    wrap_method(trainer, "_compute_metrics", wrap_compute_metrics)
    wrap_method(trainer, "_compute_advantage", wrap_compute_advantage)
    wrap_method(module, "compute_advantage_for_multi_trajectories", wrap_multi_trajectories)


def wrap_compute_advantage(original: Callable[..., Any]) -> Callable[..., Any]:
    """Finds what the rules say about the rows of the batch, for the call of verl that computes their advantages."""

    def _compute_advantage(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = bind_arguments(original, (self, *args), kwargs)
        token = _guided.set(guidance.prepare_jagged(self, arguments.get("batch")))
        try:
            return original(self, *args, **kwargs)
        finally:
            _guided.reset(token)

    return _compute_advantage


def wrap_multi_trajectories(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_advantage_for_multi_trajectories(*args: Any, **kwargs: Any) -> Any:
        guided = _guided.get()
        if guided is None:
            return original(*args, **kwargs)
        arguments = bind_arguments(original, args, kwargs)
        guided.data = arguments.get("data")
        with guided.exclude(arguments.get("adv_estimator")):
            result = original(*args, **kwargs)
        guided.apply(result)
        return result

    return compute_advantage_for_multi_trajectories


def wrap_validate(original: Callable[..., Any]) -> Callable[..., Any]:
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watch_validation(self):
            return original(self, *args, **kwargs)

    return _validate


@contextmanager
def watch_validation(trainer: Any) -> Iterator[None]:
    """Wraps the methods of this trainer and buffer that return validation batches, for one pass."""
    session = find_session(trainer)
    found = find_batch_method(trainer) if session else None
    if session is None or found is None:
        yield
        return
    owner, name = found
    original = getattr(owner, name)
    was_overridden = name in vars(owner)
    selection, counter = session.selection, EqualSampleMarker()

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal selection
        result = original(*args, **kwargs)
        meta = result[0] if isinstance(result, tuple) else result
        batch = log_batch(session, trainer, meta, "eval", selection, counter)
        selection = selection.subtract(batch.count_token_groups() if batch else 0)
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        if was_overridden:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@catch_errors
def find_session(trainer: Any) -> VerlSession | None:
    return find_verl_session(trainer.config)


@catch_errors
def find_batch_method(trainer: Any) -> tuple[Any, str]:
    """Returns the object and the name of its method that returns the batches of a validation."""
    is_colocated = trainer.reward_loop_manager.reward_loop_worker_handles is None
    owner, name = (trainer, "_compute_reward_colocate") if is_colocated else (trainer.replay_buffer, "sample")
    getattr(owner, name)  # an error here is caught
    return owner, name


def wrap_compute_metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    def _compute_metrics(self: Any, *args: Any, **kwargs: Any) -> Any:
        if session := find_session(self):
            batch = bind_arguments(original, (self, *args), kwargs).get("batch")
            log_batch_counts(session, self, log_batch(session, self, batch, "train", session.selection))
        return original(self, *args, **kwargs)

    return _compute_metrics


@catch_errors
def log_batch(
    session: VerlSession,
    trainer: Any,
    meta: Any,
    split: str,
    selection: TokenSelection,
    counter: EqualSampleMarker | None = None,
) -> JaggedBatch:
    """Reads a batch and logs it; its texts are decoded in the session's thread. `counter`: of the earlier batches."""
    import transfer_queue

    step = int(trainer.global_steps)
    with session.measure_blocking(), session.count_capture_errors():
        tokenizer = session.tokenizer(trainer.tokenizer)
        batch = JaggedBatch(transfer_queue, meta)
        batch.read_tokens(selection.select_rows(batch.groups(), split, step))
        max_tokens = trainer.config["data"].get("max_response_length")
        marks = session.marks.find(step, batch.keys) if split == "train" else []

    def log_rows() -> None:
        batch_rows = batch.rows(max_tokens)
        batch.add_texts(batch_rows, tokenizer)
        add_marks(batch_rows, marks)
        if counter is not None:
            counter.mark_rows(batch_rows, step)
        if split == "train":
            rows.add_trainer_version(batch_rows, step - 1)  # the step updates the weights that the step before it wrote
        session.run.log_samples(batch_rows, step=step, split=split, columns="native")

    session.submit(log_rows)
    return batch


@catch_errors
def log_batch_counts(session: VerlSession, trainer: Any, batch: JaggedBatch | None) -> None:
    if batch is None:
        return
    excluded = evictions.take_eviction_counts(trainer.replay_buffer)
    generated = batch.count_sessions() + sum(excluded.values())
    session.log_counts(int(trainer.global_steps), generated, excluded)
