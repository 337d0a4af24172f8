"""The templates of a step, in the place of its figures: responses that begin or end alike."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from dashboard.pages.common import StepUrlState, build_scaled_points, render_text_line
from rollouts.lib import CacheSize, cached
from rollouts.metrics import load_template_shares
from rollouts.models import Sample, Step, StepTemplate, add_templates
from rollouts.samples import NAME_MASK, NUMBER_MASK, TEXT_PROPERTY_BITS

# (step id, version) of the rows of one step: attempts that run at the same time have one each.
RowVersions = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AlikeRow:
    """`points` draw the share of the responses over the steps of the run, from 0 to `highest` percent."""

    template: StepTemplate
    mismatches: int
    points: str
    highest: float
    on: bool
    link: str

    @property
    def text(self) -> SafeString:
        """The template with its masks."""
        text = render_text_line(self.template.text.replace(NUMBER_MASK, "\ufdd0").replace(NAME_MASK, "\ufdd1"))
        html = str(text).replace("\ufdd0", '<i class="mask">#</i>').replace("\ufdd1", '<i class="mask">@</i>')
        return mark_safe(html if self.template.kind == "opening" else f"{escape('… ')}{html}")


def build_alike_rows(rows: RowVersions, run_version: int, url_state: StepUrlState) -> list[AlikeRow]:
    templates, mismatches, shares = load_alike(rows, run_version)
    return [
        AlikeRow(
            template,
            mismatches.get(template.key, 0),
            build_scaled_points(shares[template.key], 0.0, max([*shares[template.key], 0.01])),
            100 * max(shares[template.key], default=0.0),
            url_state.has_term(f"alike:{template.template_id}"),
            url_state.toggle_link(f"alike:{template.template_id}") or "?",
        )
        for template in templates
    ]


@cached(CacheSize.QUERY_RESULTS)
def count_templates(rows: RowVersions, run_version: int) -> int:
    templates = StepTemplate.objects.filter(step__in=[pk for pk, _ in rows]).order_by()
    return templates.values("key").distinct().count()


@cached(CacheSize.QUERY_RESULTS)
def load_alike(
    rows: RowVersions, run_version: int
) -> tuple[list[StepTemplate], dict[int, int], dict[int, list[float]]]:
    """The templates of a step, its answer mismatches by template, and the shares over the run."""
    step_ids = [pk for pk, _ in rows]
    templates = add_templates(StepTemplate.objects.filter(step__in=step_ids).order_by("step"))
    if not templates:
        return [], {}, {}
    samples = Sample.objects.visible().filter(step__in=step_ids, correct=True).order_by()
    mismatches: dict[int, int] = {}
    for kind in ("opening", "ending"):
        counts: Any = (
            samples.exclude(**{kind: None})
            .annotate(bit=F("facets").bitand(TEXT_PROPERTY_BITS["other-answer"]))
            .filter(bit__gt=0)
        )
        mismatches |= dict(counts.values_list(kind).annotate(Count("pk")))
    step = Step.objects.get(pk=step_ids[0])
    return templates, mismatches, load_template_shares(step, [template.key for template in templates])
