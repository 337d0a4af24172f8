"""Everything that is shown of one sample: its body, its group, the same prompt over steps, its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from dashboard.pages import asking, opened, prose, recorded, views
from dashboard.pages.ask import Ask
from dashboard.pages.boards import Boards
from dashboard.pages.listing import Row
from rollouts import bodies
from rollouts.errors import BadInput
from rollouts.models import Flag, Sample
from rollouts.query import parse

MOST_SIBLINGS = 64
MOST_STEPS = 200


@dataclass(slots=True)
class Past:
    """The same prompt at one step: `score` is the mean of its samples there, `pk` one of them."""

    step: int
    score: float | None
    count: int
    pk: str
    height: float
    here: bool

    @property
    def y(self) -> float:
        return round(94 - self.height, 1)


def shown(request: HttpRequest, sample: Sample, ask: Ask, role: str) -> dict[str, Any]:
    """The context of `sample/pane.html`."""
    body = bodies.read([sample])[sample.pk]
    sample.dump = body.seen_in[0]
    flags = flags_of(sample)
    past = history(sample)
    place = next((at for at, one in enumerate(past) if one.here), 0)
    before = past[place - 1] if past and place else None
    group, words = siblings(sample), words_of(ask.q)
    asked = views.Reading(request, sample, group, before.step if before else None, words)
    return {
        "sample": sample,
        "head": Row(sample),
        "body": body,
        "siblings": group,
        "board_link": Boards(sample.step.run, ask).link(sample),
        "past": past,
        "past_before": before,
        "past_after": past[place + 1] if place + 1 < len(past) else None,
        "prompt": prose.dressed(body.prompt, words, answers=False, name="p"),
        "others": others(body),
        "words": words,
        **flagging(request, sample, flags, role),
        **views.shown(body, ask.view, asked),
    }


def flagging(request: HttpRequest, sample: Sample, flags: list[Flag], role: str) -> dict[str, Any]:
    """The context of `sample/flags.html`."""
    return {
        "sample": sample,
        "flags": flags,
        "mine": {flag.reason for flag in flags if flag.user_id == request.user.pk},
        "reasons": sample.step.run.project.reasons,
        "may_flag": opened.may(role, "annotator"),
        "role": role,
    }


def others(body: Any) -> list[recorded.Entry]:
    """All that was recorded beside prompt, response, score and their like; short ones first."""
    named = ("index", "trajectory", "turn", "policy_version", "timing", "metrics")
    keys = recorded.keys_of(body)
    ours = {*type(body).__dataclass_fields__} - {*named}
    found = [recorded.entry(name, value) for name, value in keys.items() if name not in ours]
    return sorted(found, key=lambda one: len(one.text) > 80)


def words_of(q: str) -> list[str]:
    try:
        return asking.words(parse(q))
    except BadInput:
        return []


def flags_of(sample: Sample) -> list[Flag]:
    return list(Flag.objects.filter(sample=sample.pk, withdrawn_at=None).select_related("user").order_by("created_at"))


def siblings(sample: Sample) -> list[Sample]:
    """The samples of the same prompt in this step, in the order that the trainer gave them."""
    if not sample.group:
        return []
    rows = Sample.objects.filter(step=sample.step_id, group=sample.group, visible=True, final=True)
    return list(rows.order_by("index", "ordinal", "pk")[:MOST_SIBLINGS])


def history(sample: Sample) -> list[Past]:
    """The same prompt in this run and split, step by step, at most the last `MOST_STEPS` that have it."""
    step = sample.step
    rows = (
        Sample.objects.visible()
        .filter(prompt_key=sample.prompt_key, step__run=step.run_id, step__split=step.split, final=True)
        .order_by("step__step", "score", "pk")
        .values_list("step__step", "score", "pk")
    )
    steps: dict[int, list[tuple[float | None, str]]] = {}
    for number, score, pk in rows:
        steps.setdefault(number, []).append((score, pk))
    return [past(number, found, number == step.step) for number, found in list(steps.items())[-MOST_STEPS:]]


def past(number: int, found: list[tuple[float | None, str]], here: bool) -> Past:
    scores = [score for score, _ in found if score is not None]
    mean = sum(scores) / len(scores) if scores else None
    height = 0.0 if mean is None else round(6 + 88 * min(max(mean, 0.0), 1.0), 1)
    return Past(number, mean, len(found), found[0][1], height, here)
