"""Review: the built-in queues and the samples that a user has viewed or marked OK.

Depends on: labels and the query language.
Invariant: viewed marks are private to their user and send no notification.
"""

from rollouts.review.queues import (
    MAX_SEED,
    QUERY_QUEUE,
    QUEUE_NAMES,
    REVIEW_QUEUES,
    QueueRequest,
    ReviewBatch,
    ReviewQueue,
    depends_on_decisions,
    find_newest_step,
    find_queue,
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
    "MAX_SEED", "QUERY_QUEUE", "QUEUE_NAMES", "QueueRequest", "REVIEW_QUEUES", "ReviewBatch", "ReviewQueue",
    "ViewerState", "answer_review", "approve_sample", "depends_on_decisions", "find_newest_step", "find_queue",
    "list_id_prefixes", "load_review_batch", "load_viewed_marks", "load_viewer_state", "mark_viewed",
    "undo_review_action",
]  # fmt: skip
