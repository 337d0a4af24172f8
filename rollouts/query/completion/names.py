"""Choices for the name of a term: fields with their range, logged keys, labels, re-scores, properties."""

from __future__ import annotations

from django.db.models import Max, Min
from django.utils.translation import gettext as _

from rollouts.query import ast, label_terms
from rollouts.query.body_scan import LoggedKey
from rollouts.query.completion.context import (
    FIELD_DESCRIPTIONS,
    PROPERTY_DESCRIPTIONS,
    CompletionChoice,
    CompletionContext,
    describe_property,
)
from rollouts.query.completion.values import list_values
from rollouts.query.grammar import format_key
from rollouts.query.sql import NUMBER_COLUMNS


def list_names(context: CompletionContext, typed: str) -> list[CompletionChoice]:
    """Returns the names that start with `typed`, then those that contain it. A complete name is followed by values."""
    if typed in ast.NUMBER_FIELDS or typed in context.logged_keys or typed in context.rescore_columns:
        return list_values(context, typed, "=", "")
    names = ["is", "no", "source", *(name for name in ast.NAME_FIELDS if name != "source")]
    if context.base.scope.step_id is not None:
        names.remove("split")
    fields = [CompletionChoice(f"{name}:", "name", _(FIELD_DESCRIPTIONS[name]), whole=False) for name in names]
    key_choices = [build_key_choice(key) for key in context.logged_keys.values()]
    properties = list_properties(context, typed)
    labels = list_label_keys(context, typed)
    rescores = list_rescore_columns(context)
    choices = [*list_number_fields(context), *rescores, *fields[:3], *key_choices, *fields[3:], *labels, *properties]
    prefix = typed.casefold()
    matches = [choice for choice in choices if prefix in choice.text.casefold()]
    return sorted(matches, key=lambda choice: not choice.text.casefold().startswith(prefix))


def list_number_fields(context: CompletionContext) -> list[CompletionChoice]:
    """Returns the fields that were recorded, with their range."""
    bounds = {
        f"{bound}_{name}": function(column)
        for name, column in NUMBER_COLUMNS.items()
        for bound, function in (("low", Min), ("high", Max))
    }
    values = context.base.samples.order_by().aggregate(**bounds)
    choices: list[CompletionChoice] = []
    for name in ast.NUMBER_FIELDS:
        low, high = values[f"low_{name}"], values[f"high_{name}"]
        if low is not None and (name != "step" or context.base.scope.step_id is None):
            detail = format_range(_(FIELD_DESCRIPTIONS[name]), low, high)
            choices.append(CompletionChoice(name, "number", detail, whole=False))
    return choices


def list_rescore_columns(context: CompletionContext) -> list[CompletionChoice]:
    return [CompletionChoice(name, "number", _("re-score"), whole=False) for name in context.rescore_columns]


def list_label_keys(context: CompletionContext, typed: str) -> list[CompletionChoice]:
    """Returns the questions of the rubric, and after `label.` all names of labels."""
    run, detail, labels = context.base.scope.run, _("label"), context.base.scope.labels()
    if typed.startswith(label_terms.LABEL_PREFIX):
        names = label_terms.list_label_names(run, labels)
    else:
        names = [str(question["key"]) for question in label_terms.load_questions(run.project)]
    prefix = label_terms.LABEL_PREFIX
    return [CompletionChoice(term, "key", detail, whole=False) for term in label_terms.format_terms(prefix, names)]


def list_properties(context: CompletionContext, typed: str) -> list[CompletionChoice]:
    """Returns the properties whose name starts with `typed`: `trunc` leads to `is:truncated`."""
    names = {term: term.partition(":")[2] for term in PROPERTY_DESCRIPTIONS}
    return [
        CompletionChoice(term, "property", describe_property(term))
        for term, name in names.items()
        if len(typed) > 1 and name.startswith(typed.casefold()) and context.is_available(name)
    ]


def build_key_choice(key: LoggedKey) -> CompletionChoice:
    detail = _("logged text, distinct values: {count}").format(count=key.distinct)
    if key.numeric:
        detail = format_range(_("logged number"), key.low, key.high)
    return CompletionChoice(format_key(key.name), "key", detail, key.count, whole=False)


def format_range(description: str, low: float | None, high: float | None) -> str:
    message = _("{description}, {low}") if low == high else _("{description}, {low} to {high}")
    low_text, high_text = ("" if bound is None else f"{bound:.6g}".replace("-", "−") for bound in (low, high))
    return message.format(description=description, low=low_text, high=high_text)
