"""The reward compared with people: labels of a run and scores, at a threshold, weighted to all samples. Before and
after: how rates of the reward, of labels and of text properties differ between two runs or ranges of steps.

Depends on: labels, metrics, queues and the statistics of agreement.
Invariant: samples that were chosen and not drawn at random are in the lists, and in no estimate.
"""

from rollouts.reward_check.change import Rate, build_second_report, compare_rates, list_sides, snapshot_rates
from rollouts.reward_check.check import RewardReport, build_report, compare_reports
from rollouts.reward_check.labelled import (
    LabelledRun,
    RewardQuestion,
    decide_answers,
    format_answer,
    list_good_values,
    list_reward_questions,
    load_empty_answers,
    load_labelled_run,
    parse_reward_question,
)
from rollouts.reward_check.selection import RewardSelection, find_field_errors, format_steps, parse_selection

__all__ = [
    "LabelledRun", "Rate", "RewardQuestion", "RewardReport", "RewardSelection", "build_report",
    "build_second_report", "compare_rates", "compare_reports", "decide_answers", "find_field_errors",
    "format_answer", "format_steps", "list_good_values", "list_reward_questions", "list_sides",
    "load_empty_answers", "load_labelled_run", "parse_reward_question", "parse_selection", "snapshot_rates",
]  # fmt: skip
