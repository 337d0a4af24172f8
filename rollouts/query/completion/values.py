"""Choices for the value of a term, with the number of samples that they would leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from django.db.models import Count
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import StepTemplate, add_templates, get_flag_name
from rollouts.query import ast, label_terms
from rollouts.query.body_scan import LoggedKey, count_logged_values, is_count_complete
from rollouts.query.completion.context import (
    MAX_CHOICES,
    CompletionChoice,
    CompletionContext,
    describe_property,
)
from rollouts.query.grammar import format_key, format_number, parse_key_name, quote_value
from rollouts.query.parser import parse_query
from rollouts.query.rescore_terms import format_disagreement
from rollouts.query.sql import NUMBER_COLUMNS
from rollouts.samples import NAME_MASK, NUMBER_MASK


def list_values(context: CompletionContext, name: str, sign: str, typed: str) -> list[CompletionChoice]:
    """Returns comparisons with the most frequent values, or with values that divide the samples (`score<0.5`)."""
    if name.startswith(label_terms.LABEL_PREFIX):
        return list_label_values(context, name, sign, typed)
    if name not in ast.NUMBER_FIELDS and name not in context.rescore_columns:
        key = context.logged_keys.get(parse_key_name(name))
        return list_key_values(context, key, sign, typed) if key else []
    column = NUMBER_COLUMNS.get(name, name)
    frequent = context.list_frequent_values(column, 9)
    is_complete = len(frequent) <= 8
    values = sorted(value for value, _ in frequent) if is_complete else list_quantiles(context, column)
    signs = [sign] if typed or sign != "=" else ["="] if is_complete else ["<", ">="]
    terms = [f"{name}{each}{format_number(value)}" for each in signs for value in values]
    return build_choices(context, [term for term in terms if typed in term and is_valid(term)])


def list_label_values(context: CompletionContext, name: str, sign: str, typed: str) -> list[CompletionChoice]:
    """Returns the values of a label's question, or those that its labels have."""
    scope = context.base.scope
    name_of_label = name.removeprefix(label_terms.LABEL_PREFIX)
    values = label_terms.list_label_values(scope.run, name_of_label, scope.labels())
    terms = label_terms.format_terms(f"{name}{sign}", values)
    return build_choices(context, [term for term in terms if typed.casefold() in term and is_valid(term)])


def list_quantiles(context: CompletionContext, column: str) -> list[float]:
    """Returns the 10 %, 50 % and 90 % quantiles."""
    samples, field = context.find_values(column)
    samples = samples.exclude(**{field: None}).order_by(field)
    count = samples.count()
    return [samples.values_list(field, flat=True)[int(share * (count - 1))] for share in (0.1, 0.5, 0.9) if count]


def is_valid(term: str) -> bool:
    try:
        parse_query(term)
    except InvalidInputError:
        return False
    return True


def build_choices(context: CompletionContext, terms: Iterable[str], kind: str = "value") -> list[CompletionChoice]:
    counts = context.count_terms(terms)
    return [CompletionChoice(term, kind, describe_property(term), count) for term, count in counts.items()]


def list_key_values(context: CompletionContext, key: LoggedKey, sign: str, typed: str) -> list[CompletionChoice]:
    """Returns values of a logged key. They have counts only if these are exact and the query has no other term."""
    scope, total = context.base.scope, context.base.total
    values = count_logged_values(scope, key, MAX_CHOICES)
    exact = sign == "=" and context.is_only_term and context.counted and is_count_complete(scope, key, total)
    terms = {f"{format_key(key.name)}{sign}{value}": count if exact else None for value, count in values}
    return [
        CompletionChoice(term, "value", "", count) for term, count in terms.items() if typed in term and is_valid(term)
    ]


def list_named_values(context: CompletionContext, name: str, typed: str) -> list[CompletionChoice]:
    typed = typed.strip('"“”').casefold()
    if name in ast.NUMBER_FIELDS:
        return [write_with_colon(choice, name) for choice in list_values(context, name, "=", typed)]
    if name.startswith(label_terms.LABEL_PREFIX):
        return list_label_values(context, name, ":", typed)
    run, labels = context.base.scope.run, context.base.scope.labels()
    lists: dict[str, Callable[[], list[CompletionChoice]]] = {
        "label": lambda: build_choices(
            context, label_terms.format_terms("label:", label_terms.list_label_names(run, labels))
        ),
        "author": lambda: build_choices(context, label_terms.format_terms("author:", label_terms.list_authors(labels))),
        "label-source": lambda: build_choices(context, label_terms.format_terms("label-source:", label_terms.SOURCES)),
        "is": lambda: list_property_values(context, "is", filter(context.is_available, ast.PROPERTY_NAMES)),
        "no": lambda: list_property_values(context, "no", ast.MISSING_NAMES),
        "split": lambda: build_choices(context, ["split:train", "split:eval"]),
        "source": lambda: list_column_values(context, "source", "data_source"),
        "group": lambda: list_column_values(context, "group", "group"),
        "reason": lambda: list_reasons(context),
        "alike": lambda: list_templates(context),
        "disagrees": lambda: build_choices(context, map(format_disagreement, context.rescores)),
    }
    choices = lists[name]() if name in lists else []
    return [choice for choice in choices if typed in choice.text.partition(":")[2].casefold()]


def write_with_colon(choice: CompletionChoice, name: str) -> CompletionChoice:
    """Returns `name:value` instead of `name=value`. Comparisons, which divide many values, stay as they are."""
    value = choice.text.removeprefix(f"{name}=")
    return choice if value == choice.text else replace(choice, text=f"{name}:{value}")


def list_property_values(context: CompletionContext, name: str, properties: Iterable[str]) -> list[CompletionChoice]:
    """Returns the properties, those that would leave samples first."""
    choices = build_choices(context, [f"{name}:{each}" for each in properties], "property")
    return sorted(choices, key=lambda choice: choice.count == 0)


def list_column_values(context: CompletionContext, name: str, column: str) -> list[CompletionChoice]:
    return [
        CompletionChoice(f"{name}:{quote_value(value)}", "value", "", count if context.counted else None)
        for value, count in context.list_frequent_values(column, 200)
    ]


def list_reasons(context: CompletionContext) -> list[CompletionChoice]:
    """Returns the project's flag reasons with the number of flags in the run."""
    run = context.base.scope.run
    rows = context.base.scope.labels().flags().order_by().values_list("name")
    counts = Counter(dict(rows.annotate(count=Count("pk"))))
    about = _("{reason}: flags in this run")
    return [
        CompletionChoice(
            f"reason:{reason['key']}",
            "value",
            about.format(reason=_(reason["name"])),
            counts[get_flag_name(reason["key"])],
        )
        for reason in run.project.reasons
    ]


def list_templates(context: CompletionContext) -> list[CompletionChoice]:
    """Returns the templates of a step, the largest first."""
    steps = context.base.scope.steps
    if steps.order_by().values("split", "step_kind", "step").distinct()[:2].count() != 1:
        return []
    templates = add_templates(StepTemplate.objects.filter(step__in=steps.values("pk")))
    return [
        CompletionChoice(f"alike:{template.template_id}", "value", describe_template(template), template.samples)
        for template in templates[:MAX_CHOICES]
    ]


def describe_template(template: StepTemplate) -> str:
    return template.text.replace(NUMBER_MASK, "#").replace(NAME_MASK, "@")
