"""Completes a query: names with their type and range, values with the number of samples they would leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, Max, Min
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Rescore, Run, StepTemplate, add_templates, build_rescore_column, get_flag_name
from rollouts.query import ast, label_terms
from rollouts.query.grammar import ASCII_SIGNS, format_key, parse_key_name, quote_value
from rollouts.query.logged_keys import count_logged_values, find_logged_keys, is_count_complete
from rollouts.query.parser import parse_query
from rollouts.query.rescore_terms import format_disagreement, list_rescores
from rollouts.query.search import QueryResult, find_samples
from rollouts.query.sql import NUMBER_COLUMNS
from rollouts.query.term_editing import find_term_span
from rollouts.samples import NAME_MASK, NUMBER_MASK, PROPERTY_CATALOG

if TYPE_CHECKING:
    from rollouts.query.body_reader import LoggedKey

MAX_CHOICES: Final = 14
MAX_COUNTED_SAMPLES: Final = 200_000  # counts of more take too long while the user types
MAX_SCANNED_SAMPLES: Final = 50_000  # if there are more than can be counted, the newest have the offered values
COMPARED: Final = re.compile(r'(extra\."(?:\\.|[^"\\])*"|[^\W\d][\w./\-]*)([<>=!≤≥≠]+)(.*)', re.DOTALL)
NAMED: Final = re.compile(r"(label\.[\w.\-]+|label-source|[A-Za-z_][\w.]*):(.*)", re.DOTALL)
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
    "is:flagged": N_("flagged by a user"), "is:correct": N_("by the project's correctness rule"),
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
        rows = self.find_values(column).order_by().exclude(**{column: unknown}).values_list(column)
        return list(rows.annotate(count=Count("pk")).order_by("-count", column)[:limit])

    def find_values(self, column: str) -> Any:
        """Returns a QuerySet of the samples that has this column: a field, or the name of a re-score's number."""
        if column in self.rescore_columns:
            return self.rest.samples.annotate(**{column: build_rescore_column(self.rescore_columns[column])})
        return self.rest.samples


def complete_query(run: Run, q: str, at: int | None = None, **where: Any) -> QueryCompletion:
    """Returns the choices at character `at` of `q`, at its end by default. `where` is as for `find_samples`. Raises
    InvalidInputError."""
    at = len(q) if at is None else max(0, min(at, len(q)))
    start, end = find_term_span(q, at)
    typed = q[start:at].translate(ASCII_SIGNS)
    context = build_context(run, f"{q[:start].rstrip().removesuffix('-')} {q[end:]}", where)
    return QueryCompletion(start, end, tuple(list_choices(context, typed)[:MAX_CHOICES]))


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


def list_choices(context: CompletionContext, typed: str) -> list[CompletionChoice]:
    if matched := COMPARED.fullmatch(typed):
        return list_values(context, *matched.groups())
    if matched := NAMED.fullmatch(typed):
        return list_named_values(context, *matched.groups())
    if typed[:1] in ('"', "“", "”", "＂", "「", "『", "/"):
        return []
    return list_names(context, typed)


# --- names ------------------------------------------------------------------------------------------------------------


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


def describe_property(term: str) -> str:
    return _(PROPERTY_DESCRIPTIONS[term]) if term in PROPERTY_DESCRIPTIONS else ""


def build_key_choice(key: LoggedKey) -> CompletionChoice:
    detail = _("logged text, distinct values: {count}").format(count=key.distinct)
    if key.numeric:
        detail = format_range(_("logged number"), key.low, key.high)
    return CompletionChoice(format_key(key.name), "key", detail, key.count, whole=False)


def format_range(description: str, low: float | None, high: float | None) -> str:
    message = _("{description}, {low}") if low == high else _("{description}, {low} to {high}")
    low_text, high_text = ("" if bound is None else f"{bound:.6g}".replace("-", "−") for bound in (low, high))
    return message.format(description=description, low=low_text, high=high_text)


# --- values -----------------------------------------------------------------------------------------------------------


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
    digits = "d" if name in ast.INTEGER_FIELDS else ".6g"
    terms = [f"{name}{each}{value:{digits}}" for each in signs for value in values]
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
    samples = context.find_values(column).exclude(**{column: None}).order_by(column)
    count = samples.count()
    return [samples.values_list(column, flat=True)[int(share * (count - 1))] for share in (0.1, 0.5, 0.9) if count]


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
        choices = list_values(context, name, "=", typed)
        return [replace(choice, text=choice.text.replace("=", ":", 1)) for choice in choices]
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
