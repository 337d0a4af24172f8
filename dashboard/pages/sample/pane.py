"""The pane of one sample: its body, group, prompt history and flags."""

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common import (
    GroupLinks,
    HighlightedTerms,
    SampleRow,
    StepUrlState,
    build_shown_images,
    find_query_words,
    load_blind_queues,
)
from dashboard.pages.sample import fields_view, mismatches, related, text_view, view_modes
from dashboard.pages.sample.prompt_history import MAX_PROMPT_STEPS
from dashboard.pages.sample.related import RelatedData
from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.models import Label, Rescore, Sample
from rollouts.query import parse_query
from rollouts.rescores import load_sample_results
from rollouts.samples import MISSING_BODY_MESSAGE, RescoreResult, list_images, parse_unit_tests

OTHER_FIELDS = ("index", "trajectory", "turn", "policy_version", "timing", "metrics", "segments", "tools")
MAX_SHORT_VALUE_CHARS = 80


def build_pane_context(request: HttpRequest, sample: Sample, state: StepUrlState, role: str) -> dict[str, Any]:
    """The context of `sample/pane.html`. If the body cannot be read, it holds the reason instead."""
    unread: str = _(MISSING_BODY_MESSAGE)
    try:
        if data := related.load_related_data([sample], request.user).get(sample.pk):
            return build_loaded_pane_context(request, sample, data, state, role)
    except StorageUnavailableError as error:
        unread = str(error)
    flags_context = build_flags_context(request, sample, load_sample_labels(sample, request.user), role)
    return {"head": SampleRow(sample), "unread": unread, **flags_context}


def build_loaded_pane_context(
    request: HttpRequest, sample: Sample, data: RelatedData, state: StepUrlState, role: str
) -> dict[str, Any]:
    body, history = data.body, data.history
    here = next((at for at, step in enumerate(history) if step.here), 0)
    earlier = history[here - 1] if history and here else None
    words = parse_highlight_words(state.q)
    mismatch = mismatches.find_mismatch(sample, body)
    view_input = view_modes.ViewInput(
        request, sample, data.siblings, earlier.step if earlier else None, words, mismatch.labels if mismatch else {}
    )
    return {
        "sample": sample,
        "head": SampleRow(sample, names_rules=bool(data.rules)),
        "replayed": data.replay,
        "rule_marks": data.rules,
        "body": body,
        "siblings": data.siblings,
        "group_size": data.group_size,
        "group_link": GroupLinks(sample.step.run, state).link(sample),
        "history": history,
        "history_is_part": len(history) >= MAX_PROMPT_STEPS,
        "earlier_step": earlier,
        "later_step": history[here + 1] if here + 1 < len(history) else None,
        "images": build_shown_images(list_images(body), sample.pk),
        "prompt": text_view.build_text_view(body.prompt, words, mark_answers=False, id_prefix="p"),
        "other_fields": build_other_fields(body),
        "unit_tests": parse_unit_tests(body.extras),
        "words": words,
        "mismatch": mismatch,
        "shared_edge": data.shared_edge,
        "rescores": build_rescore_rows(request, sample),
        **build_flags_context(request, sample, data.labels, role),
        **view_modes.build_view_context(body, state.view, view_input),
    }


def build_rescore_rows(request: HttpRequest, sample: Sample) -> list[tuple[Rescore, RescoreResult, dict[str, str]]]:
    """The results of re-scores with their parts as text. A reviewer of a blind queue sees none."""
    if sample.step.rescores is None or load_blind_queues(request).queues:
        return []
    return [
        (rescore, result, {name: format_reward_part(value) for name, value in result.parts.items()})
        for rescore, result in load_sample_results(sample)
    ]


def format_reward_part(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def build_flags_context(request: HttpRequest, sample: Sample, labels: list[Label], role: str) -> dict[str, Any]:
    """The context of `sample/flags.html`, from the current labels of the sample."""
    flags = [label for label in labels if label.is_flag]
    return {
        "sample": sample,
        "flags": flags,
        "labels": [label for label in labels if not label.is_flag],
        "mine": {flag.reason for flag in flags if flag.user_id == request.user.pk},
        "reasons": sample.step.run.project.reasons,
        "may_flag": permissions.role_allows(role, "annotator"),
        "role": role,
    }


def build_other_fields(body: Any) -> list[fields_view.FieldEntry]:
    """The recorded fields for which the pane has no section of its own, short values first."""
    own_section = {*type(body).__dataclass_fields__} - {*OTHER_FIELDS}
    fields = fields_view.collect_fields(body).items()
    entries = [fields_view.build_field_entry(name, value) for name, value in fields if name not in own_section]
    return sorted(entries, key=lambda entry: len(entry.text) > MAX_SHORT_VALUE_CHARS)


def parse_highlight_words(q: str) -> HighlightedTerms:
    try:
        return find_query_words(parse_query(q))
    except InvalidInputError:
        return HighlightedTerms()


def load_sample_labels(sample: Sample, reader: User | AnonymousUser) -> list[Label]:
    return related.load_labels_by_sample([sample], reader)[sample.pk]
