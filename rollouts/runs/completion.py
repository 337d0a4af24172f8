"""Completes a query about runs: names with what they mean, values with the number of runs that they leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.models import Run
from rollouts.query import (
    ASCII_SIGNS,
    CompletionChoice,
    InvalidQueryError,
    LoggedKeyTerm,
    QueryCompletion,
    find_term_span,
    format_range,
    parse_query,
    quote_value,
)
from rollouts.runs.conditions import NUMBERS, build_run_test
from rollouts.runs.configs import count_config_values, format_config_value
from rollouts.runs.search import count_matches
from rollouts.runs.table import RunKey, RunTable, format_run_key
from rollouts.runs.vocabulary import FIELD_DESCRIPTIONS, PROPERTY_DESCRIPTIONS, RUN_VOCABULARY, STATUSES

MAX_CHOICES: Final = 14
MAX_VALUES: Final = 60
MAX_VALUE_CHARS: Final = 120
MAX_FREQUENT_NUMBERS: Final = 8
KEY: Final = r'(?:(?:config|metric)\."(?:\\.|[^"\\])*"|[^\W\d][\w./\-]*)'
COMPARED: Final = re.compile(rf"({KEY})([<>=!≤≥≠]+)(.*)", re.DOTALL)
NAMED: Final = re.compile(rf"({KEY}):(.*)", re.DOTALL)
AGES: Final = ("1h", "1d", "7d")
RANGE_FIELDS: Final = (*RUN_VOCABULARY.number_fields,)


@dataclass(frozen=True)
class RunCompletionContext:
    """`rest` are the runs that match the other terms of the query."""

    table: RunTable
    rest: list[Run]

    def count(self, terms: Iterable[str], kind: str = "value") -> list[CompletionChoice]:
        counts = [(term, count_matches(self.table, self.rest, term)) for term in terms]
        return [
            CompletionChoice(term, kind, describe_property(term), count) for term, count in counts if count is not None
        ]

    @cached_property
    def config_counts(self) -> dict[str, int]:
        """The number of different values of each config key."""
        return count_config_values(self.table.configs[run.pk] for run in self.rest)


def complete_run_query(table: RunTable, q: str, at: int | None = None) -> QueryCompletion:
    """Returns the choices at character `at` of `q`, at its end by default."""
    at = len(q) if at is None else max(0, min(at, len(q)))
    start, end = find_term_span(q, at)
    typed = q[start:at].translate(ASCII_SIGNS)
    others = f"{q[:start].rstrip().removesuffix('-')} {q[end:]}"
    context = RunCompletionContext(table, find_rest(table, others))
    return QueryCompletion(start, end, tuple(list_choices(context, typed)[:MAX_CHOICES]))


def find_rest(table: RunTable, others: str) -> list[Run]:
    """If the other terms are incomplete too, all runs are counted."""
    try:
        root = parse_query(others, RUN_VOCABULARY).root
        test = build_run_test(root, table) if root else None
    except InvalidQueryError:
        test = None
    return [run for run in table.runs if test is None or test(run)]


def list_choices(context: RunCompletionContext, typed: str) -> list[CompletionChoice]:
    if matched := COMPARED.fullmatch(typed):
        return list_values(context, *matched.groups())
    if matched := NAMED.fullmatch(typed):
        return list_named_values(context, *matched.groups())
    return [] if typed[:1] in ('"', "“", "”", "＂", "「", "『", "/") else list_names(context, typed)


# --- names ------------------------------------------------------------------------------------------------------------


def list_names(context: RunCompletionContext, typed: str) -> list[CompletionChoice]:
    """Returns the names that start with `typed`, then those that contain it. A complete name is followed by values."""
    if typed in (*RUN_VOCABULARY.number_fields, *RUN_VOCABULARY.age_fields):
        return list_values(context, typed, "=", "")
    prefix = typed.casefold()
    choices = [
        *list_number_fields(context),
        *(CompletionChoice(f"{name}:", "name", _(FIELD_DESCRIPTIONS[name]), whole=False) for name in NAME_ORDER),
        *(
            CompletionChoice(name, "number", _(FIELD_DESCRIPTIONS[name]), whole=False)
            for name in RUN_VOCABULARY.age_fields
        ),
        *list_keys(context, prefix),
        *list_properties(context, prefix),
    ]
    matches = [choice for choice in choices if prefix in choice.text.casefold()]
    return sorted(matches, key=lambda choice: not choice.text.casefold().startswith(prefix))


NAME_ORDER: Final = ("status", "is", "tag", "name", "model", "algorithm", "trainer", "project", "owner", "host", "no")


def list_number_fields(context: RunCompletionContext) -> list[CompletionChoice]:
    """Returns the fields that some run has, with their range."""
    choices: list[CompletionChoice] = []
    for name in RANGE_FIELDS:
        get = NUMBERS[name](context.table)
        values = [value for run in context.rest if (value := get(run)) is not None]
        if values:
            detail = format_range(_(FIELD_DESCRIPTIONS[name]), min(values), max(values))
            choices.append(CompletionChoice(name, "number", detail, whole=False))
    return choices


def list_keys(context: RunCompletionContext, prefix: str) -> list[CompletionChoice]:
    """Returns config keys, those that differ first, and metrics."""
    counts = context.config_counts
    keys = sorted((key for key in counts if prefix in key.casefold()), key=lambda key: (counts[key] < 2, key))
    configs = []
    for key in keys[: MAX_CHOICES * 2]:
        detail = ngettext("config, {count} value", "config, {count} values", counts[key]).format(count=counts[key])
        configs.append(CompletionChoice(format_run_key(context.table, RunKey(key)), "key", detail, whole=False))
    names = [name for name in context.table.metric_names if prefix in name.casefold()]
    metrics = [
        CompletionChoice(
            format_run_key(context.table, RunKey(name, is_metric=True)), "key", _("metric, last value"), whole=False
        )
        for name in names[: MAX_CHOICES * 2]
    ]
    return [*configs, *metrics]


def list_properties(context: RunCompletionContext, prefix: str) -> list[CompletionChoice]:
    """Returns the terms whose value starts with `prefix`: `run` leads to `status:running`."""
    if len(prefix) < 2:
        return []
    terms = [*PROPERTY_DESCRIPTIONS, *(f"status:{status}" for status in STATUSES)]
    return context.count([term for term in terms if term.partition(":")[2].startswith(prefix)], "property")


def describe_property(term: str) -> str:
    return _(PROPERTY_DESCRIPTIONS[term]) if term in PROPERTY_DESCRIPTIONS else ""


# --- values -----------------------------------------------------------------------------------------------------------


def list_values(context: RunCompletionContext, name: str, sign: str, typed: str) -> list[CompletionChoice]:
    """Returns comparisons with the most frequent values, or with values that divide the runs (`score<0.5`)."""
    if name in RUN_VOCABULARY.age_fields:
        terms = [f"{name}{each}{age}" for each in ([sign] if sign != "=" else ["<", ">"]) for age in AGES]
        return context.count([term for term in terms if typed in term])
    if name in RUN_VOCABULARY.name_fields:
        return list_named_values(context, name, typed)
    if name in RUN_VOCABULARY.number_fields:
        get = NUMBERS[name](context.table)
        digits = "d" if name in RUN_VOCABULARY.integer_fields else ".4g"
        values = [int(value) if digits == "d" else value for run in context.rest if (value := get(run)) is not None]
        return context.count(filter_typed(build_number_terms(name, sign, typed, values, digits), typed))
    return list_key_values(context, name, sign, typed)


def filter_typed(terms: Iterable[str], typed: str) -> list[str]:
    return [term for term in terms if typed in term]


def build_number_terms(name: str, sign: str, typed: str, values: list[float], digits: str = ".6g") -> list[str]:
    frequent = sorted(set(values))
    is_complete = len(frequent) <= MAX_FREQUENT_NUMBERS
    if not is_complete:
        ordered = sorted(values)
        frequent = sorted({ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9)})
    signs = [sign] if typed or sign != "=" else ["="] if is_complete else ["<", ">="]
    return [f"{name}{each}{value:{digits}}" for each in signs for value in frequent]


def list_key_values(context: RunCompletionContext, name: str, sign: str, typed: str) -> list[CompletionChoice]:
    try:
        root = parse_query(f"{name}=0", RUN_VOCABULARY).root
        assert isinstance(root, LoggedKeyTerm), "the name is no field"
        key = context.table.resolve_key(root)
    except InvalidQueryError:
        return []
    if key.is_metric:
        metric = context.table.load_metric(key.name)
        numbers = [value for run in context.rest if (value := metric.get(run.pk)) is not None]
        return context.count(filter_typed(build_number_terms(name, sign, typed, numbers, ".4g"), typed))
    configs = [context.table.configs[run.pk] for run in context.rest]
    recorded = [config.get(key.name) for config in configs if config.has(key.name)]
    counts = Counter(format_config_value(value) for value in recorded)
    values = [value for value, _count in counts.most_common(MAX_VALUES) if len(value) <= MAX_VALUE_CHARS]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in recorded):
        values.sort(key=float)
    return context.count(filter_typed([f"{name}{sign}{quote_value(value)}" for value in values], typed))


def list_named_values(context: RunCompletionContext, name: str, typed: str) -> list[CompletionChoice]:
    """Returns the values of a field, the most frequent first. After a comma, values are added to the list."""
    head, comma, last = typed.rpartition(",")
    before, typed = f"{head}{comma}", last.strip('"“”').casefold()
    if name in RUN_VOCABULARY.number_fields:
        choices = list_values(context, name, "=", typed)
        return [choice for choice in choices if "=" in choice.text] if not before else []
    if name == "is":
        names: Iterable[str] = RUN_VOCABULARY.property_names
    elif name == "no":
        names = RUN_VOCABULARY.missing_names
    elif name in RUN_VOCABULARY.name_fields:
        names = list_field_values(context, name)
    else:
        return list_key_values(context, name, ":", typed)
    terms = [f"{name}:{before}{quote_value(value)}" for value in names if typed in value.casefold()]
    return context.count(terms[:MAX_CHOICES], "property" if name in ("is", "no") else "value")


def list_field_values(context: RunCompletionContext, name: str) -> list[str]:
    table = context.table
    if name == "status":
        return list(STATUSES)
    counts: Counter[str] = Counter()
    for run in context.rest:
        match name:
            case "name":
                counts[run.name] += 1
            case "tag":
                counts.update(map(str, run.tags))
            case "project":
                counts[run.project.slug] += 1
            case "owner":
                counts[run.owner.get_username() if run.owner else ""] += 1
            case "trainer" | "framework":
                counts[run.framework] += 1
            case "host":
                counts.update(table.statistics[run.pk].hosts)
            case _field:
                counts[str(table.configs[run.pk].find_field(name) or "")] += 1
    return [value for value, _count in counts.most_common(MAX_VALUES) if value]
