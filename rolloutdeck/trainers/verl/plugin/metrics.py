"""`trainer.logger=[console,rolloutdeck]`: every metric that verl logs, its configuration, and how the run ended.

verl's `Tracking` has a closed list of backends, made of class attributes: ours joins the list, and an object with
`log(data=, step=)` joins the loggers of each instance. `Tracking.finish` ends only those that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin.session import LOGGER_NAME, VerlSession, open_verl_session, parse_loggers


class Backend:
    """What `Tracking` calls. Fully async runs log by parameter version, all others by global step."""

    def __init__(self, session: VerlSession) -> None:
        self.session = session
        session.run.ends_here = True
        self.step_kind = "policy_version" if session.is_fully_async else "global_step"

    @catch_errors
    def log(self, data: Mapping[str, Any], step: int) -> None:
        self.session.run.log(data, step=step, step_kind=self.step_kind)

    @catch_errors
    def finish(self, exit_code: int = 0) -> None:
        self.session.finish("failed" if exit_code else "finished")


def patch(module: ModuleType) -> None:
    tracking: Any = module.Tracking
    if LOGGER_NAME not in tracking.supported_backend:
        tracking.supported_backend.append(LOGGER_NAME)
    wrap_method(tracking, "__init__", join)
    wrap_method(tracking, "finish", finish)


def join(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        told = bind_arguments(original, (self, *args), kwargs)
        if LOGGER_NAME in parse_loggers(told.get("default_backend")):
            add(self, told["project_name"], told["experiment_name"], told.get("config"))

    return __init__


@catch_errors
def add(tracking: Any, project_name: str, experiment_name: str, config: Any) -> None:
    """The names given to `Tracking` hold, whatever its config says; a config may be left out."""
    tracking.logger[LOGGER_NAME] = Backend(open_verl_session(str(project_name), str(experiment_name), config or {}))


def finish(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: Any, *args: Any, **kwargs: Any) -> None:
        backend = getattr(self, "logger", {}).pop(LOGGER_NAME, None)  # once, though `__del__` calls again
        original(self, *args, **kwargs)
        if backend is not None:
            backend.finish(bind_arguments(original, (self, *args), kwargs).get("exit_code", 0))

    return finish
