"""V1, `PPOTrainer`: its validations and trained batches, read from the TransferQueue before it is cleared.

`_validate` samples each of its batches from the replay buffer; where a colocated reward model scores them, the
scores are there only after `_compute_reward_colocate`. `_compute_metrics` gets every trained batch, whose keys still
hold all that the step computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import TokenSelection, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import counts, evictions
from rolloutdeck.trainers.verl.plugin.rows_jagged import JaggedRows
from rolloutdeck.trainers.verl.plugin.session import BlockedTimer, VerlSession, find_verl_session
from rolloutdeck.trainers.verl.plugin.trainer_v0 import wrap_fit


def patch(module: ModuleType) -> None:
    trainer: Any = module.PPOTrainer
    wrap_method(trainer, "fit", wrap_fit)
    wrap_method(trainer, "_validate", validate)
    wrap_method(trainer, "_compute_metrics", computed)


def validate(original: Callable[..., Any]) -> Callable[..., Any]:
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watched(self):
            return original(self, *args, **kwargs)

    return _validate


@contextmanager
def watched(trainer: Any) -> Iterator[None]:
    """Listens to the methods of this trainer and buffer that hand out a validation batch, for the time of one pass."""
    session = opened(trainer)
    owner, name = source(trainer) if session else (None, "")
    if session is None or owner is None:
        yield
        return
    original = getattr(owner, name)
    had = name in vars(owner)
    selection = session.selection

    def listening(*args: Any, **kwargs: Any) -> Any:
        nonlocal selection
        found = original(*args, **kwargs)
        batch = take(session, trainer, found[0] if isinstance(found, tuple) else found, "eval", selection)
        selection = selection.less(batch.groups_kept() if batch else 0)
        return found

    setattr(owner, name, listening)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@catch_errors
def opened(trainer: Any) -> VerlSession | None:
    return find_verl_session(trainer.config)


def source(trainer: Any) -> tuple[Any, str]:
    if trainer.reward_loop_manager.reward_loop_worker_handles is None:
        return trainer, "_compute_reward_colocate"
    return trainer.replay_buffer, "sample"


def computed(original: Callable[..., Any]) -> Callable[..., Any]:
    def _compute_metrics(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if session := opened(self):
            count(session, self, take(session, self, batch, "train", session.selection))
        return original(self, batch, *args, **kwargs)

    return _compute_metrics


@catch_errors
def take(session: VerlSession, trainer: Any, meta: Any, split: str, selection: TokenSelection) -> JaggedRows:
    """Reads a batch and logs it; its texts are decoded in our thread."""
    import transfer_queue

    step = int(trainer.global_steps)
    with BlockedTimer(session):
        tokenizer = session.tokenizer(trainer.tokenizer)
        batch = JaggedRows(transfer_queue, meta)
        batch.read_tokens(selection.rows(batch.groups(), split, step))
        most = trainer.config["data"].get("max_response_length")
    session.later(lambda: log(session, batch, tokenizer, step, split, most))
    return batch


def log(session: VerlSession, batch: JaggedRows, tokenizer: Any, step: int, split: str, most: int | None) -> None:
    made = batch.rows(most)
    batch.put_texts(made, tokenizer)
    session.run.log_samples(made, step=step, split=split)


@catch_errors
def count(session: VerlSession, trainer: Any, batch: JaggedRows | None) -> None:
    if batch is None:
        return
    left_out = evictions.take_eviction_counts(trainer.replay_buffer)
    trained = batch.sessions()
    counts.log_counts(session, trainer, generated=trained + sum(left_out.values()), left_out=left_out)
