"""Rows of a file of labels: which sample they mean, and what they say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from django.utils.translation import gettext as _

from rolloutdeck.protocol import compute_prompt_key
from rollouts.errors import InvalidInputError
from rollouts.formats.readers import chat
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Label
from rollouts.samples import COPY_MARK, compute_content_key

MAX_CLOCK_DIFFERENCE: Final = timedelta(days=1)  # between two servers
MAX_NAME_CHARS: Final = 50
# What a row may say, for the documentation of the API.
FIELDS: Final = {
    "sample": "Id of a sample.",
    "run": "Name or id of its run.",
    "run_id": "Id of its run.",
    "attempt": "Key of its attempt.",
    "split": "train or eval.",
    "step_kind": "What the number of the step counts.",
    "step": "A number.",
    "group": "Its group.",
    "index": "Its number in the group.",
    "trajectory": "Its trajectory.",
    "turn": "Its turn in the trajectory.",
    "prompt_key": "Key of the prompt.",
    "content_key": "Key of prompt and response.",
    "prompt": "The prompt, text or messages.",
    "response": "The response, text or messages.",
    "messages": "A conversation, in place of prompt and response.",
    "name": "The key of a question, review, flag or flag.REASON.",
    "value": "The answer.",
    "json_value": "The answer as JSON text, in place of `value`.",
    "rationale": "Why.",
    "source": "human (default), code or model.",
    "author": "Name of the person, function or model.",
    "rubric": "Number of the rubric's version.",
    "start": "First character of the response that the label is about.",
    "end": "The character after the last one.",
    "created_at": "When the label was made.",
    "updated_at": "When it was changed last.",
}
PLACE_FIELDS: Final = ("run", "run_id", "attempt", "split", "step_kind", "group", "trajectory", "prompt_key")


@dataclass(frozen=True, slots=True)
class SampleClaims:
    """What a row says about its sample; None and "" for nothing. `text_key` is the content key of its texts, which has
    no number of a copy; `chars` the length of its response."""

    sample: str = ""
    run: str = ""
    run_id: str = ""
    attempt: str = ""
    split: str = ""
    step_kind: str = ""
    step: int | None = None
    group: str = ""
    index: int | None = None
    trajectory: str = ""
    turn: int | None = None
    prompt_key: str = ""
    content_key: str = ""
    text_key: str = ""
    chars: int | None = None

    @property
    def needs_content(self) -> bool:
        """Whether the body of a sample says if it is the one."""
        return bool(self.content_key or self.text_key) or self.turn is not None

    @property
    def has_text(self) -> bool:
        return bool(self.prompt_key and (self.content_key or self.text_key))

    @property
    def has_place(self) -> bool:
        inside = (self.group, self.trajectory, self.content_key, self.text_key)
        return self.step is not None and (any(inside) or self.index is not None)


@dataclass(frozen=True, slots=True)
class ImportedLabel:
    """What a row says. `updated_at` is None if it has no time."""

    name: str
    value: Any
    rationale: str
    source: str
    author: str
    rubric: int | None
    start: int | None
    end: int | None
    created_at: datetime | None
    updated_at: datetime | None


def parse_row(row: Mapping[str, Any], now: datetime) -> tuple[SampleClaims, ImportedLabel]:
    """Raises InvalidInputError."""
    return parse_claims(row), parse_label(row, now)


def parse_claims(row: Mapping[str, Any]) -> SampleClaims:
    texts: dict[str, Any] = {name: parse_name(row.get(name), name) for name in PLACE_FIELDS}
    claims = SampleClaims(
        **texts,
        sample=parse_name(row.get("sample"), "sample"),
        content_key=parse_name(row.get("content_key"), "content_key"),
        step=parse_integer(row.get("step"), "step"),
        index=parse_integer(row.get("index"), "index", minimum=-(2**31), maximum=2**31 - 1),
        turn=parse_integer(row.get("turn"), "turn"),
    )
    if (found := parse_texts(row)) is None:
        return claims
    prompt, response = found
    prompt_key = compute_prompt_key(prompt)
    changes = {"prompt_key": prompt_key, "text_key": compute_content_key(prompt_key, response), "chars": len(response)}
    if claims.content_key and claims.content_key.partition(COPY_MARK)[0] != changes["text_key"]:
        raise InvalidInputError(_("`content_key` is not that of `prompt` and `response`. Leave it out."), "content_key")
    return SampleClaims(**{name: getattr(claims, name) for name in SampleClaims.__dataclass_fields__} | changes)


def parse_name(value: Any, field: str) -> str:
    """Numbers too: other tools write groups as numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return parse_text(value, field, max_chars=200).strip()


def parse_texts(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns prompt and response as their texts; None if the row has neither. Raises InvalidInputError."""
    prompt, response, messages = (row.get(name) for name in ("prompt", "response", "messages"))
    if prompt is None and response is None and messages is None:
        return None
    try:
        if messages is not None and response is None:
            if not chat.is_conversation(messages):
                raise ValueError(_("`messages` must be a list of objects with role and content"))
            return chat.render_conversation(chat.normalize_messages(messages))
        if prompt is None or response is None:
            raise ValueError(_("a text needs both `prompt` and `response`"))
        return chat.parse_prompt_response(prompt, response)[:2]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = _("The texts are not valid: {error}.").format(error=error)
        raise InvalidInputError(message, "prompt") from error


def parse_label(row: Mapping[str, Any], now: datetime) -> ImportedLabel:
    name = parse_text(row.get("name"), "name", max_chars=MAX_NAME_CHARS)
    if not name:
        raise InvalidInputError(_("`name` is required: the key of a question, review or flag."), "name")
    updated_at = parse_time(row.get("updated_at"), "updated_at", now)
    rationale = row.get("rationale")
    return ImportedLabel(
        name=name,
        value=parse_value(row),
        rationale="" if rationale is None else rationale,
        source=parse_choice(row.get("source"), "source", Label.Source.values, default=Label.Source.HUMAN),
        author=parse_text(row.get("author"), "author", max_chars=150).strip(),
        rubric=parse_integer(row.get("rubric"), "rubric", maximum=2**31 - 1) or None,
        start=parse_integer(row.get("start"), "start", maximum=2**31 - 1),
        end=parse_integer(row.get("end"), "end", maximum=2**31 - 1),
        created_at=parse_time(row.get("created_at"), "created_at", now) or updated_at,
        updated_at=updated_at,
    )


def parse_value(row: Mapping[str, Any]) -> Any:
    """Raises InvalidInputError."""
    if "json_value" not in row:
        if "value" not in row:
            message = _("`value` is required: the answer, or null to withdraw it.")
            raise InvalidInputError(message, "value")
        return row["value"]
    if "value" in row:
        raise InvalidInputError(_("Use either `value` or `json_value`."), "value")
    text = row["json_value"]
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(_("`json_value` is not JSON. Use `value` for plain values."), "json_value") from error


def parse_time(value: Any, field: str, now: datetime) -> datetime | None:
    """Times without a time zone are UTC. Raises InvalidInputError."""
    text = parse_text(value, field, max_chars=60).strip().strip('"')  # earlier exports wrote it as JSON text
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        message = _("`{field}` must be a time such as {example}.")
        example = "2026-11-30T18:00:00+00:00"
        raise InvalidInputError(message.format(field=field, example=example), field) from error
    if at > now + MAX_CLOCK_DIFFERENCE:
        raise InvalidInputError(_("`{field}` is in the future.").format(field=field), field)
    return at
