"""What a response can be compared with: others of its group, the same prompt before, and in other runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import F
from django.http import HttpRequest
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common import format_number
from rollouts.models import Sample

MAX_PARTNER_RUNS = 8


@dataclass(frozen=True, slots=True)
class DiffPartner:
    """`name` stands in the address as `vs=`."""

    name: str
    label: str
    sample: Sample


def find_diff_partners(
    request: HttpRequest, sample: Sample, siblings: Sequence[Sample], before: int | None
) -> list[DiffPartner]:
    """In the order of `v`: best of the group, worst of it, the same prompt one step earlier, other runs of the project.
    `before` is the step that had this prompt before this one."""
    return [
        *find_group_partners(sample, siblings),
        *find_earlier_partner(sample, before),
        *find_other_run_partners(request, sample),
    ]


def choose_diff_partner(partners: Sequence[DiffPartner], name: str) -> DiffPartner | None:
    """The one that the address names, else the first."""
    return next((one for one in partners if one.name == name), partners[0] if partners else None)


def find_next_partner(partners: Sequence[DiffPartner], now: DiffPartner) -> DiffPartner:
    return partners[(partners.index(now) + 1) % len(partners)]


def find_group_partners(sample: Sample, siblings: Sequence[Sample]) -> list[DiffPartner]:
    others = [one for one in siblings if one.pk != sample.pk and one.score is not None]
    if not others:
        plain = [one for one in siblings if one.pk != sample.pk]
        return [DiffPartner("other", _("another response in the group"), plain[0])] if plain else []
    best, worst = max(others, key=score_of), min(others, key=score_of)
    found = [DiffPartner("best", format_partner_label(_("best of group"), best), best)]
    if score_of(worst) < score_of(best):
        found.append(DiffPartner("worst", format_partner_label(_("worst of group"), worst), worst))
    return found


def score_of(sample: Sample) -> float:
    return 0.0 if sample.score is None else sample.score


def format_partner_label(words: str, sample: Sample) -> str:
    said = [f"n={sample.index}"] if sample.index is not None else []
    said += [_("score {score}").format(score=format_number(sample.score))] if sample.score is not None else []
    return f"{words} ({', '.join(said)})" if said else words


def find_earlier_partner(sample: Sample, before: int | None) -> list[DiffPartner]:
    if before is None:
        return []
    step = sample.step
    rows = Sample.objects.visible().filter(
        prompt_key=sample.prompt_key, step__run=step.run_id, step__split=step.split, step__step=before, final=True
    )
    found = choose_nearest_sample(sample, rows.select_related("step")[:64])
    return (
        [DiffPartner("earlier", format_partner_label(_("step {step}").format(step=before), found), found)]
        if found
        else []
    )


def choose_nearest_sample(sample: Sample, rows: Iterable[Sample]) -> Sample | None:
    """The one of the same place in its group, else the best."""
    found = list(rows)
    same = [one for one in found if one.index is not None and one.index == sample.index]
    return same[0] if same else max(found, key=score_of, default=None)


def find_other_run_partners(request: HttpRequest, sample: Sample) -> list[DiffPartner]:
    """The newest step not after this one, else the newest, of each other run of the project that has the prompt."""
    run = sample.step.run
    runs = permissions.visible_runs(request).filter(project=run.project_id).exclude(pk=run.pk)
    rows = (
        Sample.objects.visible()
        .filter(prompt_key=sample.prompt_key, step__run__in=runs, step__split=sample.step.split, final=True)
        .select_related("step__run")
        .order_by("-step__run__created_at", F("step__step").desc(), F("score").desc(nulls_last=True), "pk")
    )
    by_run: dict[int, list[Sample]] = {}
    for one in rows[:512]:
        by_run.setdefault(one.step.run_id, []).append(one)
    found = [
        next((one for one in samples if one.step.step <= sample.step.step), samples[0])
        for samples in list(by_run.values())[:MAX_PARTNER_RUNS]
    ]
    return [DiffPartner(one.step.run.uid, format_partner_label(format_run_step(one), one), one) for one in found]


def format_run_step(sample: Sample) -> str:
    return _("{run} step {step}").format(run=sample.step.run.name, step=sample.step.step)
