"""A dump is indexed: bytes become records, a Parquet body, index rows and step statistics.

Depends on: formats, ingest, live, metrics, projects, samples, storage, and query (for the correctness rule).
Invariant: the visible samples of a step are a pure function of its dumps, ordered by their time of arrival. The order
in which workers index them does not matter.
All that readers see changes in one transaction under the lock of the step's row.
"""

from rollouts.indexing.artifact_dumps import create_artifact_dumps, find_missing_tokenizer_command
from rollouts.indexing.correctness import (
    change_correctness_rule,
    evaluate_due_steps,
    find_projects_to_evaluate,
    load_evaluation_progress,
)
from rollouts.indexing.detokenize import build_tokenizer_command, decode_tokens
from rollouts.indexing.forgotten import FORGOTTEN_MESSAGE, drop_artifact_files
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.indexing.outdated import has_outdated_steps, rebuild_step, update_outdated_steps
from rollouts.indexing.verification import find_body_difference

__all__ = [
    "FORGOTTEN_MESSAGE", "build_tokenizer_command", "change_correctness_rule", "create_artifact_dumps",
    "decode_tokens", "drop_artifact_files", "evaluate_due_steps", "find_body_difference",
    "find_missing_tokenizer_command", "find_projects_to_evaluate", "has_outdated_steps", "index_dump",
    "load_evaluation_progress", "rebuild_step", "reindex_run", "update_outdated_steps",
]  # fmt: skip
