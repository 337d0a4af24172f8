"""The processes of a TRL training: which one reports, and how all of them get the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.trl.plugin.callback import RolloutdeckCallback

T = TypeVar("T")


def find_callback(trainer: Any) -> RolloutdeckCallback | None:
    callbacks = trainer.callback_handler.callbacks
    return next((callback for callback in callbacks if isinstance(callback, RolloutdeckCallback)), None)


def find_reporting_run(trainer: Any) -> Run | None:
    """Returns the run that gets the outcome of a step: that of the main process's callback, if it has one."""
    callback = find_callback(trainer)
    return callback.open_session(trainer.args).run if callback is not None and is_main_process(trainer) else None


def count_processes(trainer: Any) -> int:
    return int(trainer.accelerator.num_processes)


def is_main_process(trainer: Any) -> bool:
    return int(trainer.accelerator.process_index) == 0


def broadcast_from_main(trainer: Any, compute: Callable[[], T]) -> T:
    """Returns the result of `compute` in the main process, in all processes. `compute` must not raise."""
    if count_processes(trainer) == 1:
        return compute()
    from accelerate.utils import broadcast_object_list

    values: list[T] = broadcast_object_list([compute() if is_main_process(trainer) else None], from_process=0)
    return values[0]


def find_shared_error(trainer: Any, error: Exception | None) -> Exception | None:
    """Returns the first error of any process, the same in all processes; None if no process has one."""
    if count_processes(trainer) == 1:
        return error
    from accelerate.utils import gather_object

    own_error = None if error is None else (isinstance(error, NotReplayableError), str(error) or type(error).__name__)
    first = next((reported for reported in gather_object([own_error]) if reported is not None), None)
    return None if first is None else (NotReplayableError if first[0] else OSError)(first[1])
