"""Steps side by side. Paired prompts get a paired bootstrap; all samples are compared as independent sides.

Depends on: prompts and samples.
Invariant: the same steps give the same numbers. The random seed is fixed.
"""

from rollouts.compare.compare import (
    NONE_CORRECT,
    ComparedMean,
    Comparison,
    ComparisonRow,
    build_empty_comparison,
    compare_steps,
)
from rollouts.compare.distributions import Bin, Distribution
from rollouts.compare.pairing import ComparedPrompt
from rollouts.compare.sides import MARK, PART
from rollouts.compare.targets import TARGET_LETTERS, ComparisonTarget, find_config_differences, load_comparison_targets
from rollouts.compare.unpaired import (
    ALL,
    MIN_SOURCE_PROMPTS,
    OTHER_SOURCES,
    SAME_MIX,
    MeasureRow,
    SourceRow,
    UnpairedComparison,
    compare_all_samples,
)

__all__ = [
    "ALL", "Bin", "ComparedMean", "ComparedPrompt", "Comparison", "ComparisonRow", "ComparisonTarget", "Distribution",
    "MARK", "MIN_SOURCE_PROMPTS", "MeasureRow", "NONE_CORRECT", "OTHER_SOURCES", "PART", "SAME_MIX", "SourceRow",
    "TARGET_LETTERS", "UnpairedComparison", "build_empty_comparison", "compare_all_samples", "compare_steps",
    "find_config_differences", "load_comparison_targets",
]  # fmt: skip
