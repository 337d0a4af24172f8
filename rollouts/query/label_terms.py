"""Terms about labels: `label:NAME`, `label.NAME=VALUE`, `author:`, `label-source:`, `is:labelled`, `is:disagreed`.

They match samples with a current label; two terms may match by two labels. Withdrawn and replaced labels do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, Exists, OuterRef, Q
from django.utils.translation import gettext as _

from rollouts.lib import compute_tolerance
from rollouts.models import FLAG_NAME, FLAG_PREFIX, OK_ANSWER, REVIEW_NAME, Label, Project, Run
from rollouts.query import ast
from rollouts.query.grammar import ASCII_SIGNS, parse_number, quote_value, unquote_text

if TYPE_CHECKING:
    from rollouts.models import LabelQuerySet

LABEL_PREFIX: Final = "label."
SOURCES: Final = tuple(Label.Source.values)
BOOLEANS: Final = {"true": "yes", "false": "no"}
MAX_VALUES: Final = 50


def build_label_term(key: str, sign: str, text: str, span: ast.Span) -> ast.QueryNode:
    """Builds the term of `label.NAME=VALUE`. `sign` is one of `< <= > >= = != :`. Raises InvalidQueryError."""
    name = unquote_text(key.removeprefix(LABEL_PREFIX))
    if not name:
        message = _("`label.` needs the name of a label, for example `label.correct=no`.")
        raise ast.InvalidQueryError(message, span)
    if sign == "!=":
        return build_other_label(key, build_label_term(key, "=", text, span), span)
    bounds = build_bounds(sign, text)
    if sign in ("<", "<=", ">", ">=") and bounds is None:
        message = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
        raise ast.InvalidQueryError(message.format(name=key, sign=sign), span)
    value = "" if sign in ("<", "<=", ">", ">=") else text
    return ast.LabelTerm(name, value, bounds, sign == ":", span)


def build_other_label(key: str, equal: ast.QueryNode, span: ast.Span) -> ast.QueryNode:
    """The samples with a label of this name of which none is `equal`."""
    name = unquote_text(key.removeprefix(LABEL_PREFIX))
    return ast.And((ast.NameTerm("label", name, span), ast.Not(equal)))


def build_bounds(sign: str, text: str) -> ast.RangeTerm | None:
    """Returns the range of numbers that the term matches, None if the text is no number."""
    low_text, dots, high_text = text.translate(ASCII_SIGNS).partition("..")
    if sign in (":", "=") and dots:
        low, high = parse_number(low_text), parse_number(high_text)
        is_range = (not low_text or low is not None) and (not high_text or high is not None) and low_text + high_text
        return ast.RangeTerm("", low, high) if is_range else None
    number = parse_number(text)
    if number is None:
        return None
    near = compute_tolerance(number)
    match sign:
        case "<":
            return ast.RangeTerm("", None, number - near, open_high=True)
        case "<=":
            return ast.RangeTerm("", None, number + near)
        case ">":
            return ast.RangeTerm("", number + near, None, open_low=True)
        case ">=":
            return ast.RangeTerm("", number - near, None)
        case _:
            return ast.RangeTerm("", number - near, number + near)


def build_label_condition(term: ast.LabelTerm, run: Run, labels: LabelQuerySet) -> Q:
    """Returns the samples with a label that has this name and value. Raises InvalidQueryError for an unknown name."""
    check_name(term.name, run, term.span)
    text = term.text.lower()
    keys = {text, BOOLEANS.get(text, text)}
    chosen = Q(*(Q(answer__contains=f" {key} ") for key in keys), _connector=Q.OR) & Q(answer__startswith=" ")
    written = Q(answer__icontains=term.text) if term.is_part else Q(answer=term.text)
    value = chosen | (written & ~Q(answer__startswith=" ")) if term.text else Q(pk__in=())
    if bounds := term.bounds:
        in_range = Q(number__isnull=False)
        if bounds.low is not None:
            in_range &= Q(**{f"number__{'gt' if bounds.open_low else 'gte'}": bounds.low})
        if bounds.high is not None:
            in_range &= Q(**{f"number__{'lt' if bounds.open_high else 'lte'}": bounds.high})
        value = in_range | value if term.text else in_range
    return match_samples(labels.filter(value, name=term.name))


def build_named_label_condition(term: ast.NameTerm, run: Run, labels: LabelQuerySet) -> Q:
    """Returns the condition of `label:NAME`, `author:NAME` or `label-source:NAME`."""
    match term.name:
        case "author":
            return match_samples(labels.filter(author=term.text))
        case "label-source":
            return match_samples(labels.filter(source=term.text))
    check_name(term.text, run, term.span)
    return match_samples(labels.filter(name=term.text))


def build_disagreement_condition(labels: LabelQuerySet) -> Q:
    """Returns the samples about which two authors say different things: other values of one question, or OK and a flag
    that says bad. Texts are never compared."""
    others = labels.filter(~Q(source=OuterRef("source"), author=OuterRef("author")), sample=OuterRef("sample"))
    different = others.filter(~Q(answer=OuterRef("answer")), name=OuterRef("name"), answer__startswith=" ")
    bad_flags = others.filter(name__startswith=FLAG_NAME, answer=" bad ")
    return match_samples(labels.filter(Exists(different), answer__startswith=" ")) | match_samples(
        labels.filter(Exists(bad_flags), name=REVIEW_NAME, answer=OK_ANSWER)
    )


def match_samples(labels: LabelQuerySet) -> Q:
    return Q(pk__in=labels.values("sample"))


def check_name(name: str, run: Run, span: ast.Span) -> None:
    """Raises InvalidQueryError if neither the rubric nor a label of the run has the name."""
    known = list_known_names(run.project)
    if name in known or Label.objects.filter(run=run, name=name).exists():
        return
    message = _("This project has no label `{name}`. Available: {values}.")
    raise ast.InvalidQueryError(message.format(name=name, values=", ".join(known)), span)


def list_known_names(project: Project) -> list[str]:
    """Returns the keys of the project's rubric, and the names that every project has."""
    reasons = (FLAG_PREFIX + str(reason["key"]) for reason in project.reasons)
    return [*(question["key"] for question in load_questions(project)), REVIEW_NAME, FLAG_NAME, *reasons]


def load_questions(project: Project) -> list[dict[str, Any]]:
    """Returns the questions of the newest rubric, as stored."""
    rows = project.rubrics.order_by("-number").values_list("questions", flat=True)
    return list(rows.first() or ())


def list_label_values(run: Run, name: str, labels: LabelQuerySet) -> list[str]:
    """Returns the values that a label can have, from its question, else those that labels of the run have."""
    if name == REVIEW_NAME:
        return ["ok", "cannot-judge"]
    if name.startswith(FLAG_NAME):
        return ["bad", "good", "unsure"]
    question = next((entry for entry in load_questions(run.project) if entry["key"] == name), {})
    match question.get("kind"):
        case "choice" | "choices":
            return [option["key"] for option in question["options"]]
        case "yes-no":
            return ["yes", "no"]
        case "rating":
            return [str(number) for number in range(question["minimum"], question["maximum"] + 1)]
    rows = labels.filter(name=name, answer__startswith=" ").order_by().values_list("answer")
    counted = rows.annotate(count=Count("pk")).order_by("-count", "answer")[:MAX_VALUES]
    return list(dict.fromkeys(key for answer, _count in counted for key in answer.split()))


def list_label_names(run: Run, labels: LabelQuerySet) -> list[str]:
    """Returns the names of the run's labels, the most frequent first, then the other questions of the rubric."""
    rows = labels.order_by().values_list("name").annotate(count=Count("pk"))
    used = [name for name, _count in sorted(rows, key=lambda row: (-row[1], row[0]))]
    return list(dict.fromkeys([*used, *(question["key"] for question in load_questions(run.project)), REVIEW_NAME]))


def list_authors(labels: LabelQuerySet) -> list[str]:
    rows = labels.order_by().values_list("author").annotate(count=Count("pk"))
    return [author for author, _count in sorted(rows, key=lambda row: (-row[1], row[0]))[:MAX_VALUES]]


def format_terms(prefix: str, values: Iterable[str]) -> list[str]:
    return [f"{prefix}{quote_value(value)}" for value in values]
