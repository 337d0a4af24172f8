"""Guidance rules in a TRL trainer: masks, drops and weights rows of a training step, and tells the reward functions.

TRL computes a step's advantages in `_generate_and_score_completions`, from what `_calculate_rewards` returns. Both are
wrapped on this one trainer. A masked row keeps its reward; its advantage becomes 0. If masked rows do not count in the
baseline, TRL gets NaN in place of their rewards, as from reward functions that return None: it leaves them out (TRL
before 1.6 takes them for 0, so there they count). A dropped row has no token in the loss either, as with
`mask_truncated_completions`. Evaluations are not changed.

All processes use the rules that the main process has, so that a group is treated alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.protocol import GUIDANCE_FIELD, NO_GUIDANCE, GuidanceRules, format_rule_keys
from rolloutdeck.trainers.common import (
    GuidanceTally,
    MatchedRows,
    bind_arguments,
    catch_errors,
    match_rows,
    once_logger,
)
from rolloutdeck.trainers.trl.plugin.processes import count_processes, is_main_process
from rolloutdeck.trainers.trl.plugin.rows import RULES_KEY
from rolloutdeck.trainers.trl.plugin.version import is_older_than

GENERATE_METHOD, REWARD_METHOD = "_generate_and_score_completions", "_calculate_rewards"
COLUMN = GUIDANCE_FIELD  # what reward functions get
LOSS_SIZE = "num_items_in_batch"  # of GRPO, whose loss may be a mean over the tokens of the batch


class TrlGuidance:
    """Applies the rules to `trainer`. `open_run` opens the run that follows them.

    `wrap_generation` is called before rows are captured and `wrap_rewards` after it, so that captured rows have the
    rewards of the reward functions and the advantages that are trained on.
    """

    def __init__(self, trainer: Any, open_run: Callable[[], Run]) -> None:
        self.trainer, self.open_run = trainer, open_run
        self.rules: GuidanceRules = NO_GUIDANCE
        self._shared: GuidanceRules | None = None  # what the main process sent last
        self._inputs: Sequence[dict[str, Any]] = ()
        self._rows: MatchedRows = []
        self._lengths: list[int] = []  # of the responses, in tokens
        self._tally = GuidanceTally()
        self.follow()

    @catch_errors
    def follow(self) -> None:
        """Starts to follow the rules. Each training calls it, since it has a run of its own."""
        if is_main_process(self.trainer):
            self.open_run().guidance()  # its thread asks for the rules while the first step is generated

    def wrap_rewards(self) -> None:
        original = getattr(self.trainer, REWARD_METHOD)

        @functools.wraps(original)
        def calculate(*args: Any, **kwargs: Any) -> Any:
            self._match(bind_arguments(original, args, kwargs))
            added = self._add_column() or []
            try:
                rewards = original(*args, **kwargs)
            finally:
                for row in added:
                    row.pop(COLUMN, None)
            excluded = self._exclude(rewards)
            return rewards if excluded is None else excluded

        setattr(self.trainer, REWARD_METHOD, calculate)

    def wrap_generation(self) -> None:
        original = getattr(self.trainer, GENERATE_METHOD)

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            self._rows, self._inputs = [], ()
            batch = original(*args, **kwargs)
            if self.trainer.model.training:
                self._apply(batch)
            return batch

        setattr(self.trainer, GENERATE_METHOD, generate)

    @catch_errors
    def _match(self, arguments: Mapping[str, Any]) -> None:
        """Finds what applies to each row; to none in an evaluation."""
        self._inputs, prompts = arguments["inputs"], arguments["prompts"]
        self._rows = [None] * len(prompts)
        if self.trainer.model.training:
            self.rules = self._share_rules()
            self._rows = self._find_rows(prompts, arguments["completions"]) or self._rows

    @catch_errors
    def _find_rows(self, prompts: Sequence[Any], completions: Sequence[Any]) -> MatchedRows:
        groups = [id(prompt) for prompt in prompts]  # the responses to a prompt may share its object
        return match_rows(self.rules, groups, prompts.__getitem__, completions.__getitem__)

    def _share_rules(self) -> GuidanceRules:
        """Returns the rules of the main process. They are sent only when they change."""
        current = self._load_rules() or NO_GUIDANCE
        if count_processes(self.trainer) == 1:
            return current
        from accelerate.utils import broadcast_object_list

        is_new = is_main_process(self.trainer) and current is not self._shared
        sent = broadcast_object_list([current if is_new else None], from_process=0)[0]
        if sent is not None:
            self._shared = current if is_main_process(self.trainer) else sent
        return self._shared or NO_GUIDANCE

    @catch_errors
    def _load_rules(self) -> GuidanceRules:
        return self.open_run().guidance().rules if is_main_process(self.trainer) else NO_GUIDANCE

    @catch_errors
    def _add_column(self) -> list[dict[str, Any]]:
        """Adds the values for the reward functions. Returns the rows that have them."""
        inputs = list(self._inputs)
        if any(COLUMN in row for row in inputs):
            once_logger.log_once("column", "The data set has a column `%s`: reward functions get that one.", COLUMN)
            return []
        for row, matched in zip(inputs, self._rows, strict=True):
            row[COLUMN] = dict(matched.values) if matched else {}
        return inputs

    @catch_errors
    def _exclude(self, rewards: Any) -> Any:
        """Returns the rewards of all processes with NaN for the masked rows, if these do not count in the baseline."""
        if self.rules.baseline != "exclude" or not self.trainer.model.training:
            return None
        masked = [row is not None and row.is_masked for row in self._rows]
        if is_older_than(1, 6):
            if any(masked):
                message = "With TRL before 1.6, masked rows always count in the baseline, whatever the rules say."
                once_logger.log_once("baseline", message)
            return None
        if count_processes(self.trainer) > 1:
            from accelerate.utils import gather_object

            masked = gather_object(masked)
        if not any(masked):
            return None
        import torch

        rows = torch.tensor(masked, dtype=torch.bool, device=rewards.device)
        return rewards.masked_fill(rows.unsqueeze(-1), torch.nan)

    @catch_errors
    def _apply(self, batch: Any) -> None:
        """Changes the advantages and the loss mask of the batch, and reports the step."""
        self._change(batch)
        if LOSS_SIZE in batch and any(rule.action == "drop" for rule in self.rules.rules):
            mask = batch["completion_mask"] * batch["tool_mask"] if "tool_mask" in batch else batch["completion_mask"]
            # TRL before 1.9 divides by it, also if all rows are dropped.
            batch[LOSS_SIZE] = self.trainer.accelerator.gather(mask.sum()).sum().clamp(min=1)
        affected = self._list_affected(batch) or []
        if count_processes(self.trainer) > 1:
            from accelerate.utils import gather_object

            affected = gather_object(affected)
        if is_main_process(self.trainer):
            self._report(affected)

    @catch_errors
    def _change(self, batch: Any) -> None:
        self._lengths = batch["completion_mask"].sum(-1).tolist()
        advantages, mask = batch["advantages"].clone(), batch["completion_mask"].clone()
        for index, row in enumerate(self._rows):
            if row is None:
                continue
            advantages[index] = 0.0 if row.is_masked else advantages[index] * row.weight
            if row.dropped and LOSS_SIZE in batch:  # RLOO compares whole sequences: its advantage of 0 is enough
                mask[index] = 0
            self._inputs[index][RULES_KEY] = format_rule_keys(row.rules)
        batch["advantages"], batch["completion_mask"] = advantages, mask

    @catch_errors
    def _list_affected(self, batch: Any) -> list[tuple[tuple[str, ...], int]]:
        rows = zip(self._rows, self._lengths, strict=True)
        return [(row.rules, int(tokens)) for row, tokens in rows if row is not None]

    @catch_errors
    def _report(self, affected: Sequence[tuple[Sequence[str], int]]) -> None:
        step = int(self.trainer.state.global_step) + 1  # incremented only after the step
        self._tally.report(self.open_run(), step, self.rules, affected)
