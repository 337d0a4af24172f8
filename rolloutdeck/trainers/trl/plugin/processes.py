"""The processes of a TRL training: how all of them get the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from rolloutdeck.errors import NotReplayableError, SelectedSamplesError

T = TypeVar("T")
SHARED_ERRORS: tuple[type[Exception], ...] = (SelectedSamplesError, NotReplayableError)  # the most specific one first


class SharedError(NamedTuple):
    """An error of one process as the others raise it."""

    kind: type[Exception]
    message: str


def count_processes(trainer: Any) -> int:
    return int(trainer.accelerator.num_processes)


def is_main_process(trainer: Any) -> bool:
    return int(trainer.accelerator.process_index) == 0


def broadcast_from_main(trainer: Any, compute: Callable[[], T]) -> T:
    """Returns the result of `compute` in the main process, in all processes. Its error is raised in all of them: if the
    main process left alone, the others would wait for it."""
    if count_processes(trainer) == 1:
        return compute()
    from accelerate.utils import broadcast_object_list

    result: T | SharedError | None = None
    if is_main_process(trainer):
        try:
            result = compute()
        except Exception as error:
            result = describe_shared_error(error)
    result = broadcast_object_list([result], from_process=0)[0]
    if isinstance(result, SharedError):
        raise result.kind(result.message)
    return cast(T, result)


def is_true_in_any_process(trainer: Any, value: bool) -> bool:
    """Returns whether `value` is true in one of the processes, which all call this."""
    if count_processes(trainer) == 1:
        return value
    from accelerate.utils import gather_object

    return any(gather_object([value]))


def find_shared_error(trainer: Any, error: Exception | None) -> Exception | None:
    """Returns the first error of any process, the same in all processes; None if no process has one."""
    if count_processes(trainer) == 1:
        return error
    from accelerate.utils import gather_object

    own_error = None if error is None else describe_shared_error(error)
    first = next((reported for reported in gather_object([own_error]) if reported is not None), None)
    return None if first is None else first[0](first[1])


def describe_shared_error(error: Exception) -> SharedError:
    return SharedError(find_shared_class(error), str(error) or type(error).__name__)


def find_shared_class(error: Exception) -> type[Exception]:
    """Returns the class under which the other processes get the error: they treat all others alike."""
    return next((shared for shared in SHARED_ERRORS if isinstance(error, shared)), OSError)
