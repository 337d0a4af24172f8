"""Links to group views. They contain the query of the page, so that next and previous follow its result."""

import re
from functools import cached_property
from urllib.parse import quote

from django.urls import reverse

from dashboard.pages.common.step_strip import build_split_param
from dashboard.pages.common.url_state import StepUrlState
from rollouts.models import Run, Sample, Step

# Parts of a path that browsers, proxies or URL patterns change: empty parts, `.`, `..`, line ends.
UNSAFE_GROUP_NAME_PATTERN = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f\u2028\u2029]")
GROUP_NAME_PLACEHOLDER = "-"


class GroupLinks:
    """The links of one page about one run. They cost one query."""

    def __init__(self, run: Run, url_state: StepUrlState) -> None:
        self.run, self.url_state = run, url_state
        self.queries: dict[int, str] = {}  # by step id

    @cached_property
    def attempts(self) -> dict[int, tuple[str, bool]]:
        """The key of each attempt, and whether another one ran at the same time, which may have the same step."""
        rows = self.run.attempts.values_list("pk", "key", "concurrent_with")
        return {pk: (key, first is not None) for pk, key, first in rows}

    def link(self, sample: Sample) -> str:
        return self.build_link(sample.step, sample.group)

    def build_link(self, step: Step, group: str) -> str:
        """Empty for samples without a group."""
        if not group:
            return ""
        if step.pk not in self.queries:
            self.queries[step.pk] = self.build_query(step)
        query = self.queries[step.pk]
        if UNSAFE_GROUP_NAME_PATTERN.search(group):
            query += f"{'&' if query else '?'}name={quote(group)}"
            group = GROUP_NAME_PLACEHOLDER
        return reverse("group", args=[self.run.uid, step.step, group]) + query

    def build_query(self, step: Step) -> str:
        split = build_split_param(self.run, step.split)
        attempt = "" if self.url_state.attempt == "all" else self.url_state.attempt
        key, is_concurrent = self.attempts.get(step.attempt_id, ("", False))
        if step.superseded or is_concurrent:
            attempt = key
        return self.url_state.link(split=split, attempt=attempt, sel="", view="raw")
