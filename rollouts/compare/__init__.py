"""Steps side by side: prompts are paired, differences get a paired bootstrap over prompts.

Depends on: prompts and samples.
Invariant: the same steps give the same numbers. The random seed is fixed.
"""

from rollouts.compare.compare import NONE_CORRECT, ComparedMean, Comparison, ComparisonRow, compare_steps
from rollouts.compare.pairing import ComparedPrompt
from rollouts.compare.targets import TARGET_LETTERS, ComparisonTarget, find_config_differences, load_comparison_targets

__all__ = [
    "ComparedMean", "ComparedPrompt", "Comparison", "ComparisonRow", "ComparisonTarget", "NONE_CORRECT",
    "TARGET_LETTERS", "compare_steps", "find_config_differences", "load_comparison_targets",
]  # fmt: skip
