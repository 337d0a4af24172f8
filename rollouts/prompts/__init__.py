"""Prompts over time: the groups of a step, the history of one prompt, the solved/failed heatmap.

Depends on: samples.
Invariant: a trajectory counts once, by its last sample.
"""

from rollouts.prompts.groups import GroupResponse, GroupView, find_group_step, find_highest_scored, load_group_view
from rollouts.prompts.heatmap import HEATMAP_KINDS, HEATMAP_ORDERS, HeatmapRow, PromptHeatmap, load_prompt_heatmap
from rollouts.prompts.history import (
    PromptRunHistory,
    PromptStepStats,
    find_best_answer,
    find_comparison_step,
    find_prompt_samples,
    find_run_history,
    is_solved,
    load_prompt_answers,
    load_prompt_history,
)

__all__ = [
    "GroupResponse", "GroupView", "HEATMAP_KINDS", "HEATMAP_ORDERS", "HeatmapRow", "PromptHeatmap",
    "PromptRunHistory", "PromptStepStats", "find_best_answer", "find_comparison_step", "find_group_step",
    "find_highest_scored", "find_prompt_samples", "find_run_history", "is_solved", "load_group_view",
    "load_prompt_answers", "load_prompt_heatmap", "load_prompt_history",
]  # fmt: skip
