"""Files of evaluation harnesses that evaluate a checkpoint.

Depends on: `rolloutdeck.trainer_api` and the names of steps in `rolloutdeck.trainers.tables`.
Invariant: the step is that of the checkpoint if a folder's name states it: `checkpoint-400`, `global_step_40`.

Source: lm-evaluation-harness with `--log_samples`, `samples_{task}_{time}.jsonl`
(lm_eval/loggers/evaluation_tracker.py:344, 4e7e0d47); lighteval with `--save-details`, `details_{task}_{time}.parquet`
(src/lighteval/logging/evaluation_tracker.py:359, 3fd15266); inspect_ai, `{time}_{task}_{id}.eval` or `.json`.
"""

from __future__ import annotations

from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split, find_step_in_parents
from rolloutdeck.trainers.tables import parse_step_name

__all__ = ["FILES"]


def _parse_step(path: PurePath) -> int | None:
    return find_step_in_parents(path, parse_step_name)


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("doc_id") and head.has_key("filtered_resps")


def _is_details(name: str, head: FileHead) -> bool:
    return b"model_response" in head.start


def _is_log(name: str, head: FileHead) -> bool:
    return name.endswith(".eval") or (b'"status"' in head.start and b'"eval"' in head.start and b'"task"' in head.start)


KINDS = tuple(
    FileKind(format, description, pattern, matches, step=_parse_step, stepless=True, split=lambda path: "eval")
    for format, description, pattern, matches in (
        ("lm-eval", "samples of an evaluation", "samples_*.jsonl", _is_samples),
        ("lighteval", "details of an evaluation", "details_*.parquet", _is_details),
        ("inspect", "a log of an evaluation", "*.eval", _is_log),
        ("inspect", "a log of an evaluation", "*.json", _is_log),
    )
)

FILES = TrainerFiles(name="evaluations", kinds=KINDS, guess_split=assume_split("eval", "it is an evaluation"))
