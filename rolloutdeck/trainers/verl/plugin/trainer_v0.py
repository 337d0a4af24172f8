"""V0, `RayPPOTrainer`: its validations, which fully async and one step off inherit, and the batches of its own `fit`.

`_validate` hands each of its batches to `extract_reward`, with data source, uid and ground truth, and all decoded
texts at its end to `_maybe_log_val_generations`; both are called whatever the configuration says. `fit` hands every
trained batch to `compute_data_metrics`, with log-probs and advantages in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import counts
from rolloutdeck.trainers.verl.plugin.rows import VerlRow
from rolloutdeck.trainers.verl.plugin.rows_padded import PaddedRows
from rolloutdeck.trainers.verl.plugin.session import BlockedTimer, VerlSession, find_verl_session


class Validation:
    """One pass of `_validate`: rows without texts, batch by batch, then the texts."""

    def __init__(self, session: VerlSession, trainer: Any) -> None:
        self.session, self.config, self.step = session, trainer.config, int(trainer.global_steps)
        self.rows: list[VerlRow] = []
        self.texts: tuple[list[str], list[str], list[float]] = ([], [], [])
        self.groups_kept = 0

    @catch_errors
    def take(self, proto: Any, extras: dict[str, Any]) -> None:
        with BlockedTimer(self.session):
            batch = PaddedRows(proto, extras)
            made = batch.rows(self.config["data"].get("max_response_length"))
            self.keep_tokens(batch, made)
            self.rows += made

    def keep_tokens(self, batch: PaddedRows, made: list[VerlRow]) -> None:
        """Of the first groups of the pass: its batches are not held until the last has come."""
        selection = self.session.selection.less(self.groups_kept)
        groups = batch.groups() or [str(place) for place in range(batch.count)]
        places = selection.rows(groups, "eval", self.step)
        batch.put_tokens(made, places)
        self.groups_kept += len({groups[place] for place in places})

    @catch_errors
    def log(self) -> None:
        inputs, outputs, scores = self.texts
        with BlockedTimer(self.session):
            made = self.rows if len(self.rows) == len(inputs) else [{} for _ in inputs]
            for row, prompt, response, score in zip(made, inputs, outputs, scores, strict=True):
                row.update(prompt=prompt, response=response, score=score)
            asynchronous = self.session.is_fully_async
            self.session.run.log_samples(
                made,
                step=self.step,
                split="eval",
                step_kind="feed_index" if asynchronous else "global_step",
                producer=passes.name(self.step) if asynchronous else "",
            )


class ValidationPasses:
    """Fully async validates again at a feed index whose rollouter waits: another model, so other generations."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def name(self, step: int) -> str:
        self.seen[step] += 1
        return "rollouter" if self.seen[step] == 1 else f"rollouter-{self.seen[step]}"


passes = ValidationPasses()
_validation: ContextVar[Validation | None] = ContextVar("rolloutdeck_validation", default=None)
_fitting: ContextVar[Any] = ContextVar("rolloutdeck_fitting", default=None)


def patch(module: ModuleType) -> None:
    trainer: Any = module.RayPPOTrainer
    wrap_method(trainer, "_validate", validate)
    wrap_method(trainer, "_maybe_log_val_generations", texts)
    wrap_method(trainer, "fit", wrap_fit)
    wrap_method(module, "extract_reward", rewards)
    wrap_method(module, "compute_data_metrics", trained)


def validate(original: Callable[..., Any]) -> Callable[..., Any]:
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        validation = begun(self)
        token = _validation.set(validation)
        try:
            found = original(self, *args, **kwargs)
        finally:
            _validation.reset(token)
        if validation:
            validation.log()
        return found

    return _validate


@catch_errors
def begun(trainer: Any) -> Validation | None:
    session = find_verl_session(trainer.config)
    return Validation(session, trainer) if session else None


def texts(original: Callable[..., Any]) -> Callable[..., Any]:
    def _maybe_log_val_generations(self: Any, *args: Any, **kwargs: Any) -> Any:
        validation, told = _validation.get(), bind_arguments(original, (self, *args), kwargs)
        if validation and told:
            validation.texts = (told["inputs"], told["outputs"], told["scores"])
        return original(self, *args, **kwargs)

    return _maybe_log_val_generations


def rewards(original: Callable[..., Any]) -> Callable[..., Any]:
    def extract_reward(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        validation, told = _validation.get(), bind_arguments(original, args, kwargs)
        if validation and told:
            validation.take(told["batch"], found[1])
        return found

    return extract_reward


def wrap_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _fitting.set(self)
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            failed(self)
            raise
        finally:
            _fitting.reset(token)

    return fit


@catch_errors
def failed(trainer: Any) -> None:
    if session := find_verl_session(trainer.config):
        session.finish("failed")


def trained(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_data_metrics(*args: Any, **kwargs: Any) -> Any:
        trainer, told = _fitting.get(), bind_arguments(original, args, kwargs)
        if trainer is not None and told:
            log_trained_batch(trainer, told["batch"])
        return original(*args, **kwargs)

    return compute_data_metrics


@catch_errors
def log_trained_batch(trainer: Any, proto: Any, extras: dict[str, Any] | None = None, producer: str = "") -> None:
    """Logs a trained batch; its texts are decoded in our thread."""
    session = find_verl_session(trainer.config)
    if session is None:
        return
    step = int(trainer.global_steps)
    with BlockedTimer(session):
        batch, tokenizer = PaddedRows(proto, extras or None), session.tokenizer(trainer.tokenizer)
        most = trainer.config["data"].get("max_response_length")
    session.later(lambda: log(session, batch, tokenizer, step, most, producer))
    counts.log_counts(session, trainer, generated=batch.count, left_out={"aborted": batch.aborted()})


def log(session: VerlSession, batch: PaddedRows, tokenizer: Any, step: int, most: int | None, producer: str) -> None:
    made = batch.rows(most)
    batch.put_texts(made, tokenizer)
    groups = batch.groups() or [row["prompt"] for row in made]
    batch.put_tokens(made, session.selection.rows(groups, "train", step))
    session.run.log_samples(made, step=step, producer=producer)
