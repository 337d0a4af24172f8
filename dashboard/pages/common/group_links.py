"""Addresses of group boards as a page links to them: with its query, so that next and previous walk its result."""

from __future__ import annotations

import re
from functools import cached_property
from urllib.parse import quote

from django.urls import reverse

from dashboard.pages.common import step_strip
from dashboard.pages.common.url_state import StepUrlState
from rollouts.models import Run, Sample, Step

# What a browser, a proxy or a pattern of addresses would not leave as it is: empty parts, `.`, `..`, line ends.
UNSAFE_GROUP_NAME_PATTERN = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f\u2028\u2029]")
GROUP_NAME_PLACEHOLDER = "-"


class GroupLinks:
    """Of one run, for one page; costs a query only where steps are superseded."""

    def __init__(self, run: Run, ask: StepUrlState) -> None:
        self.run, self.ask = run, ask
        self.asked: dict[int, str] = {}

    @cached_property
    def attempts(self) -> dict[int, str]:
        return dict(self.run.attempts.values_list("pk", "key"))

    def link(self, sample: Sample) -> str:
        """Empty for a sample without a group."""
        return self.of(sample.step, sample.group)

    def of(self, step: Step, group: str) -> str:
        if not group:
            return ""
        if step.pk not in self.asked:
            self.asked[step.pk] = self.query(step)
        query = self.asked[step.pk]
        if UNSAFE_GROUP_NAME_PATTERN.search(group):
            query += f"{'&' if query else '?'}name={quote(group)}"
            group = GROUP_NAME_PLACEHOLDER
        return reverse("group", args=[self.run.uid, step.step, group]) + query

    def query(self, step: Step) -> str:
        split = "" if step.split == step_strip.find_default_split(self.run) else step.split
        attempt = "" if self.ask.attempt == "all" else self.ask.attempt
        if step.superseded:
            attempt = self.attempts.get(step.attempt_id, "")
        return self.ask.link(split=split, attempt=attempt, sel="", view="raw")
