"""What a response can be compared with: others of its group, the same prompt at an earlier step and in other runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db.models import F
from django.http import HttpRequest
from django.utils.translation import gettext as _

from dashboard import permissions
from dashboard.pages.common import format_number
from dashboard.pages.sample.related import MAX_SIBLINGS
from rollouts.models import Sample

MAX_PARTNER_RUNS = 8


@dataclass(frozen=True, slots=True)
class DiffPartner:
    """`name` is the value of the URL parameter `vs`."""

    name: str
    label: str
    sample: Sample


def find_diff_partners(
    request: HttpRequest, sample: Sample, siblings: Sequence[Sample], earlier: int | None
) -> list[DiffPartner]:
    """In the order of the key `v`: best and worst of the group, the same prompt at step `earlier`, other runs of the
    project."""
    partners = list(find_group_partners(sample, siblings))
    if earlier is not None and (row := find_earlier_sample(sample, earlier)):
        partners.append(DiffPartner("earlier", format_label(_("step {step}").format(step=earlier), row), row))
    return partners + find_other_run_partners(request, sample)


def find_group_partners(sample: Sample, siblings: Sequence[Sample]) -> Iterator[DiffPartner]:
    """`siblings` are at most the first `MAX_SIBLINGS` of the group."""
    others = [row for row in siblings if row.pk != sample.pk]
    scored = [row for row in others if row.score is not None]
    if len(siblings) >= MAX_SIBLINGS:
        scored = find_extremes(sample)
    if scored:
        best, worst = max(scored, key=get_score), min(scored, key=get_score)
        yield DiffPartner("best", format_label(_("best of group"), best), best)
        if get_score(worst) < get_score(best):
            yield DiffPartner("worst", format_label(_("worst of group"), worst), worst)
    elif others:
        yield DiffPartner("other", _("another response in the group"), others[0])


def find_extremes(sample: Sample) -> list[Sample]:
    """The other responses of the group with the highest and the lowest score."""
    rows = Sample.objects.visible().filter(step=sample.step_id, group=sample.group, final=True)
    rows = rows.exclude(pk=sample.pk).exclude(score=None)
    found = (rows.order_by(order, "index", "pk").first() for order in ("-score", "score"))
    return [row for row in found if row]


def get_score(sample: Sample) -> float:
    return 0.0 if sample.score is None else sample.score


def format_label(name: str, sample: Sample) -> str:
    facts = [f"n={sample.index}"] if sample.index is not None else []
    facts += [_("score {score}").format(score=format_number(sample.score))] if sample.score is not None else []
    return f"{name} ({', '.join(facts)})" if facts else name


def find_earlier_sample(sample: Sample, number: int) -> Sample | None:
    """The sample with the same index in its group, else the best."""
    step = sample.step
    rows = Sample.objects.current_and_visible().filter(prompt_key=sample.prompt_key, final=True, step__step=number)
    rows = rows.filter(step__run=step.run_id, step__split=step.split, step__step_kind=step.step_kind)
    rows = rows.select_related("step").order_by(F("score").desc(nulls_last=True), "pk")
    same = rows.filter(index=sample.index).first() if sample.index is not None else None
    return same or rows.first()


def find_other_run_partners(request: HttpRequest, sample: Sample) -> list[DiffPartner]:
    """One sample of each other run of the project that has the prompt: of the newest step up to this one, else of the
    newest step."""
    run = sample.step.run
    rows = Sample.objects.current_and_visible().filter(prompt_key=sample.prompt_key, final=True)
    rows = rows.filter(step__split=sample.step.split)
    runs = permissions.visible_runs(request).filter(project=run.project_id).exclude(pk=run.pk)
    partners = []
    for other in runs.filter(pk__in=rows.values("step__run")).order_by("-created_at")[:MAX_PARTNER_RUNS]:
        newest = rows.filter(step__run=other).select_related("step")
        newest = newest.order_by("-step__step", F("score").desc(nulls_last=True), "pk")
        if partner := newest.filter(step__step__lte=sample.step.step).first() or newest.first():
            name = _("{run} step {step}").format(run=other.name, step=partner.step.step)
            partners.append(DiffPartner(other.uid, format_label(name, partner), partner))
    return partners
