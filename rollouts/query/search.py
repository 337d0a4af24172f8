"""Finds the samples that a query asks for. Columns are asked of the database, texts and logged keys of the bodies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Length
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import Run
from rollouts.query import body_scan, correctness_rule
from rollouts.query.ast import BODY_TERMS, And, Not, Or, Query, QueryNode, collect_leaves
from rollouts.query.parser import parse_query
from rollouts.query.sql import QueryScope, build_condition, build_scope
from rollouts.samples import PROPERTY_CATALOG

if TYPE_CHECKING:
    from rollouts.models import SampleQuerySet

# What each ordering sorts by, before the sample's id settles ties. Unknown values come last either way.
SAMPLE_ORDERINGS: Final[dict[str, tuple[Any, ...]]] = {
    "score": (F("score"),),
    "len": (F("chars"),),
    "tokens": (F("tokens"),),
    "adv": (F("advantage"),),
    "n": (F("index"),),
    "group": (Length("group"), F("group"), F("index")),
    "order": (F("step__step"), F("dump"), F("ordinal")),
    "step": (F("step__step"),),
    "source": (F("data_source"), F("score")),
}


@dataclass
class QueryResult:
    """The answer to a query: `samples` is lazy and in a stable order, so it can be sliced into pages. Where time_budget
    ended before the search did, it is the answer for the steps after `horizon`."""

    query: Query
    scope: QueryScope
    samples: SampleQuerySet
    cursor: int | None = None
    condition: Q = field(default_factory=Q)

    def limit_to_newest(self, most: int) -> QueryResult:
        """The same in the newest steps that hold at most `most` samples together, and in one step at least; itself
        where all steps hold no more."""
        start = first_of_newest(self.scope, most) if self.scope.step_id is None else None
        if start is None:
            return self
        if self.cursor is not None:
            start = max(start, self.cursor + 1)
        scope = replace(self.scope, steps=self.scope.steps.filter(step__gte=start))
        samples = scope.samples().filter(self.condition).select_related("step")
        return replace(self, scope=scope, samples=samples.order_by(*self.samples.query.order_by))

    @cached_property
    def searched(self) -> tuple[int, int]:
        """(steps searched, steps to search)"""
        total = self.scope.steps.count()
        return (total if self.cursor is None else self.scope.steps.filter(step__gt=self.cursor).count()), total

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to show beside the answer."""
        return self.query.notes + correctness_rule.build_correctness_notes(self.query, self.scope.run.project)

    @cached_property
    def total(self) -> int:
        if self.query.root is None and self.scope.step_id is None:
            return self.scope.steps.aggregate(total=Sum("samples"))["total"] or 0
        return self.samples.order_by().count()

    def count_properties(self) -> dict[str, int]:
        """{term: how many of the found samples it would leave}; groups, not samples, where the catalog counts those."""
        single = [one.term for one in PROPERTY_CATALOG if one.of == "samples"]
        terms = {term: self.build_term_condition(term) for term in ("score<=0", *single, "is:flagged")}
        every = self.samples.order_by()
        counts = every.aggregate(**{f"n{at}": Count("pk", filter=term) for at, term in enumerate(terms.values())})
        found = {term: counts[f"n{at}"] for at, term in enumerate(terms)}
        for term in (one.term for one in PROPERTY_CATALOG if one.of == "groups"):
            found[term] = every.filter(self.build_term_condition(term)).values("step", "group").distinct().count()
        return found

    def build_term_condition(self, term: str) -> Q:
        """A term that columns answer, as a condition on samples of the same scope."""
        root = parse_query(term).root
        assert root is not None, "a term asks something"
        return build_condition(root, self.scope)


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
) -> QueryResult:
    """The visible samples of one step, or of all of them when `step` is None, that answer `q`.

    `split` empty means both; `attempt` empty means the current steps, `all` every attempt, else one attempt's key.
    `ordering` is a key of `ORDERINGS`, with `-` before it the other way round. With `time_budget` only the
    newest steps may be searched, see `QueryResult`. `reader` is the id of who asks, for `is:unseen` and its like.
    Raises InvalidInputError (InvalidQueryError with the span, for `q`) and StorageUnavailableError.
    """
    query = parse_query(q) if isinstance(q, str) else q
    order = ordered(ordering)
    scope = build_scope(
        run, split=split, step=step, step_kind=step_kind, attempt=attempt, root=query.root, reader=reader
    )
    asked = ConditionBuilder(scope, time_budget).answered(query.root) if query.root is not None else Q()
    samples = scope.samples().filter(asked)
    horizon = time_budget.cursor if time_budget else None
    if horizon is not None:
        samples = samples.filter(step__step__gt=horizon)
    return QueryResult(query, scope, samples.select_related("step").order_by(*order), horizon, asked)


def first_of_newest(scope: QueryScope, most: int) -> int | None:
    """The first of the newest steps that hold at most `most` samples together; None where all do."""
    first: int | None = None
    for step, samples in scope.steps.order_by("-step").values_list("step", "samples"):
        most -= samples
        if most < 0:
            return step if first is None else first
        first = step
    return None


def ordered(ordering: str) -> tuple[Any, ...]:
    """The ORDER BY of an ordering. Raises BadInput."""
    name = ordering.removeprefix("-")
    if name not in SAMPLE_ORDERINGS:
        said = _("`ordering` must be one of {known}; put `-` in front to reverse the order.")
        raise InvalidInputError(said.format(known=", ".join(SAMPLE_ORDERINGS)), "ordering")
    down = ordering.startswith("-")
    columns = [key.desc(nulls_last=True) if down else key.asc(nulls_last=True) for key in SAMPLE_ORDERINGS[name]]
    return (*columns, "pk")


@dataclass
class ConditionBuilder:
    """Turns a whole query into one condition; what is asked of bodies is scanned in as few passes as can be."""

    scope: QueryScope
    time_budget: body_scan.TimeBudget | None = None

    @cached_property
    def apart(self) -> bool:
        """Whether a sample may have several bodies. It has what any of them says, so one body alone denies nothing."""
        return body_scan.has_several_bodies(self.scope)

    def answered(self, node: QueryNode) -> Q:
        if self.at_once(node):
            return Q(pk__among=body_scan.scan_bodies(self.scope, node, self.time_budget))
        if isinstance(node, Not):
            return ~self.answered(node.part)
        if not isinstance(node, And | Or):
            return build_condition(node, self.scope)
        kind = Q.AND if isinstance(node, And) else Q.OR
        return Q(*(self.answered(part) for part in self.gathered(node)), _connector=kind)

    def gathered(self, node: And | Or) -> list[QueryNode]:
        """The parts, those about bodies as one where a single scan answers them."""
        bodies = [part for part in node.parts if self.at_once(part)]
        if not bodies or not self.at_once(together := type(node)(tuple(bodies))):
            return list(node.parts)
        return [*(part for part in node.parts if part not in bodies), together]

    def at_once(self, node: QueryNode) -> bool:
        """Whether one scan answers it."""
        return all(isinstance(leaf, BODY_TERMS) for leaf in collect_leaves(node)) and (in_any(node) or not self.apart)


def in_any(node: QueryNode) -> bool:
    """Whether it holds of a sample as soon as it holds of one of its bodies."""
    return isinstance(node, BODY_TERMS) or (isinstance(node, Or) and all(map(in_any, node.parts)))
