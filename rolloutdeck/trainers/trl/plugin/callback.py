"""`RolloutdeckCallback`: records metrics and the rows of every train step and eval of a GRPO or RLOO trainer."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.protocol import compute_tokenizer_fingerprint
from rolloutdeck.trainers.common import EXIT_SECONDS, catch_errors, follows_guidance
from rolloutdeck.trainers.trl.plugin import step_files
from rolloutdeck.trainers.trl.plugin.capture import GenerationCapture, list_missing_methods
from rolloutdeck.trainers.trl.plugin.guidance import TrlGuidance
from rolloutdeck.trainers.trl.plugin.processes import count_processes, is_main_process
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration
from rolloutdeck.trainers.trl.plugin.session import Recording, TrlSession

MAX_FRAMES = 20
RECORDERS = "_rolloutdeck_recorders"  # attribute of a trainer
GENERATION_TIME_METRIC = "timing_s/gen"  # of a train step's generations; TRL's log does not have it
PART_SECONDS = 15.0  # wait for the rows of the other processes of the same generation


@dataclass(frozen=True)
class _Recorder:
    recording: Recording
    capture: GenerationCapture
    guidance: TrlGuidance | None


class RolloutdeckCallback(TrainerCallback):  # type: ignore[misc]
    """Pass it to a trainer: `callbacks=[RolloutdeckCallback()]` or `trainer.add_callback(RolloutdeckCallback())`.

    `project` and `name` default to ROLLOUTDECK_PROJECT, ROLLOUTDECK_RUN and the trainer's `run_name`. `keep` is a
    folder for the token ids of each train step, so that steps of a GRPO run can be pinned; "" stores none. Several
    processes need a folder that all of them see. `guidance`: whether the training follows the guidance rules of the
    project; None: as ROLLOUTDECK_GUIDANCE says. `run` is open from the start of the training, None before.
    """

    def __init__(
        self, project: str = "", name: str = "", keep: str | os.PathLike[str] = "", guidance: bool | None = None
    ) -> None:
        self.project, self.name, self.guidance = project, name, guidance
        self.keep = Path(keep).absolute() if keep else None
        self._last: _Recorder | None = None  # of the trainer that called last
        self._recording = Recording()  # of a trainer that is not known
        self._part_seconds = PART_SECONDS

    @property
    def recording(self) -> Recording:
        return self._last.recording if self._last else self._recording

    @property
    def session(self) -> TrlSession | None:
        return self.recording.session

    @property
    def run(self) -> Run | None:
        return self.session.run if self.session else None

    @catch_errors
    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start_capture()

    @catch_errors
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start_capture()
        if self.recording.begin_training(args, self.project, self.name) and self._last:
            self._last.capture.restart()
        if self._last and self._last.guidance:
            self._last.guidance.follow()
        self._remove_parts()

    @catch_errors
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        self._start_capture()
        if logs and state.is_world_process_zero:
            metrics = {build_metric_name(key): value for key, value in logs.items()}
            self.open_session(args).run.log(metrics, step=state.global_step)

    @catch_errors
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Waits for the rows in memory only. An eval may follow; the next training or the end of the process ends the
        run."""
        self._start_capture()
        self.recording.phase = "trained"
        if self.session:
            self.session.flush(EXIT_SECONDS)

    def open_session(self, args: Any) -> TrlSession:
        """Returns the session of the trainer that called last, and opens it at the first call."""
        return self.recording.open_session(args, self.project, self.name)

    def open_trainer_session(self, trainer: Any) -> TrlSession:
        """Returns the session of this trainer, and opens it at the first call."""
        recorder = vars(trainer).get(RECORDERS, {}).get(self)
        recording = recorder.recording if recorder else self.recording
        return recording.open_session(trainer.args, self.project, self.name)

    def _start_capture(self) -> None:
        """Finds the calling trainer, and wraps its methods once. A callback may be passed to several trainers."""
        trainer = find_calling_trainer(self)
        if trainer is None or (self._last and self._last.capture.trainer is trainer):
            return
        recorders: dict[RolloutdeckCallback, _Recorder] = vars(trainer).setdefault(RECORDERS, {})
        if self not in recorders:  # the trainer has them, so that they end with it
            recorders[self] = self._build_recorder(trainer)
        self._last = recorders[self]

    def _build_recorder(self, trainer: Any) -> _Recorder:
        recording = Recording() if self._last else self._recording
        guidance = self._start_guidance(trainer, recording)
        open_session = partial(recording.open_session, trainer.args, self.project, self.name)
        capture = GenerationCapture(
            trainer,
            lambda generation: self._log_generation(generation, trainer, recording),
            lambda: open_session().count_lost(TrlSession.capture_reason),
        )
        if guidance:
            guidance.wrap_rewards()
        note_failed_trainings(trainer, recording)
        return _Recorder(recording, capture, guidance)

    def _remove_parts(self) -> None:
        """Runs before any process writes rows: TRL gathers the rewards of a generation from all processes first."""
        trainer = self._last.capture.trainer if self._last else None
        if self.keep and trainer is not None and count_processes(trainer) > 1 and is_main_process(trainer):
            step_files.remove_parts(self.keep)

    def _start_guidance(self, trainer: Any, recording: Recording) -> TrlGuidance | None:
        if not follows_guidance(self.guidance) or list_missing_methods(trainer):
            return None
        open_run = lambda: recording.open_session(trainer.args, self.project, self.name).run  # noqa: E731
        guidance = TrlGuidance(trainer, open_run)
        guidance.wrap_generation()
        return guidance

    def _log_generation(self, generation: CapturedGeneration, trainer: Any, recording: Recording) -> None:
        session = recording.open_session(trainer.args, self.project, self.name)
        if generation.seconds and generation.split == "train" and int(trainer.accelerator.process_index) == 0:
            session.run.log({GENERATION_TIME_METRIC: generation.seconds}, step=generation.step)
        call = recording.stored[1] if recording.stored[0] == generation.step else 0
        stores = self.keep and generation.split == "train"
        if stores:
            recording.stored = (generation.step, call + 1)
            recording.facts = recording.facts or build_trainer_facts(trainer)
        ranks = int(trainer.accelerator.process_index), int(trainer.accelerator.num_processes)
        token_groups = session.select_token_groups(generation)  # not in the job, which one process may lose
        kept = (call, recording.facts) if stores else None
        job = partial(self._log_rows, session, generation, token_groups, kept, *ranks)
        session.submit(job, len(generation.prompts))

    def _log_rows(
        self,
        session: TrlSession,
        generation: CapturedGeneration,
        token_groups: set[int],
        kept: tuple[int, Mapping[str, Any]] | None,
        rank: int,
        ranks: int,
    ) -> None:
        """`kept`: the index of the generation in its step, and the facts of the step, if it is stored."""
        rows = generation.rows(token_groups)
        session.mark_equal_rows(rows, generation.step, generation.split)
        session.run.log_samples(rows, generation.step, generation.split, columns="native")
        if kept is None or self.keep is None:
            return
        call, facts = kept
        try:
            folder = self._store_step(session, generation, call, rank, ranks)
        except (NotReplayableError, OSError) as error:
            return session.count_lost("steps that could be pinned", details=f": {error}")
        if folder is not None and (call + 1) * len(generation.prompts) * ranks >= facts["rows"]:
            names = [step_files.build_generation_name(index) for index in range(call + 1)]
            artifact = {"files": names, "facts": facts}
            session.run.log_artifact(folder, generation.step, "rollout", artifact, send_now=True)

    def _store_step(
        self, session: TrlSession, generation: CapturedGeneration, call: int, rank: int, ranks: int
    ) -> Path | None:
        """Returns the folder of the step if this process reports it and all rows of the generation are there.

        Raises NotReplayableError, OSError.
        """
        assert self.keep is not None
        if ranks == 1:
            return step_files.write_generation(self.keep, generation, call)
        folder = step_files.write_generation_part(self.keep, generation, call, rank)
        if rank:
            return None
        if step_files.join_generation_parts(folder, generation, call, ranks, self._part_seconds):
            return folder
        self._part_seconds = 1.0
        details = f" to {self.keep} (do all see this folder?)"
        session.count_lost("steps of which not all processes wrote their rows", details=details)
        return None


def note_failed_trainings(trainer: Any, recording: Recording) -> None:
    """Notes a training that raises: transformers does not call `on_train_end` then."""
    original = getattr(trainer, "train", None)
    if not callable(original):
        return

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            if recording.phase == "training":
                recording.phase = "failed"

    trainer.train = train


def build_trainer_facts(trainer: Any) -> dict[str, Any]:
    """Returns the facts of the steps that the trainer generates or replays.

    Must run on the trainer's thread: a fast tokenizer that two threads use at once raises in either of them.
    """
    processing = trainer.processing_class
    vocabulary = getattr(processing, "tokenizer", processing).get_vocab()
    return step_files.build_trl_step_facts(trainer, compute_tokenizer_fingerprint(vocabulary))


def build_metric_name(key: str) -> str:
    """Returns the metric's name in the style of the transformers integrations: `train/loss`, `eval/reward`."""
    return f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"


def find_calling_trainer(callback: Any) -> Any:
    """Returns the trainer that calls the callback, found in the stack.

    transformers passes the model and the data to callbacks, but not the trainer.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        candidate = frame.f_locals.get("self")
        if candidate is not callback and hasattr(candidate, "callback_handler"):
            return candidate
        frame = frame.f_back
    return None
