"""Guidance rules in verl: masks and weights rows of a trained batch, where verl computes its advantages. Rows that a
replay plan masks get advantage 0 here too, also in a training that follows no rules.

verl compares the rows of a group by their uid. If masked rows do not count in the baseline, each has a uid of its own
while verl computes, so that it is alone in its group. This is done only for estimators where it changes no other row: a
batch that verl whitens as a whole would contain the scores of the masked rows, and Pass@k raises if a row is alone. A
dropped row is a masked one: without any token in the loss, it could leave a mini-batch empty, and verl divides by the
number of tokens. Other processes have computed the rewards before, so the action `reward` has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rolloutdeck.protocol import NO_GUIDANCE, GuidanceRules, RowGuidance, format_rule_keys
from rolloutdeck.trainers.common import MatchedRows, catch_errors, follows_guidance, match_rows, once_logger
from rolloutdeck.trainers.verl.plugin import masked_rows, rows
from rolloutdeck.trainers.verl.plugin.session import VerlSession, find_verl_session

UID = "uid"
ROW = "rolloutdeck_row"  # column with the number of each row, while verl computes

# Estimators of verl 0.9 that compare rows within their groups only, and take a row that is alone in its group.
EXCLUDING_ESTIMATORS = frozenset(
    {
        "grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "gpg", "optimal_token_baseline",
        "tir_optimal_token_baseline",
    }
)  # fmt: skip


class GuidedBatch:
    """A batch and what applies to its rows. `data` is verl's, with padded tensors. `session` is None in a training that
    follows no rules; `masked` are the rows that a replay plan masks. Its rows have `keys`."""

    def __init__(
        self,
        session: VerlSession | None,
        trainer: Any,
        rules: GuidanceRules,
        matched: MatchedRows,
        masked: Collection[int] = (),
        keys: Sequence[str] = (),
    ) -> None:
        self.session, self.step, self.rules, self.matched = session, int(trainer.global_steps), rules, matched
        self.masked, self.keys = masked, list(keys)
        self.data: Any = None

    @contextmanager
    def number_rows(self) -> Iterator[None]:
        """Within it, the rows have their numbers, since V0 may train on rows that it draws again from the batch
        (`use_pf_ppo`). V1 writes the advantages back by position."""
        self._add_numbers()
        try:
            yield
        finally:
            if self.data is not None:
                self.data.non_tensor_batch.pop(ROW, None)

    @catch_errors
    def _add_numbers(self) -> None:
        self.data.non_tensor_batch[ROW] = masked_rows.build_row_numbers(len(self.data))

    @contextmanager
    def exclude(self, estimator: Any) -> Iterator[None]:
        """Within it, masked rows do not count in the baseline of their group, if the rules say so and verl's
        `estimator` allows it."""
        original = self._set_own_uids(estimator) if self.rules.baseline == "exclude" else None
        try:
            yield
        finally:
            if original is not None:
                self.data.non_tensor_batch[UID] = original

    @catch_errors
    def _set_own_uids(self, estimator: Any) -> Any:
        """Returns the uids that were replaced, None if none were."""
        original = self.data.non_tensor_batch.get(UID)
        masked = {index for index, row in enumerate(self.matched) if row is not None and row.is_masked}
        masked.update(self.masked)
        if original is None or not masked:
            return None
        name = str(getattr(estimator, "value", estimator))  # verl accepts a text and its enum
        if name not in EXCLUDING_ESTIMATORS:
            message = "With verl's adv_estimator=%s, masked rows always count in the baseline, whatever the rules say."
            once_logger.log_once(f"baseline {name}", message, name)
            return None
        uids = original.copy()
        for index in masked:
            uids[index] = f"{uids[index]}-masked-{index}"
        self.data.non_tensor_batch[UID] = uids
        return original

    @catch_errors
    def apply(self, data: Any) -> None:
        """Changes the advantages and reports the step."""
        self._order_rows(data.non_tensor_batch.pop(ROW, None))
        tokens = data.batch["response_mask"].sum(-1).tolist()
        if self.masked or any(row is not None and row.weight != 1 for row in self.matched):
            advantages = data.batch["advantages"].clone()  # those of GRPO are its returns too
            for index, row in enumerate(self.matched):
                if row is not None:
                    advantages[index] = 0.0 if row.is_masked else advantages[index] * row.weight
            for index in self.masked:
                advantages[index] = 0.0
            data.batch["advantages"] = advantages
        pairs = zip(self.matched, tokens, strict=True)
        affected = [(row.rules, int(count)) for row, count in pairs if row is not None]
        if self.session is not None:
            marks = [None if row is None else format_rule_keys(row.rules) for row in self.matched]
            self.session.marks.add(self.step, self.keys, marks)
            self.session.tally.report(self.session.run, self.step, self.rules, affected)

    def _order_rows(self, numbers: Any) -> None:
        """Puts what applies into the order of a batch that has the rows with these numbers."""
        if numbers is None:
            return
        numbers = [int(number) for number in numbers]
        self.matched = [self.matched[number] for number in numbers]
        self.masked = {index for index, number in enumerate(numbers) if number in self.masked}
        self.keys = [self.keys[number] for number in numbers] if self.keys else []


@catch_errors
def find_guidance(trainer: Any) -> tuple[VerlSession, GuidanceRules] | None:
    """Returns the trainer's session and the last known rules; None if the training does not follow rules."""
    session = find_verl_session(trainer.config) if follows_guidance() else None
    if session is None:
        return None
    rules = session.run.guidance().rules
    if any(rule.action == "reward" for rule in rules.rules):
        message = "The rules with the action `reward` have no effect in verl: other processes compute its rewards."
        once_logger.log_once("reward rules", message)
    return session, rules


@catch_errors
def prepare_padded(trainer: Any, data: Any) -> GuidedBatch | None:
    """Returns what applies to a batch of V0; None if no rule and no plan can apply to it."""
    if data is None:
        return None
    masked = masked_rows.take_padded_rows(data)
    guided = match_padded(trainer, data, masked)  # the plan masks its rows even if the rules fail
    if guided is None:
        guided = build_masked_batch(trainer, masked, len(data))
    if guided is not None:
        guided.data = data
    return guided


@catch_errors
def match_padded(trainer: Any, data: Any, masked: Collection[int]) -> GuidedBatch | None:
    """Returns what the rules select; None without rules."""
    found = find_guidance(trainer) if "prompts" in list(data.batch.keys()) else None
    if found is None:
        return None
    session, rules = found
    with session.measure_blocking():
        prompts, responses = data.batch["prompts"], data.batch["responses"]
        groups = [str(uid) for uid in rows.read_column(data.non_tensor_batch.get(UID), len(data))]
        matched = match_token_rows(trainer, rules, groups, prompts, responses)
    return GuidedBatch(session, trainer, rules, matched, masked, groups)


@catch_errors
def prepare_jagged(trainer: Any, meta: Any) -> GuidedBatch | None:
    """Returns what applies to a batch of V1; None if no rule and no plan applies. The texts are read from the queue
    only if there are rules. Rows that fill up a batch select nothing."""
    masked = masked_rows.find_jagged_rows(meta)
    guided = match_jagged(trainer, meta, masked)
    return build_masked_batch(trainer, masked, len(meta.keys)) if guided is None else guided


@catch_errors
def match_jagged(trainer: Any, meta: Any, masked: Collection[int]) -> GuidedBatch | None:
    """Returns what the rules select; None without rules."""
    found = find_guidance(trainer)
    if found is None:
        return None
    session, rules = found
    matched: MatchedRows = [None] * len(meta.keys)
    if rules.prompts or rules.responses:
        import transfer_queue

        own = [index for index, tag in enumerate(meta.tags) if not tag.get("is_padding")]
        keys, fields = [meta.keys[index] for index in own], ["prompts", "responses"]
        with session.measure_blocking():
            data = transfer_queue.kv_batch_get(keys=keys, partition_id=meta.partition_id, select_fields=fields)
            prompts, responses = (data[name].unbind() for name in fields)
            found_rows = match_token_rows(trainer, rules, keys, prompts, responses)
        for index, row in zip(own, join_sessions(keys, found_rows), strict=True):
            matched[index] = row
    return GuidedBatch(session, trainer, rules, matched, masked, meta.keys)


def build_masked_batch(trainer: Any, masked: Collection[int], rows: int) -> GuidedBatch | None:
    """Returns a batch of which only a replay plan masks rows; None if it masks none."""
    return GuidedBatch(None, trainer, NO_GUIDANCE, [None] * rows, masked) if masked else None


def match_token_rows(
    trainer: Any, rules: GuidanceRules, groups: Sequence[str], prompts: Any, responses: Any
) -> MatchedRows:
    """Decodes texts as `rows.add_texts` does for the recorded rows."""

    def decode(ids: Any) -> str:
        return str(trainer.tokenizer.decode(ids, skip_special_tokens=True))

    if None in groups or "None" in groups:
        groups = [str(index) for index in range(len(groups))]
    found = match_rows(rules, groups, lambda index: decode(prompts[index]), lambda index: decode(responses[index]))
    return [row and drop_reward_rules(row) for row in found]


def drop_reward_rules(row: RowGuidance) -> RowGuidance | None:
    """Returns what has an effect on the row; None if only rules with the action `reward` select it."""
    rules = tuple(key for key in row.rules if key not in row.values)
    return replace(row, rules=rules, values={}) if rules else None


def join_sessions(keys: Sequence[str], matched: MatchedRows) -> MatchedRows:
    """verl gives all outputs of a session the advantage of the last one: what applies to one of them applies to all.
    `keys` are `{uid}_{session}_{output}`."""
    sessions = [key.rpartition("_")[0] for key in keys]
    by_session = {session: row for session, row in zip(sessions, matched, strict=True) if row is not None}
    return [row or by_session.get(session) for session, row in zip(sessions, matched, strict=True)]
