"""`RolloutdeckCallback`: metrics, and the rows of every train step and eval, of a GRPO or RLOO trainer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.protocol import compute_tokenizer_fingerprint
from rolloutdeck.trainers.common import EXIT_SECONDS, catch_errors
from rolloutdeck.trainers.trl.plugin import step_files
from rolloutdeck.trainers.trl.plugin.capture import GenerationCapture
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration
from rolloutdeck.trainers.trl.plugin.session import TrlSession, open_trl_session

MAX_FRAMES = 20
GENERATION_TIME_METRIC = "timing_s/gen"  # of a train step's generations, which TRL's log does not tell
PART_SECONDS = 15.0  # for the rows of the other processes, which generated them together with ours


class RolloutdeckCallback(TrainerCallback):  # type: ignore[misc]
    """Given to a trainer, `callbacks=[RolloutdeckCallback()]` or `trainer.add_callback(RolloutdeckCallback())`.

    `project` and `name` default to ROLLOUTDECK_PROJECT, ROLLOUTDECK_RUN and the trainer's `run_name`. `keep` is a
    folder for the token ids of each train step, which makes the steps of a GRPO run ones that can be pinned; "" keeps
    none. Several processes need one that all of them see. `run` is open once training begins, None before.
    """

    def __init__(self, project: str = "", name: str = "", keep: str | os.PathLike[str] = "") -> None:
        self.project, self.name = project, name
        self.keep = Path(keep).absolute() if keep else None
        self.session: TrlSession | None = None
        self.taking: GenerationCapture | None = None
        self._kept: tuple[int, int] = (-1, 0)  # the last step that was kept, and its generations
        self._patience = PART_SECONDS
        self._facts: dict[str, Any] = {}

    @property
    def run(self) -> Run | None:
        return self.session.run if self.session else None

    @catch_errors
    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._join()

    @catch_errors
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._join()

    @catch_errors
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and state.is_world_process_zero:
            self.opened(args).run.log({named(key): value for key, value in logs.items()}, step=state.global_step)

    @catch_errors
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Only what we hold in memory is waited for; an eval may follow, the end of the process ends the run."""
        if self.session:
            self.session.flush(EXIT_SECONDS)

    def opened(self, args: Any) -> TrlSession:
        """The session, which begins here."""
        if self.session is None:
            self.session = open_trl_session(args, self.project, self.name)
        return self.session

    def _join(self) -> None:
        if self.taking is None and (trainer := calling_trainer(self)) is not None:
            self.taking = GenerationCapture(trainer, lambda held: self._give(held, trainer))

    def _give(self, held: CapturedGeneration, trainer: Any) -> None:
        session = self.opened(trainer.args)
        if held.seconds and held.split == "train" and int(trainer.accelerator.process_index) == 0:
            session.run.log({GENERATION_TIME_METRIC: held.seconds}, step=held.step)
        call = self._kept[1] if self._kept[0] == held.step else 0
        keeps = self.keep and held.split == "train"
        if keeps:
            self._kept = (held.step, call + 1)
            self._facts = self._facts or build_trainer_facts(trainer)
        ranks = int(trainer.accelerator.process_index), int(trainer.accelerator.num_processes)
        session.later(lambda: self._write(session, held, call if keeps else None, *ranks), len(held.prompts))

    def _write(self, session: TrlSession, held: CapturedGeneration, call: int | None, rank: int, ranks: int) -> None:
        session.run.log_samples(held.rows(session.selection), held.step, held.split)
        if call is None or self.keep is None:
            return
        try:
            folder = self._keep(session, held, call, rank, ranks)
        except NotReplayableError as error:
            return session.lose(f"steps that could be pinned: {error}")
        if folder is not None and (call + 1) * len(held.prompts) * ranks >= self._facts["rows"]:
            told = {"files": [step_files.build_generation_name(each) for each in range(call + 1)], "facts": self._facts}
            session.run.log_artifact(folder, held.step, "rollout", told, send_now=True)

    def _keep(self, session: TrlSession, held: CapturedGeneration, call: int, rank: int, ranks: int) -> Path | None:
        """The folder of the step where this process is the one that tells of it and all rows of the generation are
        there. Raises NotReplayableError, OSError."""
        assert self.keep is not None
        if ranks == 1:
            return step_files.write_generation(self.keep, held, call)
        folder = step_files.write_generation_part(self.keep, held, call, rank, session.run.attempt)
        if rank:
            return None
        if step_files.join_generation_parts(folder, held, call, ranks, session.run.attempt, self._patience):
            return folder
        self._patience = 1.0
        session.lose(f"steps of which not all processes wrote their rows to {self.keep} (do all see this folder?)")
        return None


def build_trainer_facts(trainer: Any) -> dict[str, Any]:
    """Of the steps that it makes, and of those that it may replay. Not in our thread: a fast tokenizer that two threads
    use at once raises in either of them."""
    processing = trainer.processing_class
    vocabulary = getattr(processing, "tokenizer", processing).get_vocab()
    return step_files.build_trl_step_facts(trainer, compute_tokenizer_fingerprint(vocabulary))


def named(key: str) -> str:
    """As the integrations of transformers name metrics: `train/loss`, `eval/reward`."""
    return f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"


def calling_trainer(callback: Any) -> Any:
    """The trainer that calls back: transformers tells its callbacks the model and the data, and not whose they are."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if found is not callback and hasattr(found, "callback_handler"):
            return found
        frame = frame.f_back
    return None
