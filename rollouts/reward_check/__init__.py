"""The reward compared with people: labels of a run and scores, at a threshold, weighted to all samples.

Depends on: labels, queues and the statistics of agreement.
Invariant: samples that were chosen and not drawn at random are in the lists, and in no estimate.
"""

from rollouts.reward_check.check import RewardReport, build_report, compare_reports
from rollouts.reward_check.labelled import (
    LabelledRun,
    RewardQuestion,
    list_good_values,
    list_reward_questions,
    load_labelled_run,
    parse_reward_question,
)

__all__ = [
    "LabelledRun", "RewardQuestion", "RewardReport", "build_report", "compare_reports", "list_good_values",
    "list_reward_questions", "load_labelled_run", "parse_reward_question",
]  # fmt: skip
