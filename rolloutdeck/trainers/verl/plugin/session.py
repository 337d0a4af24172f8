"""The run of a verl process, found by verl's configuration, and its tokenizer, by which the server decodes dumps."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import GuidanceTally, TrainerSession, copy_tokenizer, get_session, open_trainer_run
from rolloutdeck.trainers.verl.plugin.rule_marks import RuleMarks

LOGGER_NAME = "rolloutdeck"  # in `trainer.logger`
TOKENIZER_FILE = "tokenizer.json"


class VerlSession(TrainerSession):
    """A run in one process: the selection of token fields, and a thread that builds rows from batches.

    `writes_dumps`: verl dumps steps that can be pinned.
    """

    thread_name = "rolloutdeck-verl"
    log_name = "verl plug-in"
    overload_reason = "steps whose text could not be decoded in time"

    def __init__(self, run: Run, config: Any) -> None:
        super().__init__(run)
        self.is_fully_async = is_fully_async(config)
        self.writes_dumps = False
        self._blocked_seconds = 0.0  # for which the training waited for Rolloutdeck since the last log
        self._last_counts: tuple[int, int, Mapping[str, int]] = (-1, 0, {})  # (step, generated, excluded)
        self.tally = GuidanceTally()
        self.marks = RuleMarks()
        self._tokenizers: dict[int, Any] = {}

    def tokenizer(self, original: Any) -> Any:
        """Returns the copy for the session's thread."""
        tokenizer = self._tokenizers.get(id(original))
        if tokenizer is None:
            tokenizer = self._tokenizers[id(original)] = copy_tokenizer(original)
            if self.writes_dumps:
                self.submit(lambda: log_tokenizer(self.run, tokenizer), reason="tokenizers that could not be recorded")
        return tokenizer

    @contextmanager
    def measure_blocking(self) -> Iterator[None]:
        """Adds the duration of the block to the seconds for which the training waited for Rolloutdeck."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._blocked_seconds += time.perf_counter() - start

    def log_counts(self, step: int, generated: int, excluded: Mapping[str, int]) -> None:
        """Logs how many generations of a trained step were generated and trained on, with the reasons for the others.

        In fully async too, where verl's own metrics have another axis: the counts are of the batch, and batches
        trained at the same step are added up.
        """
        last_step, last_generated, last_excluded = self._last_counts
        if last_step == step:
            generated, excluded = generated + last_generated, Counter(excluded) + Counter(last_excluded)
        self._last_counts = (step, generated, excluded)
        seconds, self._blocked_seconds = self._blocked_seconds, 0.0
        counts = {"generated": generated, "trained": generated - sum(excluded.values())}
        counts |= {f"left_out/{reason}": count for reason, count in excluded.items() if count}
        metrics = {f"rolloutdeck/{name}": count for name, count in counts.items()}
        self.run.log({**metrics, "timing_s/rolloutdeck": seconds}, step=step)

    def finish(self, outcome: str) -> None:
        self.end_jobs()
        self.run.finish(outcome)


def find_verl_session(config: Any) -> VerlSession | None:
    """Returns the session of a trainer's `config` (OmegaConf or dict); None if its `trainer.logger` does not name
    `rolloutdeck`."""
    trainer = config["trainer"]
    if LOGGER_NAME not in parse_loggers(trainer.get("logger")):
        return None
    return open_verl_session(str(trainer.get("project_name") or ""), str(trainer.get("experiment_name") or ""), config)


def open_verl_session(project: str, experiment: str, config: Any) -> VerlSession:
    """Returns the session with these names, and opens it at the first call."""

    def open_session() -> VerlSession:
        trainer = config.get("trainer", {})
        folder = str(trainer.get("default_local_dir") or "")
        resume = "allow" if trainer.get("resume_mode", "disable") != "disable" else ""
        run = open_trainer_run("verl", project, experiment, folder, config=convert_config(config), resume=resume)
        run.ends_here = False  # unless this process has verl's `Tracking`: a rollouter ends before its trainer
        return VerlSession(run, config)

    return get_session((project, experiment), open_session)


def parse_loggers(setting: Any) -> list[str]:
    return [setting] if isinstance(setting, str) else [str(name) for name in setting or ()]


def convert_config(config: Any) -> Any:
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def is_fully_async(config: Any) -> bool:
    return "async_training" in config


def log_tokenizer(run: Run, tokenizer: Any) -> None:
    """Registers the tokenizer's file and sends it at once; a slow tokenizer has no file."""
    from rolloutdeck.protocol import compute_tokenizer_fingerprint, load_vocabulary

    path = find_tokenizer_file(tokenizer)
    if path is not None:
        facts = {"tokenizer": compute_tokenizer_fingerprint(load_vocabulary(path))}
        run.log_artifact(path, 0, "tokenizer", {"files": [TOKENIZER_FILE], "facts": facts}, send_now=True)


def find_tokenizer_file(tokenizer: Any) -> Path | None:
    """Returns the model's own file if it is on this machine, else a file written from a fast tokenizer."""
    name = str(getattr(tokenizer, "name_or_path", "") or "")
    model_file = Path(name) / TOKENIZER_FILE
    if name and model_file.is_file():  # without a name it would be a file of the working directory
        return model_file.absolute()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    folder = tempfile.mkdtemp(prefix="rolloutdeck-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, TOKENIZER_FILE)
    path.write_text(backend.to_str(), "utf-8")
    return path
