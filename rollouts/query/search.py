"""Finds the samples that match a query. The database answers terms about columns, a scan of the bodies all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, F, FloatField, Q, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Length
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import NOT_BLIND, BlindQueues, Queue, Run
from rollouts.query import body_scan, correctness_rule
from rollouts.query.ast import And, BodyTerm, NameTerm, Not, Or, Query, QueryNode, RangeTerm, collect_leaves
from rollouts.query.parser import parse_query
from rollouts.query.rescore_terms import RESCORE_PREFIX, get_order_column, resolve_rescores
from rollouts.query.sql import RECORDED_CONDITIONS, QueryScope, build_condition, build_scope
from rollouts.query.top_steps import find_top_steps
from rollouts.samples import PROPERTY_CATALOG

if TYPE_CHECKING:
    from rollouts.models import SampleQuerySet

# The columns of each ordering. Of equal samples those of newer steps are first, in a step the lower id. Unknown values
# are last in both directions.
PART_PREFIX: Final = "part:"
SAMPLE_ORDERINGS: Final[dict[str, tuple[Any, ...]]] = {
    "score": (F("score"),),
    "len": (F("chars"),),
    "tokens": (F("tokens"),),
    "adv": (F("advantage"),),
    "n": (F("index"),),
    "staleness": (F("staleness"),),
    "duration": (F("duration"),),
    "group": (Length("group"), F("group"), F("index")),
    "order": (F("step__step"), F("dump"), F("ordinal")),
    "step": (F("step__step"),),
    "source": (F("data_source"), F("score")),
}


@dataclass
class QueryResult:
    """The result of a query. `samples` is lazy and in a stable order, so that it can be sliced into pages. If the time
    budget ended before the search, the result contains the steps after `cursor`."""

    query: Query
    scope: QueryScope
    samples: SampleQuerySet
    cursor: int | None = None
    condition: Q = field(default_factory=Q)
    ordering: str = ""

    def find_first_samples(self, count: int) -> SampleQuerySet:
        """Returns a query set whose first `count` samples are those of the result. In many steps it reads only those
        that can have them, where the whole result would be sorted."""

        def limit(step_ids: Sequence[int]) -> SampleQuerySet:
            return self.limit_to_steps(pk__in=step_ids).samples

        filtered = bool(self.condition) or self.cursor is not None
        step_ids = find_top_steps(self.scope, self.ordering, count, limit, filtered=filtered)
        return self.samples if step_ids is None else limit(step_ids)

    def limit_to_steps(self, **filters: Any) -> QueryResult:
        steps = self.scope.steps.filter(**filters)
        if self.cursor is not None:
            steps = steps.filter(step__gt=self.cursor)
        scope = replace(self.scope, steps=steps)
        samples = scope.samples().filter(self.condition).select_related("step")
        return replace(self, scope=scope, samples=samples.order_by(*self.samples.query.order_by))

    def limit_to_newest(self, max_samples: int) -> QueryResult:
        """Returns the result in the newest steps that have at most `max_samples` samples in total, at least one step.
        Returns itself if all steps have no more."""
        first = find_first_step(self.scope, max_samples) if self.scope.step_id is None else None
        if first is None:
            return self
        return self.limit_to_steps(step__gte=first)

    @cached_property
    def searched(self) -> tuple[int, int]:
        """(steps searched, steps in total)"""
        total = self.scope.steps.count()
        return (total if self.cursor is None else self.scope.steps.filter(step__gt=self.cursor).count()), total

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages to show with the result."""
        rule_notes = correctness_rule.build_correctness_notes(self.query, self.scope.run.project)
        return self.query.notes + rule_notes + self.build_drop_notes()

    def build_drop_notes(self) -> tuple[str, ...]:
        """Says that samples of these steps were dropped, since the query cannot find them."""
        dropped = self.scope.steps.filter(dropped__gt=0).aggregate(steps=Count("pk"), samples=Sum("dropped"))
        if not dropped["steps"]:
            return ()
        message = _("Without {samples} samples in {steps} steps that the retention policy dropped.")
        return (message.format(samples=f"{dropped['samples']:,}", steps=f"{dropped['steps']:,}"),)

    @cached_property
    def total(self) -> int:
        if self.query.root is None and self.scope.step_id is None:
            return self.scope.steps.aggregate(total=Sum(F("samples") - F("dropped")))["total"] or 0
        return self.samples.order_by().count()

    def build_term_condition(self, term: str) -> Q:
        """Returns the condition of a term about columns, for samples of the same scope."""
        root = parse_query(term).root
        assert root is not None, "the term is not empty"
        return build_condition(resolve_rescores(root, self.scope.run, self.scope.blind), self.scope)

    def count_terms(self, terms: Iterable[str]) -> dict[str, int]:
        """Returns how many of the samples match each of these terms about columns."""
        names = {term: f"n{at}" for at, term in enumerate(terms)}
        filters = {name: Count("pk", filter=self.build_term_condition(term)) for term, name in names.items()}
        counts = self.samples.order_by().aggregate(**filters)
        return {term: counts[name] for term, name in names.items()}

    def count_properties(self) -> dict[str, int]:
        """Returns {term: how many samples match it, or groups if the catalog counts groups}."""
        counted_samples = [entry.term for entry in PROPERTY_CATALOG if entry.unit == "samples"]
        counts = self.count_terms(["score<=0", *counted_samples, "is:flagged"])
        for term in (entry.term for entry in PROPERTY_CATALOG if entry.unit == "groups"):
            samples = self.samples.order_by().filter(self.build_term_condition(term))
            counts[term] = samples.values("step", "group").distinct().count()
        return counts

    def find_unrecorded_fields(self) -> list[str]:
        """Returns the fields that the query asks for and no sample of its step has. Empty for several steps, which may
        have millions of samples. Logged keys that no sample has are errors."""
        if self.query.root is None or self.scope.step_id is None:
            return []
        leaves = list_positive_leaves(self.query.root)
        terms = [leaf for leaf in leaves if isinstance(leaf, RangeTerm | NameTerm)]
        fields = dict.fromkeys(term.key if isinstance(term, RangeTerm) else term.name for term in terms)
        recorded = {name: RECORDED_CONDITIONS[name] for name in fields if name in RECORDED_CONDITIONS}
        return [name for name, condition in recorded.items() if not self.scope.samples().filter(condition).exists()]


def list_positive_leaves(node: QueryNode) -> list[QueryNode]:
    """Returns the leaves that are not negated."""
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in list_positive_leaves(part)]
    return [] if isinstance(node, Not) else [node]


def find_samples(
    run: Run,
    *,
    split: str = "",
    step: int | None = None,
    attempt: str = "",
    q: str | Query = "",
    ordering: str = "score",
    step_kind: str = "",
    time_budget: body_scan.TimeBudget | None = None,
    reader: int | None = None,
    blind: BlindQueues | None = None,
    may_lack_keys: bool = False,
) -> QueryResult:
    """Returns the visible samples of one step, or of all steps if `step` is None, that match `q`.

    Empty `split` means both; empty `attempt` the current steps, `all` every attempt, else the attempt's key. `ordering`
    is a key of `SAMPLE_ORDERINGS`; `-` in front reverses it. With `time_budget`, a search may cover only the newest
    steps, see `QueryResult`. `reader` is the user's id, for `is:unseen` and other personal properties.
    `blind` are the blind queues that the reader reviews, see `QueryScope`; by default they are loaded if they matter.
    `may_lack_keys`: see `QueryScope`.

    Raises InvalidInputError (InvalidQueryError with the span, for `q`) and StorageUnavailableError.
    """
    query = parse_query(q) if isinstance(q, str) else q
    if blind is None:
        may_matter = query.asks_labels or query.may_ask_rescores or RESCORE_PREFIX in ordering
        blind = Queue.objects.blind_for(reader) if reader is not None and may_matter else NOT_BLIND
    order = build_order(ordering, run, blind, in_one_step=step is not None)
    scope = build_scope(run, {"split": split, "step": step, "step_kind": step_kind}, attempt, query.root, reader, blind)
    scope = replace(scope, may_lack_keys=may_lack_keys)
    condition = build_query_condition(query, scope, time_budget)
    samples = scope.samples().filter(condition)
    cursor = time_budget.cursor if time_budget else None
    if cursor is not None:
        samples = samples.filter(step__step__gt=cursor)
    return QueryResult(query, scope, samples.select_related("step").order_by(*order), cursor, condition, ordering)


def build_query_condition(query: Query, scope: QueryScope, time_budget: body_scan.TimeBudget | None) -> Q:
    """Returns the condition of a query. Only terms about bodies need a scan."""
    if query.root is None:
        return Q()
    root = resolve_rescores(query.root, scope.run, scope.blind) if query.may_ask_rescores else query.root
    if any(isinstance(leaf, BodyTerm) for leaf in collect_leaves(root)):
        return ConditionBuilder(scope, time_budget).build(root)
    return build_condition(root, scope)


def find_first_step(scope: QueryScope, max_samples: int) -> int | None:
    """Returns the first of the newest steps that have at most `max_samples` samples in total; None if all have."""
    first: int | None = None
    for step, samples in scope.steps.order_by("-step").values_list("step", "samples"):
        max_samples -= samples
        if max_samples < 0:
            return step if first is None else first
        first = step
    return None


def get_order_columns(name: str, run: Run, blind: BlindQueues) -> tuple[Any, ...]:
    """Returns the columns of an ordering; none if it does not exist. `part:acc` orders by a reward part,
    `rescore:score.v2` by a re-score."""
    if name.startswith(RESCORE_PREFIX):
        return get_order_column(name, run, blind)
    if name.startswith(PART_PREFIX) and len(name) > len(PART_PREFIX):
        return (Cast(KeyTextTransform(name.removeprefix(PART_PREFIX), "parts"), FloatField()),)
    return SAMPLE_ORDERINGS.get(name, ())


def build_order(ordering: str, run: Run, blind: BlindQueues, *, in_one_step: bool) -> tuple[Any, ...]:
    name = ordering.removeprefix("-")
    order_columns = get_order_columns(name, run, blind)
    if not order_columns:
        message = _(
            "`ordering` must be one of {known}, `part:` and a reward part, or `rescore:` and a re-score of the run; "
            "put `-` in front to reverse it."
        )
        raise InvalidInputError(message.format(known=", ".join(SAMPLE_ORDERINGS)), "ordering")
    down = ordering.startswith("-")
    columns = [key.desc(nulls_last=True) if down else key.asc(nulls_last=True) for key in order_columns]
    return (*columns, "pk") if in_one_step or name in ("step", "order") else (*columns, "-step__step", "pk")


@dataclass
class ConditionBuilder:
    """Converts a query to one condition, with as few scans of the bodies as possible."""

    scope: QueryScope
    time_budget: body_scan.TimeBudget | None

    @cached_property
    def has_several_bodies(self) -> bool:
        """Whether a sample may have several bodies. It matches if any of them does, so one body cannot rule it out."""
        return body_scan.has_several_bodies(self.scope)

    def build(self, node: QueryNode) -> Q:
        if self.is_one_scan(node):
            return Q(pk__among=body_scan.scan_bodies(self.scope, node, self.time_budget))
        if isinstance(node, Not):
            return ~self.build(node.part)
        if not isinstance(node, And | Or):
            return build_condition(node, self.scope)
        kind = Q.AND if isinstance(node, And) else Q.OR
        return Q(*(self.build(part) for part in self.merge_body_parts(node)), _connector=kind)

    def merge_body_parts(self, node: And | Or) -> list[QueryNode]:
        """Returns the parts of `node`. Those about bodies are one part if one scan can answer them."""
        body_parts = [part for part in node.parts if self.is_one_scan(part)]
        if not body_parts or not self.is_one_scan(merged := type(node)(tuple(body_parts))):
            return list(node.parts)
        return [*(part for part in node.parts if part not in body_parts), merged]

    def is_one_scan(self, node: QueryNode) -> bool:
        only_body_terms = all(isinstance(leaf, BodyTerm) for leaf in collect_leaves(node))
        return only_body_terms and (matches_any_body(node) or not self.has_several_bodies)


def matches_any_body(node: QueryNode) -> bool:
    """Returns whether a sample matches `node` as soon as one of its bodies does."""
    return isinstance(node, BodyTerm) or (isinstance(node, Or) and all(map(matches_any_body, node.parts)))
