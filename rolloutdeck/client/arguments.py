"""Checks of the arguments that a trainer passes to `Run`, with messages that name the argument."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from math import isnan
from typing import Any, Final, ParamSpec

from rolloutdeck.errors import CallError
from rolloutdeck.lib import logger
from rolloutdeck.protocol import parse_column_mapping

MAX_SECONDS: Final = 86_400.0  # threads cannot wait for any number of seconds

P = ParamSpec("P")


def guard_call(method: Callable[P, None]) -> Callable[P, None]:
    """Wraps a method so that an exception costs only that call and one warning, never the training."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            name = method.__name__
            run: Any = args[0]
            logger.debug("%s() failed.", name, exc_info=True)
            reason = _describe_error(error, method, args, kwargs)
            run._once_logger.log_once(f"{name} {reason}", "The call of %s() is ignored: %s", name, reason)
            run._count_failed_call(name, "a call that could not be understood", reason)

    return call


def _describe_error(error: Exception, method: Callable[..., None], args: Any, kwargs: Any) -> str:
    """Returns a message of our own, since those of Python do not name the argument."""
    if isinstance(error, CallError):
        return str(error)
    if isinstance(error, OSError):  # of the disk or the network, not of the arguments
        return str(error.strerror or error)
    import inspect  # not at the top: it takes longer than the rest of this module

    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        names = ", ".join(name for name in inspect.signature(method).parameters if name != "self")
        return f"wrong arguments. It takes ({names})."
    given = inspect.signature(method).bind(*args, **kwargs).arguments
    types = ", ".join(f"{name} is {_describe_type(value)}" for name, value in given.items() if name != "self")
    return f"it cannot use these arguments: {types}."


def _describe_type(value: Any) -> str:
    """Returns the type of a value as users write it, with an article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise CallError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def choose_seconds(value: Any, name: str, default: float) -> float:
    """Returns a number of seconds, at most a day: None and infinity are no limit. Warns about what is no number, and
    returns `default` then."""
    try:
        seconds = MAX_SECONDS if value is None else float(value)
        if not isnan(seconds):
            return min(max(seconds, 0.0), MAX_SECONDS)
    except (TypeError, ValueError):
        pass
    logger.warning("%s must be a number of seconds, not %.80r. It is %g.", name, value, default)
    return default


def check_values(values: Any) -> dict[str, Any]:
    """Returns a copy of the metrics. Raises CallError."""
    try:
        return dict(values)
    except (TypeError, ValueError):
        raise CallError(f"the values must be a dict of numbers by name, not {_describe_type(values)}") from None


def check_columns(columns: str) -> None:
    try:
        parse_column_mapping(columns)
    except ValueError as error:
        raise CallError(f"columns: {error}") from None


def parse_step(step: Any) -> int:
    """Returns the step as an int. Accepts tensors and floats like 12.0. Raises CallError."""
    try:
        step = step.item() if hasattr(step, "item") else step
        number: int = int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)
    except (TypeError, ValueError, RuntimeError):
        raise CallError(f"a step must be a whole number, not {str(step)[:80]!r}") from None
    if not 0 <= number < 2**63:
        raise CallError(f"a step must be 0 or more, not {number}")
    return number
