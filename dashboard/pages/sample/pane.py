"""Everything that is shown of one sample: its body, its group, the same prompt over steps, its flags."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from dashboard.pages.common import GroupLinks, SampleRow, StepUrlState, find_query_words, role_allows
from dashboard.pages.sample import fields_view, related, text_view, view_modes
from dashboard.pages.sample.related import RelatedData
from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.models import Flag, Sample
from rollouts.query import parse_query
from rollouts.samples import MISSING_BODY_MESSAGE, parse_unit_tests


def build_pane_context(request: HttpRequest, sample: Sample, ask: StepUrlState, role: str) -> dict[str, Any]:
    """The context of `sample/pane.html`; where the body cannot be read, why: a bad file never hides the step."""
    unread: str = _(MISSING_BODY_MESSAGE)
    try:
        if beside := related.load_related_data([sample]).get(sample.pk):
            return build_loaded_pane_context(request, sample, beside, ask, role)
    except StorageUnavailableError as error:
        unread = str(error)
    return {
        "head": SampleRow(sample),
        "unread": unread,
        **build_flags_context(request, sample, load_sample_flags(sample), role),
    }


def build_loaded_pane_context(
    request: HttpRequest, sample: Sample, beside: RelatedData, ask: StepUrlState, role: str
) -> dict[str, Any]:
    """The same of a sample whose surroundings are known."""
    body, group, past = beside.body, beside.siblings, beside.past
    place = next((at for at, one in enumerate(past) if one.here), 0)
    before = past[place - 1] if past and place else None
    words = parse_highlight_words(ask.q)
    asked = view_modes.ViewInput(request, sample, group, before.step if before else None, words)
    return {
        "sample": sample,
        "head": SampleRow(sample),
        "replayed": beside.replayed,
        "body": body,
        "siblings": group,
        "board_link": GroupLinks(sample.step.run, ask).link(sample),
        "past": past,
        "past_before": before,
        "past_after": past[place + 1] if place + 1 < len(past) else None,
        "prompt": text_view.build_text_view(body.prompt, words, answers=False, name="p"),
        "others": build_other_fields(body),
        "unit_tests": parse_unit_tests(body.extras),
        "words": words,
        **build_flags_context(request, sample, beside.flags, role),
        **view_modes.build_view_context(body, ask.view, asked),
    }


def build_flags_context(request: HttpRequest, sample: Sample, flags: list[Flag], role: str) -> dict[str, Any]:
    """The context of `sample/flags.html`."""
    return {
        "sample": sample,
        "flags": flags,
        "mine": {flag.reason for flag in flags if flag.user_id == request.user.pk},
        "reasons": sample.step.run.project.reasons,
        "may_flag": role_allows(role, "annotator"),
        "role": role,
    }


def build_other_fields(body: Any) -> list[fields_view.FieldEntry]:
    """All that was recorded beside prompt, response, score and their like; short ones first."""
    named = ("index", "trajectory", "turn", "policy_version", "timing", "metrics", "segments", "tools")
    keys = fields_view.collect_fields(body)
    ours = {*type(body).__dataclass_fields__} - {*named}
    found = [fields_view.build_field_entry(name, value) for name, value in keys.items() if name not in ours]
    return sorted(found, key=lambda one: len(one.text) > 80)


def parse_highlight_words(q: str) -> list[str]:
    try:
        return find_query_words(parse_query(q))
    except InvalidInputError:
        return []


def load_sample_flags(sample: Sample) -> list[Flag]:
    return related.load_flags_by_sample([sample])[sample.pk]
