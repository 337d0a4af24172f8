"""The processes of a TRL training: which one reports, and how all of them come to the same answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.trl.plugin.callback import RolloutdeckCallback

T = TypeVar("T")


def find_callback(trainer: Any) -> RolloutdeckCallback | None:
    found = (one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutdeckCallback))
    return next(found, None)


def find_reporting_run(trainer: Any) -> Run | None:
    """The run that is told what came of a step: that of the first process's callback, where it has one."""
    callback = find_callback(trainer)
    return callback.opened(trainer.args).run if callback is not None and is_main_process(trainer) else None


def count_processes(trainer: Any) -> int:
    return int(trainer.accelerator.num_processes)


def is_main_process(trainer: Any) -> bool:
    """Whether this process speaks for all."""
    return int(trainer.accelerator.process_index) == 0


def broadcast_from_main(trainer: Any, ask: Callable[[], T]) -> T:
    """What `ask` gives in the first process, in all of them. It must not raise."""
    if count_processes(trainer) == 1:
        return ask()
    from accelerate.utils import broadcast_object_list

    said: list[T] = broadcast_object_list([ask() if is_main_process(trainer) else None], from_process=0)
    return said[0]


def find_shared_error(trainer: Any, error: Exception | None) -> Exception | None:
    """What speaks against a step in any of the processes, the same in all: whoever has nothing against it says None."""
    if count_processes(trainer) == 1:
        return error
    from accelerate.utils import gather_object

    told = None if error is None else (isinstance(error, NotReplayableError), str(error) or type(error).__name__)
    first = next((one for one in gather_object([told]) if one is not None), None)
    return None if first is None else (NotReplayableError if first[0] else OSError)(first[1])
