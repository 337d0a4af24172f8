"""Everything that is shown of one sample: its body, its group, the same prompt over steps, its flags."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from dashboard.pages.common import lookups, query_messages
from dashboard.pages.common.group_links import Boards
from dashboard.pages.common.sample_rows import Row
from dashboard.pages.common.url_state import Ask
from dashboard.pages.sample import fields_view, related, text_view, view_modes
from dashboard.pages.sample.related import Around
from rollouts.errors import BadInput, StorageUnavailable
from rollouts.models import Flag, Sample
from rollouts.query.parser import parse
from rollouts.samples.bodies import GONE
from rollouts.samples.unit_tests import unit_tests


def shown(request: HttpRequest, sample: Sample, ask: Ask, role: str) -> dict[str, Any]:
    """The context of `sample/pane.html`; where the body cannot be read, why: a bad file never hides the step."""
    unread: str = _(GONE)
    try:
        if beside := related.of([sample]).get(sample.pk):
            return dressed(request, sample, beside, ask, role)
    except StorageUnavailable as error:
        unread = str(error)
    return {"head": Row(sample), "unread": unread, **flagging(request, sample, flags_of(sample), role)}


def dressed(request: HttpRequest, sample: Sample, beside: Around, ask: Ask, role: str) -> dict[str, Any]:
    """The same of a sample whose surroundings are known."""
    body, group, past = beside.body, beside.siblings, beside.past
    place = next((at for at, one in enumerate(past) if one.here), 0)
    before = past[place - 1] if past and place else None
    words = words_of(ask.q)
    asked = view_modes.Reading(request, sample, group, before.step if before else None, words)
    return {
        "sample": sample,
        "head": Row(sample),
        "replayed": beside.replayed,
        "body": body,
        "siblings": group,
        "board_link": Boards(sample.step.run, ask).link(sample),
        "past": past,
        "past_before": before,
        "past_after": past[place + 1] if place + 1 < len(past) else None,
        "prompt": text_view.dressed(body.prompt, words, answers=False, name="p"),
        "others": others(body),
        "unit_tests": unit_tests(body.extras),
        "words": words,
        **flagging(request, sample, beside.flags, role),
        **view_modes.shown(body, ask.view, asked),
    }


def flagging(request: HttpRequest, sample: Sample, flags: list[Flag], role: str) -> dict[str, Any]:
    """The context of `sample/flags.html`."""
    return {
        "sample": sample,
        "flags": flags,
        "mine": {flag.reason for flag in flags if flag.user_id == request.user.pk},
        "reasons": sample.step.run.project.reasons,
        "may_flag": lookups.may(role, "annotator"),
        "role": role,
    }


def others(body: Any) -> list[fields_view.Entry]:
    """All that was recorded beside prompt, response, score and their like; short ones first."""
    named = ("index", "trajectory", "turn", "policy_version", "timing", "metrics", "segments", "tools")
    keys = fields_view.keys_of(body)
    ours = {*type(body).__dataclass_fields__} - {*named}
    found = [fields_view.entry(name, value) for name, value in keys.items() if name not in ours]
    return sorted(found, key=lambda one: len(one.text) > 80)


def words_of(q: str) -> list[str]:
    try:
        return query_messages.words(parse(q))
    except BadInput:
        return []


def flags_of(sample: Sample) -> list[Flag]:
    return related.flags_of([sample])[sample.pk]
