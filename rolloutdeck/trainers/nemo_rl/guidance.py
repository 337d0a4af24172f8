"""Guidance rules in NeMo-RL's GRPO: masks, drops and weights rows where the advantages are computed.

The driver calls `compute_advantage` of an estimator with the batch; it is wrapped on all estimators. Estimators compare
rows by the ids of their prompts, so if masked rows do not count in the baseline, each gets ids of its own. A dropped
row also has the `loss_multiplier` 0, like a row that an environment flags with `mask_sample`. Environments in other
processes have computed the rewards before, so the action `reward` has no effect.

Source: NVIDIA-NeMo/RL 7ea279a, `grpo_train` and `async_grpo_train` in nemo_rl/algorithms/grpo.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.protocol import GuidanceRules, format_rule_keys
from rolloutdeck.trainers.common import (
    GuidanceTally,
    MatchedRows,
    catch_errors,
    match_rows,
    once_logger,
    wrap_method,
)

ESTIMATORS, GRPO = "nemo_rl.algorithms.advantage_estimator", "nemo_rl.algorithms.grpo"
COMPUTE_METHOD = "compute_advantage"
FILTER_FUNCTION, PENALTY_FUNCTION = "_apply_mask_sample_filter", "_apply_configured_message_level_advantage_penalties"
MESSAGES, LOSS_FACTOR = "message_log", "loss_multiplier"

Function = Callable[..., Any]
SplitContent = Callable[[Any], Mapping[str, Any]]  # returns prompt and response, as rows have them


class NemoGuidance:
    """What the rules do in the trainings of this process. `split` makes prompt and response as recorded rows have them.

    A step is matched once, when its rows are filtered or its advantages are computed, and reported when it is logged.
    """

    current: NemoGuidance | None = None  # the wrapped functions use it

    def __init__(self, run: Run, split: SplitContent) -> None:
        self.run, self.split = run, split
        self.rules: GuidanceRules = run.guidance().rules
        self.matched: MatchedRows = []
        self._messages: Any = None  # the matched batch
        self._is_pending = False
        self._tally = GuidanceTally()

    @catch_errors
    def match(self, batch: Mapping[str, Any]) -> MatchedRows:
        """Returns what applies to the rows of a batch; [] if it has no messages."""
        if MESSAGES not in batch:
            once_logger.log_once("nemo guidance", "The guidance rules have no effect: this training has no messages.")
            return []
        if self._messages is not batch[MESSAGES]:
            self.matched, self.rules = [], self.run.guidance().rules
            rows = [self.split([message["content"] for message in log]) for log in batch[MESSAGES]]
            prompts, responses = ([row[key] for row in rows] for key in ("prompt", "response"))
            self.matched = match_rows(self.rules, prompts, prompts.__getitem__, responses.__getitem__)
            self._messages = batch[MESSAGES]
            if any(rule.action == "reward" for rule in self.rules.rules):
                message = "Rules with the action `reward` have no effect in NeMo-RL: other processes compute rewards."
                once_logger.log_once("reward rules", message)
        return self.matched

    @catch_errors
    def drop(self, batch: Any) -> None:
        """Takes dropped rows out of the loss, unless no row would be left."""
        matched = self.match(batch) or []
        dropped = [index for index, row in enumerate(matched) if row is not None and row.dropped]
        if dropped:
            factors = batch[LOSS_FACTOR].clone()
            factors[dropped] = 0
            if factors.any():
                batch[LOSS_FACTOR] = factors

    @catch_errors
    def separate(self, matched: MatchedRows, prompt_ids: Any) -> Any:
        """Returns prompt ids that set masked rows apart from their group; None if they count in its baseline."""
        masked = [index for index, row in enumerate(matched) if row is not None and row.is_masked]
        if self.rules.baseline != "exclude" or not masked:
            return None
        ids = prompt_ids.clone()
        for index in masked:
            ids[index] = -1 - index  # no token has a negative id
        return ids

    @catch_errors
    def apply(self, matched: MatchedRows, advantages: Any) -> Any:
        """Returns the changed advantages, None if no row changes."""
        self._is_pending = True
        if all(row is None or row.weight == 1 for row in matched):
            return None
        changed = advantages.clone()  # the rows of GRPO are views of one number
        for index, row in enumerate(matched):
            if row is not None:
                changed[index] = 0.0 if row.is_masked else changed[index] * row.weight
        return changed

    @catch_errors
    def mask_again(self, train_data: Any, messages: Any) -> None:
        """Sets the advantages of masked rows to 0 once more: before this, NeMo-RL gave some messages a fixed negative
        advantage."""
        masked = [index for index, row in enumerate(self.matched) if row is not None and row.is_masked]
        if masked and messages is self._messages:
            advantages = train_data["advantages"].clone()
            advantages[masked] = 0.0
            train_data["advantages"] = advantages

    @catch_errors
    def report(self, step: int) -> None:
        """Reports the step whose advantages were computed, once."""
        if self._is_pending:
            messages, self._messages, self._is_pending = self._messages, None, False
            tokens = [sum(int(message["token_loss_mask"].sum()) for message in log) for log in messages]
            rows = zip(self.matched, tokens, strict=True)
            affected = [(row.rules, count) for row, count in rows if row is not None]
            self._tally.report(self.run, step, self.rules, affected)

    def list_marks(self, rows: int) -> list[str | None]:
        """Returns for each row of the logged step the keys of its rules; [] if the step has other rows."""
        if len(self.matched) != rows:
            return []
        return [None if row is None else format_rule_keys(row.rules) for row in self.matched]


@catch_errors
def follow_rules(run: Run, split: SplitContent) -> NemoGuidance:
    """Wraps NeMo-RL's functions; from now on they use the rules of this run's project."""
    NemoGuidance.current = NemoGuidance(run, split)
    estimators = importlib.import_module(ESTIMATORS)
    for owner in vars(estimators).values():
        if isinstance(owner, type) and COMPUTE_METHOD in vars(owner):
            wrap_method(owner, COMPUTE_METHOD, _guide_estimator)
    grpo = importlib.import_module(GRPO)
    wrap_method(grpo, FILTER_FUNCTION, _guide_filter)
    wrap_method(grpo, PENALTY_FUNCTION, _guide_penalties)
    return NemoGuidance.current


def _guide_estimator(original: Function) -> Function:
    def compute_advantage(self: Any, *args: Any, **kwargs: Any) -> Any:
        guidance = NemoGuidance.current
        matched = guidance.match(kwargs.get("repeated_batch") or {}) if guidance else None
        if guidance is None or not matched:
            return original(self, *args, **kwargs)
        prompt_ids = guidance.separate(matched, kwargs.get("prompt_ids"))
        own = kwargs if prompt_ids is None else {**kwargs, "prompt_ids": prompt_ids}
        advantages = original(self, *args, **own)
        changed = guidance.apply(matched, advantages)
        return advantages if changed is None else changed

    return compute_advantage


def _guide_filter(original: Function) -> Function:
    def apply_filter(repeated_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(repeated_batch, *args, **kwargs)
        if NemoGuidance.current:
            NemoGuidance.current.drop(repeated_batch)
        return result

    return apply_filter


def _guide_penalties(original: Function) -> Function:
    def apply_penalties(train_data: Any, message_logs: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(train_data, message_logs, *args, **kwargs)
        if NemoGuidance.current:
            NemoGuidance.current.mask_again(train_data, message_logs)
        return result

    return apply_penalties
