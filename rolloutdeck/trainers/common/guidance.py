"""Guidance rules in a trainer: whether a training follows them, which rows they select, and what they did in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.lib import Settings
from rolloutdeck.protocol import KEY_SEPARATOR, GuidanceRules, RowGuidance, get_prompt_key, get_response_key
from rolloutdeck.trainers.common import patching

ON, OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")

MatchedRows = list[RowGuidance | None]


def follows_guidance(requested: bool | None = None) -> bool:
    """Returns whether this training follows the rules: `requested`, else ROLLOUTDECK_GUIDANCE."""
    if requested is not None:
        return requested
    setting = Settings.from_environment().guidance.lower()
    if setting not in ON + OFF:
        message = "ROLLOUTDECK_GUIDANCE must be on or off, not %r. The guidance rules are not followed."
        patching.once_logger.log_once("guidance setting", message, setting)
    return setting in ON


def match_rows(
    rules: GuidanceRules,
    groups: Sequence[Hashable],
    get_prompt: Callable[[int], Any],
    get_response: Callable[[int], Any],
) -> MatchedRows:
    """Returns for each row what applies to it. Rows of one of the `groups` have the same prompt. `get_prompt` and
    `get_response` return the text or messages of a row; they are called only for rows that need it."""
    if not rules.prompts and not rules.responses:
        return [None] * len(groups)
    with_responses = {key.partition(KEY_SEPARATOR)[0] for key in rules.responses}
    keys: dict[Hashable, str] = {}
    rows: MatchedRows = []
    for index, group in enumerate(groups):
        if group not in keys:
            keys[group] = get_prompt_key(get_prompt(index))
        key = keys[group]
        response_key = get_response_key(get_response(index)) if key in with_responses else ""
        rows.append(rules.find(key, response_key))
    return rows


class GuidanceTally:
    """What the rules did in the latest step, which may have several batches."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._version, self._samples, self._tokens = 0, 0, 0
        self._rules: Counter[str] = Counter()

    def report(
        self, run: Run, step: int, rules: GuidanceRules, affected: Iterable[tuple[Sequence[str], int]], **options: Any
    ) -> None:
        """Adds a batch and reports the step. `affected` has the keys of rules and the number of tokens of each affected
        row. A project without rules reports nothing."""
        if self._step != step:
            self._step, self._version, self._samples, self._tokens, self._rules = step, 0, 0, 0, Counter()
        self._version = max(self._version, rules.version)
        for keys, tokens in affected:
            self._samples += 1
            self._tokens += tokens
            self._rules.update(keys)
        if self._version:
            counts = {rule.key: 0 for rule in rules.rules} | self._rules
            run.report_guidance(step, self._version, self._samples, self._tokens, counts, **options)
