"""Re-scores: another reward function, or a judge, on stored samples, before a run is spent on it.

Depends on: live, projects, query and samples. The functions run on the user's machine, never here.
Invariant: a re-score belongs to one version of its function. It never changes the trainer's score, and its name is
never that of a column of the trainer. A result that is stored survives a re-index.
"""

from rollouts.rescores.comparison import RescoreComparison, RescoredSource, compare_rescore
from rollouts.rescores.pending import PendingSamples, find_cursor_step, find_pending_samples
from rollouts.rescores.rescores import create_rescore, delete_rescore
from rollouts.rescores.results import MAX_RESULTS, list_results, load_sample_results, parse_results, save_results

__all__ = [
    "MAX_RESULTS", "PendingSamples", "RescoreComparison", "RescoredSource", "compare_rescore", "create_rescore",
    "delete_rescore", "find_cursor_step", "find_pending_samples", "list_results", "load_sample_results",
    "parse_results", "save_results",
]  # fmt: skip
