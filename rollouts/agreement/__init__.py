"""Statistics of team review: agreement of people, their accuracy on gold items, and people compared with the reward.

Depends on: numpy and `rollouts.lib`; pure functions of answers and arrays, without the database.
Invariant: no result holds NaN. A number that is not defined is None with a `Reason`, and the same input gives the same
numbers: no random draws.
"""

from rollouts.agreement.answers import CANNOT_JUDGE, KINDS, ItemAnswer
from rollouts.agreement.comparison import RateChange, compare_checks, compare_estimates, measure_rate
from rollouts.agreement.disagreements import Disagreement, decide_values, find_disagreements
from rollouts.agreement.estimates import MIN_INTERVAL_ITEMS, MIN_LABELLED, Estimate, Reason
from rollouts.agreement.gold import Accuracy, measure_accuracy
from rollouts.agreement.orders import (
    Compared,
    OrderAgreement,
    PairSigns,
    PeopleOrders,
    build_order_signs,
    measure_order_agreement,
)
from rollouts.agreement.questions import Agreement, Confusion, PeoplePair, measure_agreement, split_choices
from rollouts.agreement.rewards import (
    RATES,
    Cell,
    LabelledSamples,
    RewardCheck,
    check_reward,
    check_reward_by,
    check_reward_parts,
)
from rollouts.agreement.spans import Marks, SpanAgreement, SpanPair, measure_span_agreement
from rollouts.agreement.thresholds import (
    ThresholdErrors,
    compute_threshold_above,
    find_best_threshold,
    sweep_thresholds,
)

__all__ = [
    "CANNOT_JUDGE", "KINDS", "MIN_INTERVAL_ITEMS", "MIN_LABELLED", "RATES", "Accuracy", "Agreement", "Cell",
    "Compared", "Confusion", "Disagreement", "Estimate", "ItemAnswer", "LabelledSamples", "Marks",
    "OrderAgreement", "PairSigns", "PeopleOrders", "PeoplePair", "RateChange", "Reason", "RewardCheck",
    "SpanAgreement", "SpanPair", "ThresholdErrors", "build_order_signs", "check_reward", "check_reward_by",
    "check_reward_parts", "compare_checks", "compare_estimates", "compute_threshold_above", "decide_values",
    "find_best_threshold", "find_disagreements", "measure_accuracy", "measure_agreement",
    "measure_order_agreement", "measure_rate", "measure_span_agreement", "split_choices", "sweep_thresholds",
]  # fmt: skip
