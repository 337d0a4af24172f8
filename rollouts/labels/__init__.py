"""Labels: answers of people, functions and models to the questions of a project's rubric, with history and undo.

Depends on: live and projects.
Invariant: a label is replaced or withdrawn, never deleted; its earlier states stay, and it follows the sample id.
"""

from rollouts.labels.answers import Answer, find_question, format_answer
from rollouts.labels.load import can_withdraw_label, find_blind_samples, load_labels
from rollouts.labels.merge import DatedAnswer, Merged, MergeOutcome, merge_labels
from rollouts.labels.question_parsing import parse_questions
from rollouts.labels.questions import (
    BETTER_QUESTION,
    BUILT_IN_QUESTIONS,
    CORRECTION_QUESTION,
    DEFAULT_RUBRIC,
    EQUAL_QUESTION,
    FLAG_QUESTION,
    KINDS,
    PAIR_QUESTIONS,
    RANK_QUESTION,
    REVIEW_QUESTION,
    Option,
    Question,
    RubricVersion,
    dump_questions,
)
from rollouts.labels.rubrics import list_rubrics, load_rubric, read_rubric, save_rubric
from rollouts.labels.states import remove_labels_from_action
from rollouts.labels.store import MAX_SAMPLES, UNDO_WINDOW, store_labels, withdraw_label
from rollouts.labels.undo import UndoResult, load_history, serialize_change, undo_label_action

__all__ = [
    "BETTER_QUESTION", "BUILT_IN_QUESTIONS", "CORRECTION_QUESTION", "DEFAULT_RUBRIC", "EQUAL_QUESTION",
    "FLAG_QUESTION", "KINDS", "MAX_SAMPLES", "PAIR_QUESTIONS", "RANK_QUESTION", "REVIEW_QUESTION", "UNDO_WINDOW",
    "Answer", "DatedAnswer", "MergeOutcome", "Merged", "Option", "Question", "RubricVersion", "UndoResult",
    "can_withdraw_label", "dump_questions", "find_blind_samples", "find_question", "format_answer",
    "list_rubrics", "load_history", "load_labels", "load_rubric", "merge_labels", "parse_questions",
    "read_rubric", "remove_labels_from_action", "save_rubric", "serialize_change", "store_labels",
    "undo_label_action", "withdraw_label",
]  # fmt: skip
