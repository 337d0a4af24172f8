"""Rates of two runs or of two ranges of steps, before and after, as findings and the reward check show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import StepUrlState
from rollouts.agreement import Estimate
from rollouts.models import Project, Run

SECTIONS = {
    "reward": N_("Reward and people"),
    "label": N_("Answers of people"),
    "property": N_("All samples, counted"),
}


@dataclass(frozen=True, slots=True)
class PresentedSide:
    """`steps` were chosen, empty for all; `found` are the first and the last of them, empty in older findings. `link`
    leads to the reward check of the run; empty if the run is deleted."""

    name: str
    steps: str
    found: str
    link: str

    @property
    def label(self) -> str:
        """`grpo 41-80`: both sides may be of one run."""
        return f"{self.name} {self.steps or self.found}".strip()


@dataclass(frozen=True, slots=True)
class PresentedRate:
    """`links` lead to the samples of both sides; empty if no query finds them or the run is deleted."""

    title: str
    first: Estimate
    second: Estimate
    change: Estimate
    is_clear: bool
    links: tuple[str, str]

    @property
    def summary(self) -> str:
        """`wrong, of the rewarded: 0.32 → 0.03`."""
        values = ["–" if side.value is None else f"{side.value:.2f}" for side in (self.first, self.second)]
        return f"{self.title}: {' → '.join(values)}"


@dataclass(frozen=True, slots=True)
class PresentedRates:
    sides: tuple[PresentedSide, ...]
    sections: dict[str, list[PresentedRate]]

    @property
    def clear_changes(self) -> list[PresentedRate]:
        return [rate for rates in self.sections.values() for rate in rates if rate.is_clear]


def present_rates(snapshot: Mapping[str, Any], project: Project) -> PresentedRates:
    """Shows a snapshot of `reward_check.snapshot_rates`."""
    uids = {side["run"] for side in snapshot["sides"]}
    known = set(Run.objects.filter(project=project, uid__in=uids, deleted_at=None).values_list("uid", flat=True))
    query = {name: value for name, value in build_rates_query(snapshot).items() if name not in ("against", "than")}
    sides = tuple(
        PresentedSide(
            side["name"],
            side["steps"],
            side.get("found", ""),
            f"{reverse('reward-check', args=[side['run']])}?{urlencode(query | {'steps': side['steps']})}"
            if side["run"] in known
            else "",
        )
        for side in snapshot["sides"]
    )
    sections: dict[str, list[PresentedRate]] = {}
    for rate in snapshot["rates"]:
        first_link, second_link = (build_samples_link(snapshot, side, rate["q"]) if side["run"] in known else ""
                                   for side in snapshot["sides"])  # fmt: skip
        presented = PresentedRate(
            title=" · ".join(_(text) for text in (rate["title"], rate["detail"]) if text),
            first=Estimate(**rate["first"]),
            second=Estimate(**rate["second"]),
            change=Estimate(**rate["change"]),
            is_clear=rate["is_clear"],
            links=(first_link, second_link),
        )
        sections.setdefault(_(SECTIONS[rate["kind"]]), []).append(presented)
    return PresentedRates(sides, sections)


def build_samples_link(snapshot: Mapping[str, Any], side: Mapping[str, str], q: str) -> str:
    if not q:
        return ""
    steps = f"step:{side['steps'].replace('-', '..')} " if side["steps"] else ""
    url = StepUrlState(split=snapshot["split"], q=steps + q)
    return reverse("step", args=[side["run"], "all"]) + url.link()


def build_rates_query(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of the reward check that show the comparison again."""
    first, second = snapshot["sides"]
    query = {
        "question": snapshot["question"],
        "good": ",".join(snapshot["good"]),
        "threshold": repr(snapshot["threshold"]),  # the shortest text that gives the same number
        "steps": first["steps"],
        "against": second["run"] if second["run"] != first["run"] else "",
        "than": second["steps"] if second["steps"] != first["steps"] else "",
    }
    return {name: value for name, value in query.items() if value}
