"""V0, `RayPPOTrainer`: records its validations, which fully async and one step off inherit, and the batches of its own
`fit`.

`_validate` passes each of its batches to `extract_reward`, with data source, uid and ground truth, and all decoded
texts at its end to `_maybe_log_val_generations`; both are called with any configuration. `fit` passes every trained
batch to `compute_data_metrics`, with log-probs and advantages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import guidance
from rolloutdeck.trainers.verl.plugin.rows import VerlRow, add_trainer_version
from rolloutdeck.trainers.verl.plugin.rows_padded import PaddedRows
from rolloutdeck.trainers.verl.plugin.rule_marks import add_marks
from rolloutdeck.trainers.verl.plugin.session import VerlSession, find_verl_session


class Validation:
    """One pass of `_validate`: first the rows without texts, batch by batch, then the texts."""

    def __init__(self, session: VerlSession, trainer: Any) -> None:
        self.session, self.config, self.step = session, trainer.config, int(trainer.global_steps)
        self.rows: list[VerlRow] = []
        self.texts: tuple[list[str], list[str], list[float]] = ([], [], [])
        self.token_group_count = 0

    @catch_errors
    def set_texts(self, arguments: Mapping[str, Any]) -> None:
        """Keeps what verl passes to `_maybe_log_val_generations`."""
        self.texts = (arguments["inputs"], arguments["outputs"], arguments["scores"])

    @catch_errors
    def add_batch(self, arguments: Mapping[str, Any], reward: Any) -> None:
        """Adds what verl passed to `extract_reward`, and what it got."""
        with self.session.measure_blocking(), self.session.count_capture_errors():
            batch = PaddedRows(arguments["batch"], reward[1])
            batch_rows = batch.rows(self.config["data"].get("max_response_length"))
            self.add_tokens(batch, batch_rows)
            self.rows += batch_rows

    def add_tokens(self, batch: PaddedRows, batch_rows: list[VerlRow]) -> None:
        """Adds tokens for the first groups of the pass: its batches are not stored until the last one."""
        selection = self.session.selection.subtract(self.token_group_count)
        groups = batch.groups() or [str(index) for index in range(batch.count)]
        indices = selection.select_rows(groups, "eval", self.step)
        batch.add_tokens(batch_rows, indices)
        self.token_group_count += len({groups[index] for index in indices})

    @catch_errors
    def log(self) -> None:
        inputs, outputs, scores = self.texts
        with self.session.measure_blocking(), self.session.count_capture_errors():
            rows = self.rows if len(self.rows) == len(inputs) else [{} for _ in inputs]
            for row, prompt, response, score in zip(rows, inputs, outputs, scores, strict=True):
                row.update(prompt=prompt, response=response, score=score)
            kind, producer = "global_step", ""
            if self.session.is_fully_async:
                kind, producer = "feed_index", build_producer(self.step)
            self.session.run.log_samples(rows, self.step, "eval", step_kind=kind, producer=producer, columns="native")


def build_producer(step: int) -> str:
    """Names a validation pass of fully async, which validates again at the same feed index with another model."""
    _passes[step] += 1
    return "rollouter" if _passes[step] == 1 else f"rollouter-{_passes[step]}"


_passes: Counter[int] = Counter()  # feed index -> validations
_validation: ContextVar[Validation | None] = ContextVar("rolloutdeck_validation", default=None)
_fitting: ContextVar[Any] = ContextVar("rolloutdeck_fitting", default=None)


def patch(module: ModuleType) -> None:
    trainer: Any = module.RayPPOTrainer
    wrap_method(trainer, "_validate", wrap_validate)
    wrap_method(trainer, "_maybe_log_val_generations", wrap_log_generations)
    wrap_method(trainer, "fit", wrap_fit)
    wrap_method(module, "extract_reward", wrap_extract_reward)
    wrap_method(module, "compute_data_metrics", wrap_compute_metrics)
    wrap_method(module, "compute_advantage", wrap_compute_advantage)


def wrap_validate(original: Callable[..., Any]) -> Callable[..., Any]:
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        validation = start_validation(self)
        token = _validation.set(validation)
        try:
            result = original(self, *args, **kwargs)
        finally:
            _validation.reset(token)
        if validation:
            validation.log()
        return result

    return _validate


@catch_errors
def start_validation(trainer: Any) -> Validation | None:
    session = find_verl_session(trainer.config)
    return Validation(session, trainer) if session else None


def wrap_log_generations(original: Callable[..., Any]) -> Callable[..., Any]:
    def _maybe_log_val_generations(self: Any, *args: Any, **kwargs: Any) -> Any:
        validation, arguments = _validation.get(), bind_arguments(original, (self, *args), kwargs)
        if validation and arguments:
            validation.set_texts(arguments)
        return original(self, *args, **kwargs)

    return _maybe_log_val_generations


def wrap_extract_reward(original: Callable[..., Any]) -> Callable[..., Any]:
    def extract_reward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        validation, arguments = _validation.get(), bind_arguments(original, args, kwargs)
        if validation and arguments:
            validation.add_batch(arguments, result)
        return result

    return extract_reward


def wrap_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _fitting.set(self)
        guidance.find_guidance(self)  # its thread asks for the rules while the first step is generated
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            finish_failed_run(self)
            raise
        finally:
            _fitting.reset(token)

    return fit


@catch_errors
def finish_failed_run(trainer: Any) -> None:
    if session := find_verl_session(trainer.config):
        session.finish("failed")


def wrap_compute_metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_data_metrics(*args: Any, **kwargs: Any) -> Any:
        trainer, arguments = _fitting.get(), bind_arguments(original, args, kwargs)
        if trainer is not None and arguments:
            log_step_batch(trainer, arguments)
        return original(*args, **kwargs)

    return compute_data_metrics


@catch_errors
def log_step_batch(trainer: Any, arguments: Mapping[str, Any]) -> None:
    """Logs what verl passes to `compute_data_metrics`."""
    log_trained_batch(trainer, arguments["batch"])


def wrap_compute_advantage(original: Callable[..., Any]) -> Callable[..., Any]:
    """Also what fully async and one step off call. V1 has no texts in this batch, and its own wrapper."""

    def compute_advantage(*args: Any, **kwargs: Any) -> Any:
        trainer, arguments = _fitting.get(), bind_arguments(original, args, kwargs)
        applied = guidance.prepare_padded(trainer, arguments.get("data")) if trainer is not None else None
        if applied is None:
            return original(*args, **kwargs)
        with applied.number_rows():
            with applied.exclude(arguments.get("adv_estimator")):
                result = original(*args, **kwargs)
            applied.apply(result)
        return result

    return compute_advantage


@contextmanager
def follow_guidance(trainer: Any) -> Iterator[None]:
    """Within it, the advantages of a batch that has texts follow the rules of the trainer's run."""
    token = _fitting.set(trainer)
    try:
        yield
    finally:
        _fitting.reset(token)


@catch_errors
def log_trained_batch(
    trainer: Any, proto: Any, extras: dict[str, Any] | None = None, producer: str = "", trainer_version: Any = None
) -> None:
    """Logs a trained batch. Its texts are decoded in the session's thread."""
    session = find_verl_session(trainer.config)
    if session is None:
        return
    step = int(trainer.global_steps)
    with session.measure_blocking(), session.count_capture_errors():
        batch, tokenizer = PaddedRows(proto, extras or None), session.tokenizer(trainer.tokenizer)
        max_tokens = trainer.config["data"].get("max_response_length")
        marks = session.marks.find(step, batch.groups())

    def log_rows() -> None:
        rows = batch.rows(max_tokens)
        batch.add_texts(rows, tokenizer)
        add_marks(rows, marks)
        add_trainer_version(rows, trainer_version)
        groups = batch.groups() or [row["prompt"] for row in rows]
        batch.add_tokens(rows, session.selection.select_rows(groups, "train", step))
        session.run.log_samples(rows, step=step, producer=producer, columns="native")

    session.submit(log_rows)
    session.log_counts(step, generated=batch.count, excluded={"aborted": batch.count_aborted()})
