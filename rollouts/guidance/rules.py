"""The rules of a version: parsed from JSON. Knows no table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _

from rolloutdeck.protocol import GUIDANCE_ACTIONS, GUIDANCE_TARGETS, RULE_KEY
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_text
from rollouts.query import InvalidQueryError, parse_query

MAX_RULES: Final = 20
MAX_KEY_CHARS: Final = 40
MAX_QUERY_CHARS: Final = 2_000
MAX_WEIGHT: Final = 10.0
MAX_VALUE: Final = 1e6
FIELDS: Final = ("key", "query", "action", "target", "value")


@dataclass(frozen=True, slots=True)
class Rule:
    """Samples that match `query` select rows of a training: those with the same prompt, or only those with the same
    prompt and response. `value` is the weight of `weight`, and what the reward function gets for `reward`."""

    key: str
    query: str
    action: str
    target: str = "prompt"
    value: float = 1.0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}


def parse_rules(rows: Any) -> tuple[Rule, ...]:
    """Parses the rules of a version; none is valid too. Raises InvalidInputError with the field of the wrong part, for
    example `rules.2.query`."""
    if not isinstance(rows, list) or len(rows) > MAX_RULES:
        raise InvalidInputError(_("`rules` must be a list of at most {limit} rules.").format(limit=MAX_RULES), "rules")
    rules = tuple(parse_rule(row, f"rules.{at}") for at, row in enumerate(rows))
    keys = [rule.key for rule in rules]
    for at, key in enumerate(keys):
        if key in keys[:at]:
            raise InvalidInputError(_("Two rules have the key `{key}`.").format(key=key), f"rules.{at}.key")
    return rules


def parse_rule(row: Any, at: str) -> Rule:
    if not isinstance(row, Mapping):
        raise InvalidInputError(_("Each rule must be an object with key, query and action."), at)
    if unknown := sorted(str(name) for name in row if name not in FIELDS):
        message = _("A rule has the unknown field `{name}`. Available: {known}.")
        text = message.format(name=unknown[0][:40], known=", ".join(FIELDS))
        raise InvalidInputError(text, f"{at}.{unknown[0][:40]}")
    key = parse_text(row.get("key"), f"{at}.key", max_chars=MAX_KEY_CHARS).strip()
    if not RULE_KEY.fullmatch(key):
        message = _("A key has lower-case letters, digits, - and _, for example `bad-format`.")
        raise InvalidInputError(message, f"{at}.key")
    action = parse_choice(row.get("action"), f"{at}.action", GUIDANCE_ACTIONS, default="")
    if not action:
        message = _("A rule needs an action: {known}.").format(known=", ".join(GUIDANCE_ACTIONS))
        raise InvalidInputError(message, f"{at}.action")
    target = parse_choice(row.get("target"), f"{at}.target", GUIDANCE_TARGETS, default="prompt")
    if action == "drop" and target != "prompt":
        raise InvalidInputError(_("`drop` is about prompts. Mask single responses."), f"{at}.target")
    return Rule(key, parse_rule_query(row.get("query"), at), action, target, parse_value(row.get("value"), action, at))


def parse_rule_query(value: Any, at: str) -> str:
    text = parse_text(value, f"{at}.query", max_chars=MAX_QUERY_CHARS).strip()
    try:
        query = parse_query(text)
    except InvalidQueryError as error:
        raise InvalidInputError(str(error), f"{at}.query") from None
    if query.root is None:
        raise InvalidInputError(_("A rule needs a query, for example `is:flagged-bad`."), f"{at}.query")
    if query.personal:
        message = _("A rule is for all trainings, so it cannot ask who reads it. Use labels: `label.review=ok`.")
        raise InvalidInputError(message, f"{at}.query")
    return text


def parse_value(value: Any, action: str, at: str) -> float:
    """Returns 1 for actions without a value."""
    if action not in ("weight", "reward") or (value in (None, "") and action == "reward"):
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_VALUE
    if action == "weight" and not (is_number and 0 < value <= MAX_WEIGHT):
        message = _("A weight must be a number above 0 and up to {limit}. To train on nothing, mask.")
        raise InvalidInputError(message.format(limit=f"{MAX_WEIGHT:g}"), f"{at}.value")
    if not is_number:
        message = _("The value for the reward function must be a number from -{limit} to {limit}.")
        raise InvalidInputError(message.format(limit=f"{MAX_VALUE:,.0f}"), f"{at}.value")
    return float(value)
