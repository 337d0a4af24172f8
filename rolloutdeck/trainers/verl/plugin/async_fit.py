"""The training loops of one step off and fully async: a run whose loop raises has failed.

They run in actors of Ray. Such a process does not end when its loop raises, and ends later as if nothing had happened.

Ray sends the classes of fully async's actors to their nodes by value, with these wrappers. So a wrapper imports what it
needs when it runs: on a node without rolloutdeck verl works as without us.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import rollout_skip
from rolloutdeck.trainers.verl.plugin.replay import VerlReplay
from rolloutdeck.trainers.verl.plugin.session import find_verl_session
from rolloutdeck.trainers.verl.plugin.trainer_v0 import finish_failed_run

Fit = Callable[..., Awaitable[Any]]


def patch(module: ModuleType) -> None:
    """Patches the trainer of one step off or of fully async."""
    trainer = getattr(module, "OneStepOffRayTrainer", None) or module.FullyAsyncTrainer
    wrap_method(find_class(trainer), "fit", wrap_trainer_fit)


def patch_rollouter(module: ModuleType) -> None:
    wrap_method(find_class(module.FullyAsyncRollouter), "fit", wrap_rollouter_fit)


def find_class(actor: Any) -> Any:
    """Returns the class of the instances: Ray puts another object in the place of an actor's class."""
    metadata = getattr(actor, "__ray_metadata__", None)
    return actor if metadata is None else metadata.modified_class


def wrap_trainer_fit(original: Fit) -> Fit:
    async def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(ImportError):
            from rolloutdeck.trainers.verl.plugin import guidance

            guidance.find_guidance(self)  # its thread asks for the rules while the first batch is generated
        try:
            return await original(self, *args, **kwargs)
        except BaseException:
            with suppress(ImportError):
                from rolloutdeck.trainers.verl.plugin.trainer_v0 import finish_failed_run

                finish_failed_run(self)
            raise

    return fit


def wrap_rollouter_fit(original: Fit) -> Fit:
    async def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            from rolloutdeck.trainers.verl.plugin.async_fit import run_rollouter
        except ImportError:
            return await original(self, *args, **kwargs)
        return await run_rollouter(self, original, *args, **kwargs)

    return fit


async def run_rollouter(rollouter: Any, fit: Fit, *args: Any, **kwargs: Any) -> Any:
    """Runs the rollouter's loop. verl's hides all errors. If the replay plan stops the run, the error is raised here,
    where it ends the training."""
    replay = prepare_rollouter(rollouter)
    result = await fit(rollouter, *args, **kwargs)
    if replay is not None and replay.stopped is not None:
        finish_failed_run(rollouter)
        raise replay.stopped
    return result


@catch_errors
def prepare_rollouter(rollouter: Any) -> VerlReplay | None:
    """Registers the tokenizer if verl dumps prompts: only this process knows. Returns the replay."""
    session = find_verl_session(rollouter.config)
    if session is not None and session.writes_dumps:
        session.tokenizer(rollouter.tokenizer)
    replay = rollout_skip.get_replay(rollouter.config)
    if replay is not None:
        hold_end(rollouter.message_queue_client, replay)
    return replay


def hold_end(queue: Any, replay: VerlReplay) -> None:
    """After a stop, keeps the last message of the queue, None, from the trainer: it would end there as if all prompts
    were answered, before verl cancels it because of our error."""
    put_sample = queue.put_sample

    async def put_unless_stopped(*args: Any, **kwargs: Any) -> Any:
        is_end = any(value is None for value in (*args, *kwargs.values()))
        return True if is_end and replay.stopped is not None else await put_sample(*args, **kwargs)

    queue.put_sample = put_unless_stopped
