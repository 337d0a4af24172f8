"""Converts the terms about columns to Django conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from django.db.models import CharField, Exists, F, Lookup, OuterRef, Q, Value
from django.db.models.functions import Cast, Concat
from django.db.models.lookups import GreaterThan
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import (
    NOT_BLIND,
    BlindQueues,
    Label,
    LabelQuerySet,
    Pin,
    Replay,
    Run,
    Sample,
    Step,
    StepQuerySet,
    StepTemplate,
    ViewedSample,
    get_flag_name,
    parse_template_id,
)
from rollouts.query import ast, group_outcomes, label_terms, rescore_terms
from rollouts.samples import TEXT_PROPERTY_BITS

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

NUMBER_COLUMNS: Final = {
    "score": "score", "len": "chars", "tokens": "tokens", "adv": "advantage", "n": "index", "step": "step__step",
    "staleness": "staleness", "duration": "duration",
}  # fmt: skip
PROMPT_KEY_CHARS: Final = 26  # of `Sample.prompt_key`, from a to z and 2 to 7
# The samples that have a value of a field.
RECORDED_CONDITIONS: Final = {
    "score": Q(score__isnull=False), "tokens": Q(tokens__isnull=False), "adv": Q(advantage__isnull=False),
    "n": Q(index__isnull=False), "staleness": Q(staleness__isnull=False), "duration": Q(duration__isnull=False),
    "source": ~Q(data_source=""), "group": ~Q(group=""),
}  # fmt: skip


@CharField.register_lookup
class Among(Lookup):
    """`id__among=[…]` passes any number of values as one parameter; `__in` has the database's parameter limit."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        condition = column + " IN (SELECT value FROM json_each(%s))"  # noqa: S608, the values are a parameter
        return condition, [*params, orjson.dumps(list(self.rhs)).decode()]

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        return column + " = ANY(%s)", [*params, list(self.rhs)]


@dataclass(frozen=True, slots=True)
class QueryScope:
    """The steps of a run that a query covers; `step_id` is set if it is a single one. `reader` is the user's id. Labels
    of others on items of the `blind` queues that they review do not count. `may_lack_keys`: a term
    about a logged key that no sample has is false, and no error."""

    run: Run
    steps: StepQuerySet
    step_id: int | None
    reader: int | None = None
    blind: BlindQueues = NOT_BLIND
    may_lack_keys: bool = False

    def labels(self) -> LabelQuerySet:
        """Returns the current labels of the run that the reader may read."""
        labels: LabelQuerySet = Label.objects.active().filter(run=self.run).outside_of(self.blind)
        return labels

    def samples(self) -> Any:
        """Returns a QuerySet of the visible samples of these steps."""
        samples = Sample.objects.visible()
        return samples.in_steps(self.steps) if self.step_id is None else samples.filter(step=self.step_id)


def build_scope(
    run: Run,
    fields: Mapping[str, Any],
    attempt: str,
    root: ast.QueryNode | None,
    reader: int | None,
    blind: BlindQueues = NOT_BLIND,
) -> QueryScope:
    """Returns the scope of `find_samples`. Step and split terms that every match requires narrow the steps."""
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    steps: StepQuerySet = Step.objects.filter(run=run, **given)
    if not attempt:
        steps = steps.current()
    elif attempt != "all":
        steps = steps.filter(attempt__key=attempt)
    conditions = [condition for node in list_required_nodes(root) if (condition := build_step_condition(node))]
    steps = steps.filter(*conditions)
    step_id = None
    if "step" in given or conditions:
        ids = list(steps.values_list("pk", flat=True)[:2])
        step_id = ids[0] if len(ids) == 1 else None
    return QueryScope(run, steps, step_id, reader, blind)


def list_required_nodes(root: ast.QueryNode | None) -> list[ast.QueryNode]:
    """Returns the terms that every match satisfies."""
    if isinstance(root, ast.And):
        return [node for part in root.parts for node in list_required_nodes(part)]
    return [root] if root else []


def build_step_condition(node: ast.QueryNode) -> Q | None:
    """Returns the condition of a step or split term on `Step`."""
    match node:
        case ast.RangeTerm(key="step"):
            return build_range_condition("step", node)
        case ast.NameTerm(name="split", text=text):
            return Q(split=text)
    return None


def build_range_condition(column: str, term: ast.RangeTerm) -> Q:
    condition = Q()
    if term.low is not None:
        condition &= Q(**{f"{column}__{'gt' if term.open_low else 'gte'}": term.low})
    if term.high is not None:
        condition &= Q(**{f"{column}__{'lt' if term.open_high else 'lte'}": term.high})
    return condition


def build_condition(node: ast.QueryNode, scope: QueryScope) -> Q:
    """Returns the condition on `Sample` of a query that has only terms about columns. Raises InvalidQueryError for an
    unknown flag reason or label, InvalidInputError for a personal property without a user."""
    match node:
        case ast.And(parts):
            return Q(*(build_condition(part, scope) for part in parts))
        case ast.Or(parts):
            return Q(*(build_condition(part, scope) for part in parts), _connector=Q.OR)
        case ast.Not(part):
            return ~build_condition(part, scope)
        case ast.RangeTerm(key):
            return build_range_condition(NUMBER_COLUMNS[key], node)
        case ast.RecordedTerm(key):
            return Q(**{f"{NUMBER_COLUMNS[key]}__isnull": False})
        case ast.NameTerm():
            return build_name_condition(node, scope)
        case ast.LabelTerm():
            return label_terms.build_label_condition(node, scope.run, scope.labels())
        case ast.RescoreTerm():
            return rescore_terms.build_rescore_condition(node)
        case ast.PropertyTerm(name):
            return build_property_condition(name, scope)
        case ast.MissingTerm("label"):
            return ~label_terms.match_samples(scope.labels())
        case ast.MissingTerm(name):
            return Q(score=None) if name == "score" else build_bit_condition(f"no-{name}")
    raise AssertionError(f"{node} is a term about bodies")


def build_name_condition(term: ast.NameTerm, scope: QueryScope) -> Q:
    match term.name:
        case "split":
            return Q(step__split=term.text)
        case "group":
            return Q(group=term.text)
        case "prompt":
            return build_prompt_condition(term.text.lower())
        case "source":
            return Q(data_source=term.text) if term.is_exact else Q(data_source__icontains=term.text)
        case "alike":
            return build_template_condition(term)
        case "reason":
            return build_flag_condition(scope, name=get_flag_name(find_reason_key(term, scope)))
        case "label" | "author" | "label-source":
            return label_terms.build_named_label_condition(term, scope.run, scope.labels())
    raise ValueError(f"The query key {term.name} has no condition.")


def build_prompt_condition(key: str) -> Q:
    """Returns the samples whose prompt key begins with `key`. PostgreSQL's index serves a whole key and a range, but in
    most collations not LIKE."""
    if len(key) >= PROMPT_KEY_CHARS:
        return Q(prompt_key=key)
    return Q(prompt_key__startswith=key, prompt_key__gte=key, prompt_key__lte=key + "z" * PROMPT_KEY_CHARS)


def build_template_condition(term: ast.NameTerm) -> Q:
    """Returns the samples with a template. Only the steps that have it are searched."""
    try:
        key = parse_template_id(term.text)
    except ValueError:
        message = _("`alike:{text}` is not the id of a template, which has 10 digits from 0 to f.")
        raise ast.InvalidQueryError(message.format(text=term.text), term.span) from None
    return Q(step__in=StepTemplate.objects.filter(key=key).values("step")) & (Q(opening=key) | Q(ending=key))


def find_reason_key(term: ast.NameTerm, scope: QueryScope) -> str:
    """Returns the key of the project's flag reason with this key or name."""
    reasons = scope.run.project.reasons
    for reason in reasons:
        if term.text.casefold() in (reason["key"].casefold(), reason["name"].casefold()):
            return str(reason["key"])
    values = ", ".join(str(reason["key"]) for reason in reasons)
    message = _("This project has no flag reason `{reason}`. Available: {values}.")
    raise ast.InvalidQueryError(message.format(reason=term.text, values=values), term.span)


def build_property_condition(name: str, scope: QueryScope) -> Q:
    if name in ast.PERSONAL_PROPERTIES:
        return build_personal_condition(name, scope)
    match name:
        case "truncated":
            return Q(truncated=True) | build_bit_condition("trunc?")
        case "flagged":
            return build_flag_condition(scope)
        case "flagged-bad":
            return build_flag_condition(scope, answer=" bad ")
        case "labelled":
            return label_terms.match_samples(scope.labels())
        case "disagreed":
            return label_terms.build_disagreement_condition(scope.labels())
        case "answer-mismatch":
            return Q(build_bit_condition("other-answer"), correct=True)
        case "correct" | "wrong":
            return Q(correct=name == "correct")
        case "final" | "intermediate":
            return Q(final=name == "final")
        case "pinned":
            return Q(Exists(find_at_step(Pin, scope).filter(split=OuterRef("step__split"), removed_at=None)))
        case "reused":
            return Q(Exists(find_at_step(Replay, scope).filter(outcome="hit")), step__split="train")
        case "zerovar":
            return Q(build_group_condition("zerovar", scope), final=True, score__isnull=False)
        case "solve-all" | "solve-none":
            return Q(build_group_condition(name.replace("-", "_"), scope), final=True, correct__isnull=False)
        case _:
            return build_bit_condition(name)


def build_bit_condition(name: str) -> Q:
    return Q(GreaterThan(F("facets").bitand(TEXT_PROPERTY_BITS[name]), 0))


def find_at_step(model: type[Pin] | type[Replay], scope: QueryScope) -> Any:
    """Returns a QuerySet of the rows about the step of the outer query's sample."""
    same_step = {name: OuterRef(f"step__{name}") for name in ("attempt", "step_kind", "step")}
    return model.objects.filter(run=scope.run, **same_step)


def build_personal_condition(name: str, scope: QueryScope) -> Q:
    if scope.reader is None:
        raise InvalidInputError(_("`is:{name}` needs a signed-in user.").format(name=name), "q")
    if name == "flagged-by-others":
        others = scope.labels().flags().exclude(user=scope.reader, author=F("user__username"))
        return Q(pk__in=others.values("sample"))
    own = {"user": scope.reader, "run": scope.run}
    if name == "fine":
        return Q(pk__in=Label.objects.approvals().active().filter(**own, author=F("user__username")).values("sample"))
    viewed = Q(pk__in=ViewedSample.objects.filter(**own).values("sample"))
    return ~viewed if name == "unseen" else viewed


def build_flag_condition(scope: QueryScope, **fields: str) -> Q:
    return Q(pk__in=scope.labels().flags().filter(**fields).values("sample"))


def build_group_condition(outcome: str, scope: QueryScope) -> Q:
    """Returns the samples of the groups in this field of `GroupOutcomes`. A group belongs to one step."""
    if scope.step_id is not None:
        return Q(group__among=getattr(group_outcomes.find_step_group_outcomes(scope.step_id), outcome))
    steps = group_outcomes.find_group_outcomes(scope.steps)
    names = [f"{step}/{group}" for step, outcomes in steps.items() for group in getattr(outcomes, outcome)]
    return Q(Among(Concat(Cast("step", CharField()), Value("/"), "group"), names))
