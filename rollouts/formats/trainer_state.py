"""The `log_history` of `trainer_state.json`, which trainers that build on transformers write: TRL, ms-swift, axolotl.

It has an object per log, with `step` and the values as the callbacks got them: `loss`, `reward`, `eval_loss`. The
names become those of the trackers: `train/loss`, `eval/loss`. Each checkpoint has the file with all logs since the
start of the training, so points that occur again are equal. Source: `TrainerState.save_to_json` in
transformers/trainer_callback.py and `Trainer.log` in transformers/trainer.py, transformers 5.5.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.flat_metrics import build_point
from rollouts.formats.readers import BROKEN_UTF8, read_json_document
from rollouts.samples import LineProblem, MetricPoint, SkippedRow, describe_json_type

name = "trainer-state"

FILE = re.compile(r"(?:\A|/)trainer_state\.json\Z")
HEAD = re.compile(rb'"log_history"\s*:\s*\[')


def sniff(filename: str, head: bytes) -> bool:
    return bool(FILE.search(filename)) and bool(HEAD.search(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[MetricPoint | LineProblem | SkippedRow]:
    """Yields a point per log. Problems have the number of the log, from 1. Raises UnreadableDumpError."""
    state, is_utf8 = read_json_document(stream)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise UnreadableDumpError("It is not the state of a trainer: it has no list `log_history`.")
    if not is_utf8:
        yield LineProblem(1, BROKEN_UTF8, repaired=True)
    if not history:
        yield SkippedRow("a state without a log")
    for number, row in enumerate(history, 1):
        if isinstance(row, dict):
            yield build_point(number, row, context, is_transformers_log=True)
        else:
            yield LineProblem(number, f"is {describe_json_type(row)} where a log is expected")
