"""Review: the quick lists and the samples that a user has viewed or marked OK.

Depends on: labels and the query language.
Invariant: viewed marks are private to their user and send no notification.
"""

from rollouts.review.quick_lists import (
    MAX_SEED,
    QUERY_LIST,
    QUICK_LIST_NAMES,
    QUICK_LISTS,
    BatchRequest,
    QuickList,
    ReviewBatch,
    depends_on_decisions,
    find_newest_step,
    find_quick_list,
    list_id_prefixes,
    load_review_batch,
)
from rollouts.review.viewed import (
    ViewerState,
    answer_review,
    approve_sample,
    load_viewed_marks,
    load_viewer_state,
    mark_viewed,
    undo_review_action,
)

__all__ = [
    "BatchRequest", "MAX_SEED", "QUERY_LIST", "QUICK_LISTS", "QUICK_LIST_NAMES", "QuickList", "ReviewBatch",
    "ViewerState", "answer_review", "approve_sample", "depends_on_decisions", "find_newest_step", "find_quick_list",
    "list_id_prefixes", "load_review_batch", "load_viewed_marks", "load_viewer_state", "mark_viewed",
    "undo_review_action",
]  # fmt: skip
