"""Review queues: drawn from queries, given to people item by item, with progress and decisions.

Depends on: labels, the query language, live, projects and the statistics of agreement.
Invariant: an item never gets more answers than it has slots, and two people never hold the same slot.
"""

from rollouts.queues.agreement import (
    QuestionAgreement,
    QueueAgreement,
    list_given,
    load_answer_of,
    measure_queue_agreement,
)
from rollouts.queues.answers import ItemAnswers, decide_answer, load_answers, withdraw_decision
from rollouts.queues.content import (
    ItemContent,
    ResponseContent,
    load_entered_content,
    load_item_content,
    resolve_order,
)
from rollouts.queues.create import QueuePreview, create_queue, load_queue_rubric, preview_queue
from rollouts.queues.group_answers import GroupAnswers, JudgedPair, load_group_answers
from rollouts.queues.groups import (
    ORDER_KEY,
    OUTCOMES,
    PAIRS_KEY,
    check_group_version,
    format_pair,
    list_group_samples,
)
from rollouts.queues.growth import (
    count_steps_without_room,
    extend_growing_queues,
    extend_queue,
    has_growing_queues,
)
from rollouts.queues.manage import close_queue, reopen_queue, update_queue
from rollouts.queues.orders import save_order_draft, store_order
from rollouts.queues.pairs import save_pairs_draft, store_pairs
from rollouts.queues.progress import (
    OwnProgress,
    PersonProgress,
    QueueProgress,
    forecast_end,
    has_items_to_answer,
    list_open_queues,
    load_own_progress,
    load_people_progress,
    load_progress,
)
from rollouts.queues.settings import MAX_ITEMS, MAX_PAIRS, REVIEW_ROLES
from rollouts.queues.slots import (
    QueueClosedError,
    SlotTakenError,
    claim_item,
    claim_next,
    find_skipped,
    list_questions,
    load_entered_answers,
    renew_slot,
    reoffer_skipped_items,
    save_draft,
    skip_item,
    submit_answers,
    undo_submission,
)

__all__ = [
    "GroupAnswers", "ItemAnswers", "ItemContent", "JudgedPair", "MAX_ITEMS", "MAX_PAIRS", "ORDER_KEY", "OUTCOMES",
    "OwnProgress", "PAIRS_KEY", "PersonProgress", "QuestionAgreement", "QueueAgreement", "QueueClosedError",
    "QueuePreview", "QueueProgress", "REVIEW_ROLES", "ResponseContent", "SlotTakenError", "check_group_version",
    "claim_item", "claim_next", "close_queue", "count_steps_without_room", "create_queue", "decide_answer",
    "extend_growing_queues", "extend_queue", "find_skipped", "forecast_end", "format_pair", "has_growing_queues",
    "has_items_to_answer", "list_given", "list_group_samples", "list_open_queues", "list_questions", "load_answer_of",
    "load_answers", "load_entered_answers", "load_entered_content", "load_group_answers", "load_item_content",
    "load_own_progress", "load_people_progress", "load_progress", "load_queue_rubric", "measure_queue_agreement",
    "preview_queue", "renew_slot", "reoffer_skipped_items", "reopen_queue", "resolve_order", "save_draft",
    "save_order_draft", "save_pairs_draft", "skip_item", "store_order", "store_pairs", "submit_answers",
    "undo_submission", "update_queue", "withdraw_decision",
]  # fmt: skip
