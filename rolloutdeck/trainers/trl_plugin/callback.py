"""`RolloutdeckCallback`: metrics, and the rows of every train step and eval, of a GRPO or RLOO trainer."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from rolloutdeck.run import Run
from rolloutdeck.trainers.trl_plugin.rows import Held
from rolloutdeck.trainers.trl_plugin.session import EXIT_SECONDS, Session, opened
from rolloutdeck.trainers.trl_plugin.taking import Taking
from rolloutdeck.trainers.verl_plugin import hooks

MOST_FRAMES = 20


class RolloutdeckCallback(TrainerCallback):  # type: ignore[misc]
    """Given to a trainer, `callbacks=[RolloutdeckCallback()]` or `trainer.add_callback(RolloutdeckCallback())`.

    `project` and `name` default to ROLLOUTDECK_PROJECT, ROLLOUTDECK_RUN and the trainer's `run_name`. `run` is open
    once training begins, None before.
    """

    def __init__(self, project: str = "", name: str = "") -> None:
        self.project, self.name = project, name
        self.session: Session | None = None
        self.taking: Taking | None = None

    @property
    def run(self) -> Run | None:
        return self.session.run if self.session else None

    @hooks.harmless
    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._join(args)

    @hooks.harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._join(args)

    @hooks.harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and state.is_world_process_zero:
            self._opened(args).run.log({named(key): value for key, value in logs.items()}, step=state.global_step)

    @hooks.harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Only what we hold in memory is waited for; an eval may follow, the end of the process ends the run."""
        if self.session:
            self.session.flush(EXIT_SECONDS)

    def _opened(self, args: Any) -> Session:
        if self.session is None:
            self.session = opened(args, self.project, self.name)
        return self.session

    def _join(self, args: Any) -> None:
        if self.taking is None and (trainer := calling_trainer(self)) is not None:
            self.taking = Taking(trainer, lambda held: self._keep(held, args))

    def _keep(self, held: Held, args: Any) -> None:
        session = self._opened(args)
        session.later(lambda: session.run.log_samples(held.rows(session.selection), held.step, held.split))


def named(key: str) -> str:
    """As the integrations of transformers name metrics: `train/loss`, `eval/reward`."""
    return f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"


def calling_trainer(callback: Any) -> Any:
    """The trainer that calls back: transformers tells its callbacks the model and the data, and not whose they are."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if found is not callback and hasattr(found, "callback_handler"):
            return found
        frame = frame.f_back
    return None
