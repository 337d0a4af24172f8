"""Dump formats, one module each: converts the bytes of a dump to records, metric points and problems.

Depends on: samples, storage, the readers of `rolloutdeck.safe_pickle` and facts of `rolloutdeck.trainers.slime`.
Invariant: a format streams and never unpickles. CONTRIBUTING.md says how to add one.
"""

from rollouts.errors import UnreadableDumpError
from rollouts.formats import (
    art,
    cure,
    flat_metrics,
    native,
    nemo_gym,
    nemo_rl,
    rllm,
    roll,
    skyrl_batch,
    slime,
    table,
    trainer_state,
    trl_completions,
    verifiers,
    verl,
)
from rollouts.formats.base import HEAD_BYTES, DumpContext, Format
from rollouts.formats.evals import inspect_log, lighteval, lm_eval, openai_batch
from rollouts.formats.native import SPLIT_EXTRAS_KEY
from rollouts.formats.readers import EMPTY_FILE
from rollouts.formats.table import TOKEN_ONLY_TABLE_FORMATS, find_table_format
from rollouts.formats.tinker import FORMATS as TINKER_FORMATS
from rollouts.formats.tinker import rollout_summaries

__all__ = [
    "ADDITIVE_FORMATS", "SUMMARY_FORMATS", "FORMATS", "HEAD_BYTES", "FORMAT_NAMES", "METRIC_FORMATS",
    "SPLIT_EXTRAS_KEY", "TOKEN_ONLY_FORMATS", "Format", "DumpContext", "TOKEN_ONLY_TABLE_FORMATS",
    "find_artifact_format", "find_table_format", "select_format",
]  # fmt: skip

FORMATS: tuple[Format, ...] = (
    verl.metrics, trainer_state, *cure.samples.FORMATS, cure.results, *TINKER_FORMATS, nemo_rl, nemo_gym, verifiers,
    rllm, lm_eval, inspect_log, openai_batch, roll.jsonl, verl.jsonl, native, trl_completions, lighteval, slime.train,
    slime.rollout, roll.mock, skyrl_batch, *verl.batch.FORMATS, art, flat_metrics, *table.FORMATS,
)  # fmt: skip
FORMAT_NAMES = frozenset(form.name for form in FORMATS)
# The trainer overwrites the file with other rows of the same step, so all versions of the file count.
ADDITIVE_FORMATS = frozenset((trl_completions.name, roll.jsonl.name))
# Formats with metrics and no samples.
METRIC_FORMATS = frozenset((verl.metrics.name, flat_metrics.name, trainer_state.name, cure.results.name))
# Formats without text. Their rows are merged into the samples of other dumps.
TOKEN_ONLY_FORMATS = frozenset(
    (slime.train.name, roll.mock.name, skyrl_batch.name, rollout_summaries.name, *TOKEN_ONLY_TABLE_FORMATS,
     *(form.name for form in verl.batch.FORMATS))
)  # fmt: skip
# Those of them that list all samples of a step with their trajectories, but no tokens: a row without text elsewhere is
# another sample.
SUMMARY_FORMATS = frozenset((rollout_summaries.name,))


def find_artifact_format(filename: str) -> str:
    """Returns the format of an artifact file that contains rows, by its name; empty for every other file."""
    return next((form.name for form in verl.batch.FORMATS if form.filename == filename), "")


def select_format(filename: str, head: bytes, format_name: str = "") -> Format:
    """Returns the requested format, else the first that accepts the head. Raises UnreadableDumpError if none does."""
    names = ", ".join(form.name for form in FORMATS)
    if format_name:
        for form in FORMATS:
            if form.name == format_name:
                return form
        raise UnreadableDumpError(f"`{format_name}` is not a format this server reads; it reads {names}.")
    if not head.strip():
        raise UnreadableDumpError(EMPTY_FILE)
    for form in FORMATS:
        if form.sniff(filename, head):
            return form
    raise UnreadableDumpError(
        f"{filename or 'The dump'} is in no format this server reads ({names}): its first line is neither a generation "
        "(`input` and `output`, or `prompt` and `response`) nor metrics (`step` and `data`)."
    )
