"""What the query language's terms mean in the database: each leaf that columns answer becomes a Django `Q`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from django.db.models import (
    CharField,
    Exists,
    F,
    Lookup,
    OuterRef,
    Q,
    Value,
)
from django.db.models.functions import Cast, Concat
from django.db.models.lookups import GreaterThan
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import Flag, Pin, Replay, Run, Sample, Step, StepQuerySet, ViewedSample
from rollouts.query import group_outcomes
from rollouts.query.ast import (
    PERSONAL_PROPERTIES,
    And,
    InvalidQueryError,
    MissingTerm,
    NameTerm,
    Not,
    Or,
    PropertyTerm,
    QueryNode,
    RangeTerm,
    RecordedTerm,
)
from rollouts.samples import TEXT_PROPERTY_BITS

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

NUMBER_COLUMNS: Final = {
    "score": "score", "len": "chars", "tokens": "tokens", "adv": "advantage", "n": "index", "step": "step__step",
}  # fmt: skip


@CharField.register_lookup
class Among(Lookup):
    """`id__among=[…]` for any number of values, as one parameter: `__in` stops at the database's parameter limit."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        inside = column + " IN (SELECT value FROM json_each(%s))"  # noqa: S608, the values are a parameter
        return inside, [*params, orjson.dumps(list(self.rhs)).decode()]

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        return column + " = ANY(%s)", [*params, list(self.rhs)]


@dataclass(frozen=True, slots=True)
class QueryScope:
    """Where a question is asked, and who asks: the steps of a run, `one` being their id when there is just one, and
    the id of the person, None for nobody."""

    run: Run
    steps: StepQuerySet
    step_id: int | None
    reader: int | None = None

    def samples(self) -> Any:
        """The visible samples of these steps, as a QuerySet."""
        inside = Q(step=self.step_id) if self.step_id is not None else Q(step__in=self.steps.values("pk"))
        return Sample.objects.filter(inside, visible=True)


def build_scope(
    run: Run,
    *,
    split: str = "",
    step: int | None = None,
    step_kind: str = "",
    attempt: str = "",
    root: QueryNode | None = None,
    reader: int | None = None,
) -> QueryScope:
    """`attempt` is empty for the current steps, `all`, or an attempt's key. Step terms of `root` narrow the steps."""
    given = {"split": split, "step": step, "step_kind": step_kind}
    chosen = {name: value for name, value in given.items() if value not in ("", None)}
    steps: StepQuerySet = Step.objects.filter(run=run, **chosen)
    if not attempt:
        steps = steps.current()
    elif attempt != "all":
        steps = steps.filter(attempt__key=attempt)
    narrowed = [part for part in conjuncts(root) if narrows(part)]
    for part in narrowed:
        steps = steps.filter(step_condition(part))
    one = None
    if step is not None or narrowed:
        found = list(steps.values_list("pk", flat=True)[:2])
        one = found[0] if len(found) == 1 else None
    return QueryScope(run, steps, one, reader)


def conjuncts(root: QueryNode | None) -> Sequence[QueryNode]:
    """The terms that all have to hold."""
    if root is None:
        return ()
    return [leaf for part in root.parts for leaf in conjuncts(part)] if isinstance(root, And) else (root,)


def narrows(node: QueryNode) -> bool:
    return (isinstance(node, RangeTerm) and node.key == "step") or (isinstance(node, NameTerm) and node.name == "split")


def step_condition(node: QueryNode) -> Q:
    """A term about steps, asked of `Step`."""
    return Q(split=node.text) if isinstance(node, NameTerm) else between("step", node)  # type: ignore[arg-type]


def between(column: str, node: RangeTerm) -> Q:
    condition = Q()
    if node.low is not None:
        condition &= Q(**{f"{column}__{'gt' if node.open_low else 'gte'}": node.low})
    if node.high is not None:
        condition &= Q(**{f"{column}__{'lt' if node.open_high else 'lte'}": node.high})
    return condition


def build_condition(node: QueryNode, scope: QueryScope) -> Q:
    """A term about samples, asked of `Sample`. Only for terms that columns answer."""
    match node:
        case And(parts):
            return Q(*(build_condition(part, scope) for part in parts))
        case Or(parts):
            return Q(*(build_condition(part, scope) for part in parts), _connector=Q.OR)
        case Not(part):
            return ~build_condition(part, scope)
        case RangeTerm():
            return between(NUMBER_COLUMNS[node.key], node)
        case RecordedTerm(key):
            return Q(**{f"{NUMBER_COLUMNS[key]}__isnull": False})
        case NameTerm():
            return named(node, scope)
        case PropertyTerm(name):
            return property_of(name, scope)
        case MissingTerm(name):
            return Q(score=None) if name == "score" else facet(f"no-{name}")
    raise AssertionError(f"{node} is answered by bodies")


def named(node: NameTerm, scope: QueryScope) -> Q:
    match node.name:
        case "split":
            return Q(step__split=node.text)
        case "group":
            return Q(group=node.text)
        case "prompt":
            return Q(prompt_key__startswith=node.text.lower())
        case "source":
            return Q(data_source__icontains=node.text)
        case _:
            return flagged(scope, reason=reason_key(node, scope))


def reason_key(node: NameTerm, scope: QueryScope) -> str:
    """The project's reason with this key or name. Raises BadQuery with those that exist."""
    reasons = scope.run.project.reasons
    for reason in reasons:
        if node.text.casefold() in (reason["key"].casefold(), reason["name"].casefold()):
            return str(reason["key"])
    listed = ", ".join(str(reason["key"]) for reason in reasons)
    said = _("This project has no flag reason `{reason}`. Available: {listed}.")
    raise InvalidQueryError(said.format(reason=node.text, listed=listed), node.span)


def property_of(name: str, scope: QueryScope) -> Q:
    if name in PERSONAL_PROPERTIES:
        return personal(name, scope)
    match name:
        case "truncated":
            return Q(truncated=True) | facet("trunc?")
        case "flagged":
            return flagged(scope)
        case "correct" | "wrong":
            return Q(correct=name == "correct")
        case "final" | "intermediate":
            return Q(final=name == "final")
        case "zerovar":
            return build_zero_variance_condition(scope)
        case "pinned":
            return Q(Exists(at_the_step(Pin).filter(run=scope.run, split=OuterRef("step__split"), removed_at=None)))
        case "reused":
            return Q(Exists(at_the_step(Replay).filter(run=scope.run, outcome="hit")), step__split="train")
        case "solve-all" | "solve-none":
            return solved(scope, by_all=name == "solve-all")
        case _:
            return facet(name)


def facet(name: str) -> Q:
    return Q(GreaterThan(F("facets").bitand(TEXT_PROPERTY_BITS[name]), 0))


def at_the_step(model: type[Pin] | type[Replay]) -> Any:
    """Rows about the step of an outer query's sample, as a QuerySet."""
    same = {name: OuterRef(f"step__{name}") for name in ("attempt", "step_kind", "step")}
    return model.objects.filter(**same)


def personal(name: str, scope: QueryScope) -> Q:
    """What is asked of the person who asks. Raises BadInput where that is nobody."""
    if scope.reader is None:
        raise InvalidInputError(_("`is:{name}` needs a signed-in user.").format(name=name), "q")
    if name == "flagged-by-others":
        others = Flag.objects.filter(run=scope.run, withdrawn_at=None).exclude(user=scope.reader)
        return Q(pk__in=others.values("sample"))
    looked = ViewedSample.objects.filter(user=scope.reader, run=scope.run)
    found = Q(pk__in=(looked.filter(fine=True) if name == "fine" else looked).values("sample"))
    return ~found if name == "unseen" else found


def flagged(scope: QueryScope, **fields: str) -> Q:
    return Q(pk__in=Flag.objects.filter(run=scope.run, withdrawn_at=None, **fields).values("sample"))


def build_zero_variance_condition(scope: QueryScope) -> Q:
    """Samples of groups whose trajectories (two or more, by their last samples) all have one score."""
    return Q(in_groups(scope, "zerovar"), final=True, score__isnull=False)


def solved(scope: QueryScope, *, by_all: bool) -> Q:
    """Samples of groups whose judged trajectories (by their last samples) are all correct, or none of which is."""
    groups = in_groups(scope, "solve_all" if by_all else "solve_none")
    return Q(groups, final=True, correct__isnull=False)


def in_groups(scope: QueryScope, kind: str) -> Q:
    """Samples of groups of a kind that `alike` knows; a group is one of its step."""
    if scope.step_id is not None:
        return Q(group__among=getattr(group_outcomes.find_step_group_outcomes(scope.step_id), kind))
    found = group_outcomes.find_group_outcomes(scope.steps)
    names = [f"{step}/{group}" for step, groups in found.items() for group in getattr(groups, kind)]
    return Q(Among(Concat(Cast("step", CharField()), Value("/"), "group"), names))
