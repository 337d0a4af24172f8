"""Terms about re-scores: `score.v2<0.5`, `score.v2!=score`, `disagrees:score.v2`, and their columns in orderings.

They look like terms about logged keys. A key that is the name of a re-score of the run means the re-score, so the names
of re-scores are never those of columns of the trainer. A comparison is false if a number is missing.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from django.db.models import Case, F, FloatField, Q, Value, When
from django.db.models.functions import Abs, Cast
from django.db.models.lookups import GreaterThan, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.lib import compute_tolerance
from rollouts.models import BlindQueues, Rescore, Run, build_rescore_column
from rollouts.query import ast
from rollouts.query.grammar import quote_value

RESCORE_PREFIX: Final = "rescore:"
# The fields that a re-score can be compared with.
COMPARED_COLUMNS: Final = {"score": "score", "adv": "advantage", "duration": "duration", "tokens": "tokens"}
LOOKUPS: Final = {"<": LessThan, "<=": LessThanOrEqual, ">": GreaterThan, ">=": GreaterThanOrEqual}


class RescoreNames:
    """The re-scores of a run, loaded when a term asks for them. A reviewer of a blind queue sees none."""

    def __init__(self, run: Run, blind: BlindQueues) -> None:
        self.run, self.blind = run, blind

    @cached_property
    def rows(self) -> list[Rescore]:
        return list(self.run.rescores.order_by("-pk"))

    def find(self, name: str, field: str = "q") -> tuple[Rescore, str] | None:
        """Returns the re-score and the key of its number. Raises InvalidInputError for a reviewer of a blind queue."""
        found: tuple[Rescore, str] | None = self.run.rescores.all().named(name) if self.rows else None
        if found and self.blind.queues:
            raise InvalidInputError(_("You review a blind queue. Until it is closed, re-scores are hidden."), field)
        return found


def list_rescores(run: Run, blind: BlindQueues) -> list[Rescore]:
    """Returns the re-scores that the reader may ask for, newest first."""
    return [] if blind.queues else RescoreNames(run, blind).rows


def resolve_rescores(node: ast.QueryNode, run: Run, blind: BlindQueues) -> ast.QueryNode:
    """Returns the query with its terms about re-scores as such. Raises InvalidQueryError, and InvalidInputError for a
    reviewer of a blind queue."""
    return resolve_node(node, RescoreNames(run, blind))


def resolve_node(node: ast.QueryNode, names: RescoreNames) -> ast.QueryNode:
    match node:
        case ast.And(parts):
            return ast.And(tuple(resolve_node(part, names) for part in parts))
        case ast.Or(parts):
            return ast.Or(tuple(resolve_node(part, names) for part in parts))
        case ast.Not(part):
            return ast.Not(resolve_node(part, names))
        case ast.LoggedKeyTerm():
            found = names.find(node.key)
            if found:
                return build_rescore_term(node, found[1], names)
            if node.sign in LOOKUPS and node.number is None:
                message = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
                raise ast.InvalidQueryError(message.format(name=node.key, sign=node.sign), node.span)
        case ast.NameTerm("disagrees", text, span):
            return build_disagreement(text, span, names)
    return node


def build_rescore_term(term: ast.LoggedKeyTerm, key: str, names: RescoreNames) -> ast.RescoreTerm:
    if term.sign == "known":
        return ast.RescoreTerm(key, "known")
    sign = "=" if term.sign == ":" else term.sign
    if term.number is not None:
        return ast.RescoreTerm(key, sign, term.number)
    if term.text in COMPARED_COLUMNS:
        return ast.RescoreTerm(key, sign, other=COMPARED_COLUMNS[term.text])
    if other := names.find(term.text):
        return ast.RescoreTerm(key, sign, other=other[1])
    message = _("`{name}` is compared with a number, with {fields}, or with another re-score.")
    fields = ", ".join(f"`{name}`" for name in COMPARED_COLUMNS)
    raise ast.InvalidQueryError(message.format(name=term.key, fields=fields), term.span)


def build_disagreement(name: str, span: ast.Span, names: RescoreNames) -> ast.QueryNode:
    """The samples that the project's rule and the re-score do not both call correct, or both wrong."""
    found = names.find(name)
    if found is None:
        known = ", ".join(f"`{row.name}`" for row in names.rows)
        message = _("This run has no re-score `{name}`. Available: {names}.")
        raise ast.InvalidQueryError(message.format(name=name, names=known or "–"), span)
    key, threshold = found[0].verdict
    above, at_most = ast.RescoreTerm(key, ">", threshold), ast.RescoreTerm(key, "<=", threshold)
    is_correct, is_wrong = ast.PropertyTerm("correct"), ast.PropertyTerm("wrong")
    return ast.Or((ast.And((is_correct, at_most)), ast.And((is_wrong, above))))


def build_rescore_condition(term: ast.RescoreTerm) -> Q:
    """Returns the condition on `Sample`; never NULL, so that it can be negated."""
    column: Any = build_rescore_column(term.key)
    is_known = Q(IsNull(column, False))
    if term.sign == "known":
        return is_known
    other: Any = Value(term.number, output_field=FloatField())
    if term.other:
        is_column = term.other in COMPARED_COLUMNS.values()
        other = Cast(F(term.other), FloatField()) if is_column else build_rescore_column(term.other)
        is_known &= Q(IsNull(other, False))
    near: Any = Value(compute_tolerance(term.number or 0.0))
    if term.other:  # as `compute_tolerance`
        near = Case(When(GreaterThan(Abs(other), Value(1.0)), then=Abs(other) * near), default=near)
    if term.sign == "=":
        return is_known & Q(LessThanOrEqual(Abs(column - other), near))
    bound = other + near if term.sign in ("<=", ">") else other - near
    return is_known & Q(LOOKUPS[term.sign](column, bound))


def get_order_column(ordering: str, run: Run, blind: BlindQueues) -> tuple[Any, ...]:
    """Returns the column of `rescore:score.v2`; none if the run has no such re-score."""
    found = RescoreNames(run, blind).find(ordering.removeprefix(RESCORE_PREFIX), "ordering")
    return (build_rescore_column(found[1]),) if found else ()


def format_disagreement(rescore: Rescore) -> str:
    """Returns the term about the disagreements of a re-score."""
    return f"disagrees:{quote_value(rescore.name)}"
