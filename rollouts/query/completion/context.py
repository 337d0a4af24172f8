"""What a completion knows: the samples of the query's other terms, and the texts that describe names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from django.db.models import Count
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Rescore, Run, build_rescore_column
from rollouts.query import ast
from rollouts.query.body_scan import LoggedKey, find_logged_keys
from rollouts.query.parser import parse_query
from rollouts.query.rescore_terms import list_rescores
from rollouts.query.search import QueryResult, find_samples
from rollouts.samples import PROPERTY_CATALOG

MAX_CHOICES: Final = 14
MAX_COUNTED_SAMPLES: Final = 200_000  # counts of more take too long while the user types
MAX_SCANNED_SAMPLES: Final = 50_000  # if there are more than can be counted, the newest have the offered values
FIELD_DESCRIPTIONS: Final = {
    "score": N_("reward of the response"), "len": N_("length in characters"), "tokens": N_("length in tokens"),
    "adv": N_("mean advantage"), "n": N_("index in its group"), "step": N_("step of the run"),
    "staleness": N_("policy versions behind the trainer"), "duration": N_("seconds to generate and score it"),
    "split": N_("train or eval"), "group": N_("responses to one prompt"), "prompt": N_("prompt key"),
    "source": N_("data source (part of its name)"), "reason": N_("flag reason"), "alike": N_("id of a template"),
    "label": N_("labelled, with this name"), "author": N_("labelled by"),
    "label-source": N_("labelled by people, code or models"), "is": N_("property"),
    "disagrees": N_("correct by a re-score and wrong by the score, or the reverse"),
    "no": N_("missing field"),
}  # fmt: skip
PROPERTY_DESCRIPTIONS: Final = {entry.term: entry.about for entry in PROPERTY_CATALOG} | {
    "is:other-answer": N_("the last answer in the text is not the ground truth"),
    "is:flagged": N_("flagged by a user"), "is:flagged-bad": N_("flagged as bad by a user"),
    "is:correct": N_("by the project's correctness rule"),
    "is:wrong": N_("by the project's correctness rule"), "is:final": N_("last sample of its trajectory"),
    "is:intermediate": N_("not the last sample of its trajectory"), "is:tokens": N_("token ids were recorded"),
    "is:labelled": N_("has a label; flags and OK count"), "is:disagreed": N_("two authors label it differently"),
    "is:pinned": N_("from a pinned step"), "is:reused": N_("from a replayed step"),
    "is:unseen": N_("not viewed by you"), "is:seen": N_("viewed by you"),
    "is:fine": N_("marked as OK by you"), "is:flagged-by-others": N_("flagged by another user"),
    "no:score": N_("not scored"), "no:text": N_("only tokens were recorded"),
    "no:label": N_("nobody has labelled it"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """`text` replaces the typed term; `whole` is set if it completes the term. `count` samples would match."""

    text: str
    kind: str
    detail: str = ""
    count: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class QueryCompletion:
    """`choices` for the characters from `start` to `end` of the query."""

    start: int
    end: int
    choices: tuple[CompletionChoice, ...]


@dataclass(frozen=True)
class CompletionContext:
    """`base` has all samples of the scope, `rest` those that match the other terms of the query. `counted` is set if
    samples can be counted while the user types, `is_only_term` if the query has no other terms."""

    base: QueryResult
    rest: QueryResult
    counted: bool
    is_only_term: bool

    @cached_property
    def logged_keys(self) -> dict[str, LoggedKey]:
        return find_logged_keys(self.base.scope)

    @cached_property
    def rescores(self) -> list[Rescore]:
        return list_rescores(self.base.scope.run, self.base.scope.blind)

    @cached_property
    def rescore_columns(self) -> dict[str, str]:
        """{name: key} of the numbers of re-scores."""
        return {name: key for rescore in self.rescores for name, key in rescore.list_columns().items()}

    def count_terms(self, terms: Iterable[str]) -> Mapping[str, int | None]:
        """Returns how many samples each term about columns would leave; None if that takes too long."""
        return self.rest.count_terms(terms) if self.counted else dict.fromkeys(terms)

    def is_available(self, name: str) -> bool:
        """Returns whether the property can be queried: personal ones need a user."""
        return name not in ast.PERSONAL_PROPERTIES or self.base.scope.reader is not None

    def list_frequent_values(self, column: str, limit: int) -> list[tuple[Any, int]]:
        """Returns [(value, samples)], the most frequent first."""
        unknown = "" if column in ("group", "data_source") else None
        samples, field = self.find_values(column)
        rows = samples.order_by().exclude(**{field: unknown}).values_list(field)
        return list(rows.annotate(count=Count("pk")).order_by("-count", field)[:limit])

    def find_values(self, column: str) -> tuple[Any, str]:
        """Returns a QuerySet of the samples, and the field of it that has the values: a column, or the numbers of the
        re-score with this name, which may be that of a column."""
        if column in self.rescore_columns:
            numbers = build_rescore_column(self.rescore_columns[column])
            return self.rest.samples.annotate(rescore_number=numbers), "rescore_number"
        return self.rest.samples, column


def build_context(run: Run, other_terms: str, where: dict[str, Any]) -> CompletionContext:
    if where.get("reader") is not None:
        where = {**where, "blind": Queue.objects.blind_for(where["reader"])}
    base = find_samples(run, **where)
    counted = base.total <= MAX_COUNTED_SAMPLES
    if not counted:
        base = base.limit_to_newest(MAX_SCANNED_SAMPLES)
    result = base
    try:
        parse_query(other_terms)
        if counted and other_terms.strip():
            result = find_samples(run, **where, q=other_terms)
    except InvalidInputError:  # the other terms are incomplete too: count all samples
        pass
    return CompletionContext(base, result, counted, is_only_term=not other_terms.strip())


def describe_property(term: str) -> str:
    return _(PROPERTY_DESCRIPTIONS[term]) if term in PROPERTY_DESCRIPTIONS else ""
