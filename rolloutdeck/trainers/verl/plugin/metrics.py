"""`trainer.logger=[console,rolloutdeck]`: records verl's metrics, its configuration, and the outcome of the run.

verl's `Tracking` has a fixed list of backends, made of class attributes: ours is added to the list, and an object with
`log(data=, step=)` is added to the loggers of each instance. `Tracking.finish` ends only the backends it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin.session import LOGGER_NAME, VerlSession, open_verl_session, parse_loggers


class TrackingBackend:
    """The backend that `Tracking` calls. Fully async runs log by parameter version, all others by global step."""

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
    wrap_method(tracking, "__init__", wrap_init)
    wrap_method(tracking, "finish", wrap_finish)


def wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        add_backend(self, bind_arguments(original, (self, *args), kwargs))

    return __init__


@catch_errors
def add_backend(tracking: Any, arguments: Mapping[str, Any]) -> None:
    """Adds the backend if the `arguments` of `Tracking` name it. The names passed to `Tracking` are used, not those of
    its config; the config is optional."""
    if LOGGER_NAME not in parse_loggers(arguments.get("default_backend")):
        return
    project_name, experiment_name = str(arguments["project_name"]), str(arguments["experiment_name"])
    session = open_verl_session(project_name, experiment_name, arguments.get("config") or {})
    tracking.logger[LOGGER_NAME] = TrackingBackend(session)


def wrap_finish(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: Any, *args: Any, **kwargs: Any) -> None:
        backend = getattr(self, "logger", {}).pop(LOGGER_NAME, None)  # once: `__del__` calls `finish` again
        original(self, *args, **kwargs)
        if backend is not None:
            backend.finish(bind_arguments(original, (self, *args), kwargs).get("exit_code", 0))

    return finish
